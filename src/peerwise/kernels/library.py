"""The compiled part of sampling on a CPU: builds `products.c` and `kernels.c` once and calls them.

What they compute is said there. All of it can also be done by torch operations, and is where there is no compiler:
slower, equal up to rounding. Knows no models, caches or batches.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

log = logging.getLogger(__name__)

BLOCK = 16
"""Tokens that lie together in the cache: its room is a multiple of it."""
LANES = 16
"""Columns of a weight that lie together once packed; 4 times as many are a panel."""
_FLAGS = ("-O3", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512bf16", "-mfma", "-fopenmp", "-fPIC")
_SOURCES = tuple(Path(__file__).with_name(name) for name in ("kernels.c", "products.c"))
_HEADER = Path(__file__).with_name("bf16.h")
_POINTER, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float


class Kernels:
    """The functions of the C files over tensors. All tensors are bfloat16 on the CPU unless said otherwise."""

    def __init__(self, library: Path) -> None:
        loaded = ctypes.CDLL(str(library))
        self._product = _declared(loaded.product, [_INT] * 3 + [_POINTER] * 4 + [_INT, _POINTER])
        self._pack = _declared(loaded.pack, [_INT, _INT, _POINTER, _INT, _INT, _POINTER])
        self._rms_norm = _declared(loaded.rms_norm, [_INT, _INT, _POINTER, _POINTER, _FLOAT, _POINTER])
        self._rotate = _declared(loaded.rotate, [_INT] * 4 + [_POINTER] * 3)
        strided = [_POINTER, _INT, _INT]
        self._keep = _declared(loaded.keep_tokens, [_INT] * 3 + strided * 2 + [_INT, _POINTER, _POINTER])
        self._attend = _declared(
            loaded.decode_attention,
            ([_INT] * 4 + [_POINTER] * 3 + [_INT] * 3 + [_POINTER] * 6 + [_INT] + [_POINTER] * 2 + [_INT])
            + [_FLOAT, _FLOAT, _INT, _POINTER, _INT, _INT, _POINTER],
        )
        self._scratch_floats: Callable[[int, int], int] = _declared(loaded.scratch_floats, [_INT, _INT], _INT)

    def packed(self, weights: Sequence[Tensor], *, gated: bool = False) -> Tensor:
        """Weights [columns, size] that read the same input, as `product` wants them: [panels, size / 2, 64, 2].

        Args:
            weights: columns multiples of 16, of 32 when gated; size even.
            gated: two weights, of the gates and of the values that these are for.
        """
        columns, size = sum(map(len, weights)), weights[0].shape[1]
        out = weights[0].new_zeros(-(-columns // (4 * LANES)), size // 2, 4 * LANES, 2)
        first = 0
        for weight in weights:
            dense = weight.contiguous()
            self._pack(len(weight), size, dense.data_ptr(), first, gated, out.data_ptr())
            first += 2 if gated else len(weight) // LANES
        return out

    def product(
        self, x: Tensor, weights: Tensor, columns: int, *, bias: Tensor | None, added: Tensor | None, gated: bool
    ) -> Tensor:
        """x @ weight.T + bias, rounded, + added: all [n, columns].

        Args:
            x: [n, size], dense; weights: as `packed` gave them; bias: [columns]; added: [n, columns], dense.
            gated: silu(gates) * values [n, columns / 2] instead; then bias and added are None.
        """
        out = x.new_empty(len(x), columns // 2 if gated else columns)
        factors = x.data_ptr(), weights.data_ptr(), _address(bias), _address(added)
        self._product(len(x), x.shape[1], columns, *factors, gated, out.data_ptr())
        return out

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """[n, size] dense -> [n, size]; size a multiple of 16."""
        out = torch.empty_like(x)
        self._rms_norm(len(x), x.shape[1], x.data_ptr(), weight.data_ptr(), eps, out.data_ptr())
        return out

    def rotate(self, x: Tensor, heads: int, cos: Tensor, sin: Tensor) -> None:
        """Turn the first `heads` heads of each row of x [N, all heads, D] in place; cos, sin [N, D] dense."""
        self._rotate(len(x), heads, x.shape[2], x.stride(0), x.data_ptr(), cos.data_ptr(), sin.data_ptr())

    def keep(self, k: Tensor, v: Tensor, keys: Tensor, values: Tensor) -> None:
        """Keep the tokens of a prompt: k, v [K, T, D], dense along D -> keys, values [K, room, D], in their own order.

        Keys: [K, room / 16, D / 2, 16, 2], 16 tokens side by side; values: [K, room / 2, D, 2], two tokens together.
        """
        heads, tokens, size = k.shape
        strided = (x for y in (k, v) for x in (y.data_ptr(), y.stride(1), y.stride(0)))
        self._keep(tokens, heads, size, *strided, keys.shape[1], keys.data_ptr(), values.data_ptr())

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
            prompts, answers: keys and values in the order of `keep`, [places, K, room, D].
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


def _declared(function: Any, arguments: Sequence[type], result: type | None = None) -> Any:
    function.argtypes, function.restype = arguments, result
    return function


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def kernels_for(tensor: Tensor, size: int) -> Kernels | None:
    """The kernels, where they can work: bfloat16 on a CPU that multiplies it, rows or heads of `size` dimensions."""
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
    source = b"".join(path.read_bytes() for path in (_HEADER, *_SOURCES))
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
        command = [compiler, *_FLAGS, "-shared", "-o", str(built), *map(str, _SOURCES), "-lm"]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
        built.replace(library)
