"""Stands between a process and its parent where there is no process namespace, and ends all of its descendants.

Orphans are handed to the nearest ancestor that asks for them, so a grandchild in a session of its own is still found.
The guard ends everything when its parent closes the pipe or dies. A program that runs as the same user can kill it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from .confine import prctl

_SUBREAPER, _NO_NEW_PRIVILEGES = 36, 38


def main(argv: list[str]) -> None:
    """Start `argv[1:]` and end it, with what it started, when the descriptor `argv[0]` is closed at the other end."""
    control = int(argv[0])
    prctl(_SUBREAPER, 1)
    prctl(_NO_NEW_PRIVILEGES, 1)
    if os.fork() == 0:
        os.close(control)
        os.setsid()
        os.execv(argv[1], argv[1:])
    _close_all_but(control)
    os.read(control, 1)
    while living := _descendants():
        for pid in living:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _reap()
        time.sleep(0.001)


def _close_all_but(control: int) -> None:
    """Give up the descriptors of the started process: held here as well, its pipes would never be seen to end."""
    for descriptor in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if descriptor > 2 and descriptor != control:
            with contextlib.suppress(OSError):
                os.close(descriptor)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _descendants() -> list[int]:
    """Process ids below this one, those that ended but were not waited for included."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found, level = list[int](), {os.getpid()}
    while level := {pid for pid, parent in parents.items() if parent in level}:
        found += level
    return found
