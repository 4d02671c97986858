"""Processes for code that nobody vouches for, and the walls around them.

With bubblewrap: namespaces of their own for processes, network and mounts; of the file system only the interpreter is
there, read-only, and an empty folder in memory. Without it: limits, a session of their own and a guard that ends all
descendants. A process started by root becomes a user that owns nothing. Knows nothing of tests and rewards.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from peerwise.errors import PeerwiseError

MEMORY = 512 * 2**20
"""Bytes of address space for each process."""
PROCESSES = 8
"""Processes and threads of one program, together."""
FILE = 16 * 2**20
"""Bytes of one file."""
FOLDER = 64 * 2**20
"""Bytes of the temporary folder under bubblewrap, which is memory."""
OPEN_FILES = 64
ENDING_S = 30.0
"""How long the end of a killed process is waited for."""
STARTUP_S = 60.0

_INSIDE = Path(__file__).parent / "inside"
_INTERPRETER = os.path.realpath(sys.executable)
_BOOT = "import sys; sys.path.append({folder!r}); from inside.{role} import main; main(sys.argv[1:])"
_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "TMPDIR": "/tmp", "HOME": "/tmp"}
_SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/lib32", "/etc/ld.so.cache", "/etc/localtime")
_FIRST_USER, _USERS = 2**30, 256
_counter = itertools.count()


class SandboxFailed(PeerwiseError):
    """A process for a program could not be started; says nothing of the program."""


@dataclass(frozen=True, slots=True)
class Walls:
    """Which walls stand on this machine.

    Example:
        print("\\n".join(walls().lines()))
    """

    bubblewrap: bool
    """Namespaces for processes, network and mounts."""
    own_user: bool
    """Each process runs as a user of its own that owns no file; possible where we are root."""

    def lines(self) -> list[str]:
        """One line a wall, for people."""
        user = "a user of its own" if self.own_user else "the user of this run"
        limits = f"{MEMORY >> 20} MB of memory, {FILE >> 20} MB a file, {PROCESSES} processes, CPU time, deadline"
        if self.bubblewrap:
            files, network = "only the interpreter, read-only, and an empty folder in memory", "none"
            others, ending = "not visible", "everything, with the process namespace"
        else:
            files, network = f"all that {user} may read and write (no bubblewrap)", "open (no bubblewrap)"
            others = (
                "visible" if self.own_user else "visible, and can be ended and read: do not run what may be hostile"
            )
            ending = "all descendants, by a guard" + ("" if self.own_user else ", unless the program ends the guard")
        facts = {"user": user, "limits": limits, "environment": "empty", "output": "discarded"}
        facts |= {"files": files, "network": network, "other processes": others, "ended": ending}
        return [f"{name}: {value}" for name, value in facts.items()]


@functools.cache
def walls() -> Walls:
    """The strongest walls that a trial process starts behind.

    Raises SandboxFailed where none starts, and rather than run programs as root with nothing around them.
    """
    root = os.geteuid() == 0
    choices = (
        Walls(bubblewrap=bubblewrap, own_user=root) for bubblewrap in (True, False) if _bwrap() or not bubblewrap
    )
    for choice in choices:
        if _stands(choice):
            return choice
    raise SandboxFailed(
        "no process can be started for programs: install bubblewrap (apt-get install bubblewrap), or use a Python that "
        f"every user may read, not {_INTERPRETER}"
    )


def _bwrap() -> str | None:
    return shutil.which("bwrap")


def _stands(choice: Walls) -> bool:
    """Whether a program's process starts behind these walls: it says so in its first line."""
    reading, writing = os.pipe()
    unused, never = os.pipe()
    process = Process("candidate", [unused, writing], cpu_s=10, choice=choice)
    for descriptor in (writing, unused):
        os.close(descriptor)
    try:
        return readable(reading, STARTUP_S) and os.read(reading, 1000).startswith(b'{"ready"')
    finally:
        process.end()
        for descriptor in (reading, never):
            os.close(descriptor)


class Process:
    """One process of `inside`, started behind the walls with some descriptors of ours; `end` it in any case."""

    def __init__(self, role: str, descriptors: list[int], *, cpu_s: int, choice: Walls) -> None:
        settings = {"memory": MEMORY, "cpu_s": cpu_s, "processes": PROCESSES, "file": FILE, "files": OPEN_FILES}
        user = _FIRST_USER + (os.getpid() << 8) % 2**29 + next(_counter) % _USERS if choice.own_user else None
        if user is not None:
            settings["user"] = user
        if not choice.bubblewrap:
            settings["shared"] = 1
        command = [*_python(role), *map(str, descriptors), json.dumps(settings)]
        self._folder = None if choice.bubblewrap else _folder(user)
        self._init: int | None = None
        reading, writing = os.pipe()
        # bubblewrap tells us the number of its first process; the guard waits for us to close our end.
        self._control, theirs = (reading, writing) if choice.bubblewrap else (writing, reading)
        wrapper = _wrapped(choice, theirs) if choice.bubblewrap else [*_python("guard"), str(theirs)]
        try:
            self._process = self._started([*wrapper, *command], [*descriptors, theirs])
        except OSError as error:
            os.close(self._control)
            self._remove_folder()
            raise SandboxFailed(f"a process for a program could not be started ({error})") from error
        finally:
            os.close(theirs)
        if choice.bubblewrap:
            self._init = _first_process(self._control, self._process.pid)

    def _started(self, command: list[str], descriptors: list[int]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=descriptors,
            start_new_session=True,
            cwd=self._folder or "/",
            env=_ENVIRONMENT | ({"TMPDIR": self._folder, "HOME": self._folder} if self._folder else {}),
        )

    def _remove_folder(self) -> None:
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def end(self) -> None:
        """Kill the process and everything it started, and wait until all of it is gone.

        Raises SandboxFailed when something is still there after ENDING_S.
        """
        if self._init is not None:
            # The namespace's first process ends last, after all others in it.
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._init, signal.SIGKILL)
            gone = readable(self._init, ENDING_S)
            os.close(self._init)
            if not gone:
                raise SandboxFailed(f"processes of a program are still there {ENDING_S:g} s after they were killed")
        os.close(self._control)
        try:
            self._process.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise SandboxFailed(f"processes of a program are still there after {ENDING_S:g} s") from None
        finally:
            self._remove_folder()


def readable(descriptor: int, within_s: float) -> bool:
    """Whether the descriptor has something to read, or has ended, within this time."""
    poll = select.poll()  # unlike select, for descriptors above 1023 too
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(0.0, within_s) * 1000))


def _python(role: str) -> list[str]:
    return [_INTERPRETER, "-I", "-S", "-B", "-W", "ignore", "-c", _BOOT.format(folder=str(_INSIDE.parent), role=role)]


def _wrapped(choice: Walls, information: int) -> list[str]:
    # Root needs no user namespace; one that maps it would leave it owner of root's files and free of process limits.
    own = [] if choice.own_user else ["--unshare-user", "--cap-drop", "ALL"]
    shown = [Path(path) for path in (*_SYSTEM, sys.base_prefix, str(_INSIDE)) if Path(path).exists()]
    # Made before they are needed, since bubblewrap would make them readable for root alone.
    above = sorted({folder for path in shown for folder in path.parents} - {Path("/"), Path("/tmp")})
    return [
        str(_bwrap()),
        *("--die-with-parent", "--new-session", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"),
        *own,
        *("--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev"),
        *("--perms", "1777", "--size", str(FOLDER), "--tmpfs", "/tmp"),
        *(word for folder in above for word in ("--perms", "0755", "--dir", str(folder))),
        *(word for path in shown for word in ("--ro-bind", str(path), str(path))),
        *("--remount-ro", "/", "--chdir", "/tmp", "--info-fd", str(information), "--"),
    ]


def _folder(user: int | None) -> str:
    folder = tempfile.mkdtemp(prefix="peerwise-")
    if user is not None:
        os.chown(folder, user, user)
    return folder


def _first_process(information: int, bwrap: int) -> int | None:
    """A descriptor of the namespace's first process; None when it has ended already."""
    told = b""
    while chunk := os.read(information, 1000):
        told += chunk
    with contextlib.suppress(ValueError, KeyError, OSError):
        pid = int(json.loads(told)["child-pid"])
        descriptor = os.pidfd_open(pid)
        if int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) == bwrap:
            return descriptor
        os.close(descriptor)
    return None
