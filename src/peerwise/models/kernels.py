"""The compiled part of a decode step on a CPU: builds `kernels.c` once and calls it; without a compiler there is none.

What it computes is said in `kernels.c`. Everything it does can also be done by torch operations, and is where it cannot
be built: slower, equal up to rounding. Knows no models, caches or batches.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

log = logging.getLogger(__name__)

BLOCK = 16
"""Tokens that lie together in the cache: its room is a multiple of it."""
_FLAGS = ("-O3", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512bf16", "-mfma", "-fopenmp", "-fPIC")
_SOURCE = Path(__file__).with_name("kernels.c")
_POINTER, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float


class Kernels:
    """The functions of `kernels.c` over tensors. All tensors are bfloat16 on the CPU unless said otherwise."""

    def __init__(self, library: Path) -> None:
        loaded = ctypes.CDLL(str(library))
        self._rms_norm, self._rotate, self._attend = loaded.rms_norm, loaded.rotate, loaded.decode_attention
        self._gated = loaded.gated
        self._rms_norm.argtypes = [_INT, _INT, _POINTER, _POINTER, _POINTER, _FLOAT, _POINTER, _POINTER]
        self._gated.argtypes = [_INT, _INT, _POINTER, _POINTER]
        self._rotate.argtypes = [_INT] * 4 + [_POINTER] * 3
        self._attend.argtypes = (
            [_INT] * 4 + [_POINTER] * 3 + [_INT] * 3 + [_POINTER] * 6 + [_INT] + [_POINTER] * 2 + [_INT]
        ) + [_FLOAT, _FLOAT, _INT, _POINTER, _INT, _INT, _POINTER]
        for function in (self._rms_norm, self._gated, self._rotate, self._attend):
            function.restype = None
        self._scratch_floats: Callable[[int, int], int] = loaded.scratch_floats
        loaded.scratch_floats.argtypes, loaded.scratch_floats.restype = [_INT, _INT], _INT

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """[N, size] dense -> [N, size]; size a multiple of 16."""
        out = torch.empty_like(x)
        self._rms_norm(len(x), x.shape[1], x.data_ptr(), None, weight.data_ptr(), eps, None, out.data_ptr())
        return out

    def add_rms_norm(self, x: Tensor, delta: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """x + delta, and that normalised: all [N, size] dense."""
        total, out = torch.empty_like(x), torch.empty_like(x)
        pointers = x.data_ptr(), delta.data_ptr(), weight.data_ptr()
        self._rms_norm(len(x), x.shape[1], *pointers, eps, total.data_ptr(), out.data_ptr())
        return total, out

    def gated(self, x: Tensor) -> Tensor:
        """[N, 2 * size] dense, gates then values -> silu(gates) * values [N, size]; size a multiple of 16."""
        out = x.new_empty(len(x), x.shape[1] // 2)
        self._gated(len(x), out.shape[1], x.data_ptr(), out.data_ptr())
        return out

    def rotate(self, x: Tensor, heads: int, cos: Tensor, sin: Tensor) -> None:
        """Turn the first `heads` heads of each row of x [N, all heads, D] in place; cos, sin [N, D] dense."""
        self._rotate(len(x), heads, x.shape[2], x.stride(0), x.data_ptr(), cos.data_ptr(), sin.data_ptr())

    def scratch(self, tokens: int, size: int) -> Tensor:
        """[threads, floats] float32 that `attend` may use for rows that see up to `tokens` tokens."""
        whole = tokens + 3 * BLOCK
        return torch.empty(torch.get_num_threads(), self._scratch_floats(whole, size))

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        rows: tuple[Tensor, Tensor, Tensor, Tensor],
        prompts: tuple[Tensor, Tensor],
        answers: tuple[Tensor, Tensor],
        scale: float,
        softcap: float,
        window: int,
        scratch: Tensor,
    ) -> Tensor:
        """Keep a new token of each row, and let it see its prompt and its answer so far.

        Args:
            q: [n, H, D]; k, v: [n, K, D]; the heads of a row lie together.
            rows: groups, slots, prompt lengths and answer lengths before this token, each [n] int64.
            prompts, answers: keys and values in the order that `blocked` gives them, [places, K, room, D].
            softcap, window: 0 is none.
        Returns:
            [n, H, D].
        """
        n, heads, size = q.shape
        out = q.new_empty(n, heads, size)
        groups, slots, prompt_lengths, lengths = (column.data_ptr() for column in rows)
        self._attend(
            *(n, heads, k.shape[1], size, q.data_ptr(), k.data_ptr(), v.data_ptr()),
            *(q.stride(0), k.stride(0), v.stride(0), groups, slots, prompt_lengths, lengths),
            *(prompts[0].data_ptr(), prompts[1].data_ptr(), prompts[0].shape[2]),
            *(answers[0].data_ptr(), answers[1].data_ptr(), answers[0].shape[2]),
            *(scale, softcap, window, scratch.data_ptr(), scratch.shape[1], len(scratch), out.data_ptr()),
        )
        return out


def blocked(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values [K, T, D] in the order that `Kernels.attend` reads, T filled up with zeros to whole blocks."""
    heads, tokens, size = k.shape
    k, v = (torch.nn.functional.pad(x, (0, 0, 0, -tokens % BLOCK)) for x in (k, v))
    keys = k.reshape(heads, -1, BLOCK, size // 2, 2).transpose(2, 3)
    values = v.reshape(heads, -1, 2, size).transpose(2, 3)
    return keys.reshape(k.shape), values.reshape(v.shape)


def kernels_for(tensor: Tensor, size: int) -> Kernels | None:
    """The kernels, where they can work: bfloat16 on a CPU that multiplies it, heads of `size` dimensions."""
    if tensor.dtype != torch.bfloat16 or not tensor.is_cpu or size % 32 or not torch.cpu._is_avx512_bf16_supported():
        return None
    return _built()


@cache
def _built() -> Kernels | None:
    """Build, or find what was built before. Failing is no error, but it is said."""
    if os.environ.get("PEERWISE_KERNELS") == "off":
        return None
    compiler = shutil.which(os.environ.get("CC", "gcc")) or shutil.which("cc")
    if compiler is None:
        log.warning("no C compiler (gcc) found: sampling runs without compiled kernels and is slower")
        return None
    source = _SOURCE.read_bytes()
    name = hashlib.sha256(source + " ".join((compiler, *_FLAGS)).encode()).hexdigest()[:16]
    try:
        library = _cache_folder() / f"kernels-{name}.so"
        if not library.exists():
            _compile(compiler, library)
        return Kernels(library)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", "") or str(error)
        log.warning("the compiled kernels could not be built (sampling is slower): %s", said.strip()[-500:])
        return None


def _cache_folder() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "peerwise"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def _compile(compiler: str, library: Path) -> None:
    """Several processes may build at once: each its own file, and the last to finish puts its own in place."""
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        built = Path(folder) / library.name
        command = [compiler, *_FLAGS, "-shared", "-o", str(built), str(_SOURCE), "-lm"]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
        built.replace(library)
