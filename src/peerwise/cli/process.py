"""What a long-running command does to its own process before torch allocates anything."""

from __future__ import annotations

import ctypes
import platform
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def keep_freed_memory() -> None:
    """Have glibc keep large freed blocks for the next tensor instead of returning them to the system.

    A training step allocates and frees the same tens of megabytes hundreds of times; by default each round maps and
    zeroes fresh pages. `benchmarks/allocator.py` measures what this saves.
    Does nothing where the C library is not glibc.
    """
    if sys.platform.startswith("linux") and platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        libc.mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)
