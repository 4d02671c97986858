"""Builds the C files of this room once, and says where they can be used.

All that they do can also be done by torch operations, and is where there is no compiler or another processor: slower,
equal up to rounding.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from peerwise.kernels.library import LANES, Kernels

log = logging.getLogger(__name__)

_FLAGS = ("-O3", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512bf16", "-mfma", "-fopenmp", "-fPIC")
_HERE = Path(__file__).parent
_SOURCES, _HEADERS = (tuple(sorted(_HERE.glob(pattern))) for pattern in ("*.c", "*.h"))


def kernels_for(tensor: Tensor, size: int) -> Kernels | None:
    """The kernels, where they can work: bfloat16 on a CPU that multiplies it, rows or heads of `size` dimensions."""
    return None if tensor.dtype != torch.bfloat16 or size % 32 else float32_kernels(tensor)


def float32_kernels(tensor: Tensor) -> Kernels | None:
    """The kernels, where those of float32 numbers in any number can work: on the CPU that the others need."""
    return _built() if tensor.is_cpu and torch.cpu._is_avx512_bf16_supported() else None


def product_kernels(*weights: Tensor) -> Kernels | None:
    """The kernels, where their product takes the weights [columns, size] side by side and is the fastest there is.

    A processor with matrix tiles has a faster one in torch.
    """
    if torch.cpu._is_amx_tile_supported() or any(len(weight) % LANES for weight in weights):
        return None
    return kernels_for(weights[0], weights[0].shape[1])


@cache
def _built() -> Kernels | None:
    """Build, or find what was built before. Failing is no error, but it is said."""
    if os.environ.get("PEERWISE_KERNELS") == "off":
        return None
    compiler = shutil.which(os.environ.get("CC", "gcc")) or shutil.which("cc")
    if compiler is None:
        log.warning("no C compiler (gcc) found: without compiled kernels sampling and training are slower")
        return None
    source = b"".join(path.read_bytes() for path in (*_HEADERS, *_SOURCES))
    name = hashlib.sha256(source + " ".join((compiler, *_FLAGS)).encode()).hexdigest()[:16]
    try:
        library = _cache_folder() / f"kernels-{name}.so"
        if not library.exists():
            _compile(compiler, library)
        return Kernels(library)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", "") or str(error)
        log.warning(
            "the compiled kernels could not be built (sampling and training are slower): %s", said.strip()[-500:]
        )
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
