"""Work under a hard deadline: a pool of worker processes that are killed when they overrun and started again.

Usable from any thread. Requests and results travel as JSON, nothing is unpickled. The deadline counts the call only,
not starting a worker or importing the function's module. Knows nothing of what the work is. Not a security boundary.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from peerwise.errors import PeerwiseError

STARTUP_S = 120.0
"""How long a worker may take to start and import before it counts as broken."""
PASSED_ON = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "SYSTEMROOT")
"""Environment variables a worker sees; tokens and keys are not among them."""


class DeadlineExceeded(PeerwiseError):
    """The work was not done in time; its process was killed."""


class WorkerFailed(PeerwiseError):
    """The function raised, or its process died."""


class _Worker:
    """One process and the two pipes to it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "peerwise.sandbox.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={name: os.environ[name] for name in PASSED_ON if name in os.environ},
        )
        assert self._process.stdout is not None
        self._out = self._process.stdout.fileno()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._out, selectors.EVENT_READ)
        self._buffer = b""
        self.waiting = True
        """Whether the last request was answered, so that the process can take another."""

    def call(self, function: str, args: Sequence[Any], deadline_s: float) -> Any:
        request = json.dumps({"function": function, "args": list(args), "deadline_s": deadline_s})
        stdin = self._process.stdin
        assert stdin is not None
        self.waiting = False
        try:
            stdin.write(request.encode() + b"\n")
            stdin.flush()
        except OSError as error:
            raise WorkerFailed(f"{function}: the worker process died ({error})") from None
        answer = self._answer(function, STARTUP_S)
        if "loaded" in answer:
            answer = self._answer(function, deadline_s)
        self.waiting = True
        if "error" in answer:
            raise WorkerFailed(f"{function}: {answer['error']}")
        return answer["result"]

    def _answer(self, function: str, within_s: float) -> dict[str, Any]:
        end = time.monotonic() + within_s
        while b"\n" not in self._buffer:
            if not self._selector.select(max(0.0, end - time.monotonic())):
                raise DeadlineExceeded(f"{function} took longer than {within_s:g} s and was killed")
            chunk = os.read(self._out, 65536)
            if not chunk:
                raise WorkerFailed(f"{function}: the worker process died")
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """End the process with everything it started, and reap it."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._selector.close()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                assert pipe is not None
                pipe.close()


class Pool:
    """Up to `size` workers, started when first needed.

    Example:
        Pool(2).run("operator:add", (1, 2), deadline_s=1.0)  # 3
    """

    def __init__(self, size: int = 1) -> None:
        assert size >= 1
        self._free = threading.Semaphore(size)
        self._idle: list[_Worker] = []
        self._owner = os.getpid()
        atexit.register(self.close)

    def run(self, function_path: str, args: Sequence[Any], deadline_s: float) -> Any:
        """Call "module:function" with JSON-able `args` in a worker; waits for a free one, then `deadline_s` seconds.

        Raises DeadlineExceeded when the time is over (the worker is gone then), WorkerFailed when the function raised,
        could not be imported, or its process died.
        """
        with self._free:
            worker = self._take()
            try:
                return worker.call(function_path, args, deadline_s)
            finally:
                if worker.waiting:
                    self._idle.append(worker)
                else:
                    worker.kill()

    def _take(self) -> _Worker:
        if os.getpid() != self._owner:  # after a fork the workers belong to the parent
            self._idle, self._owner = [], os.getpid()
        with contextlib.suppress(IndexError):
            while True:
                worker = self._idle.pop()
                if worker.alive:
                    return worker
                worker.kill()
        return _Worker()

    def close(self) -> None:
        """Kill the idle workers; the pool can be used again."""
        with contextlib.suppress(IndexError):
            while os.getpid() == self._owner:
                self._idle.pop().kill()
