"""What a command that works with a model does to its own process before torch allocates anything.

Knows nothing but the C library's allocator. Both functions do nothing where that is not glibc.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_BEFORE = "PEERWISE_GLIBC_TUNABLES_BEFORE"
_NO_THREAD_CACHE = "glibc.malloc.tcache_count=0"


def keep_freed_memory() -> None:
    """Have glibc keep large freed blocks for the next tensor instead of returning them to the system.

    A training step allocates and frees the same tens of megabytes hundreds of times; by default each round maps and
    zeroes fresh pages. `benchmarks/allocator.py` measures what this saves.
    """
    if _has_glibc():
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        libc.mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)


def start_without_thread_cache() -> None:
    """Start this process anew, once, without glibc's cache of small freed blocks. To be called before the work begins.

    Torch's tensors are aligned blocks, which glibc cuts out of larger ones. The slivers at both ends go into the
    thread's cache, where they are never joined with their neighbours, so that a tensor's place is no longer whole when
    it is free, and the next tensor of that size goes somewhere else. `benchmarks/allocator.py` measures what this
    saves. The setting is read when a process starts, and there only: the environment is as it was afterwards.
    """
    if _BEFORE in os.environ:  # the second start
        before = os.environ.pop(_BEFORE)
        os.environ.pop("GLIBC_TUNABLES", None)
        if before:
            os.environ["GLIBC_TUNABLES"] = before
        return
    before = os.environ.get("GLIBC_TUNABLES", "")
    if not _has_glibc() or "tcache_count" in before or not sys.executable:
        return
    tunables = ":".join(filter(None, (before, _NO_THREAD_CACHE)))
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(
        sys.executable,
        [sys.executable, *sys.orig_argv[1:]],
        {**os.environ, "GLIBC_TUNABLES": tunables, _BEFORE: before},
    )


def _has_glibc() -> bool:
    return sys.platform.startswith("linux") and platform.libc_ver()[0] == "glibc"
