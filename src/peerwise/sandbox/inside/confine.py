"""What a process gives up before it runs anything of others: its user, and the resources beyond its limits.

All of it is for good: an unprivileged process cannot raise a hard limit again.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource

Settings = dict[str, int]
"""`memory`, `cpu_s`, `processes`, `file`, `files`, `user` where the process changes to a user of its own, and
`shared` where it can see other processes."""


def confine(settings: Settings) -> None:
    """Raises OSError when something cannot be given up."""
    for limit, name in (
        (resource.RLIMIT_AS, "memory"),
        (resource.RLIMIT_CPU, "cpu_s"),
        (resource.RLIMIT_FSIZE, "file"),
        (resource.RLIMIT_NOFILE, "files"),
        (resource.RLIMIT_NPROC, "processes"),
    ):
        resource.setrlimit(limit, (settings[name], settings[name]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if "user" in settings:
        user = settings["user"]
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        if not os.access(os.__file__, os.R_OK):
            raise PermissionError(f"{os.__file__} cannot be read by another user than its owner")
    # What is printed goes nowhere, what is read is empty; the pipes of the conversation have numbers of their own.
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)


def hidden() -> None:
    """Keep processes of the same user from reading this one's memory and descriptors."""
    with contextlib.suppress(OSError):
        prctl(4, 0)  # PR_SET_DUMPABLE


def prctl(option: int, value: int) -> None:
    """Raises OSError when the kernel refuses."""
    import ctypes

    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def arguments(argv: list[str]) -> tuple[list[int], Settings]:
    """The descriptors and settings that a process was started with."""
    return [int(text) for text in argv[:-1]], json.loads(argv[-1])
