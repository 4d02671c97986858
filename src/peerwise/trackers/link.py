"""The run's end of one tracker: a thread that passes on what it is told, by a queue that is never waited for.

A full queue drops and counts. Nothing that is told is ever waited for; only `wait` waits, until a given moment.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

QUEUED = 1000
"""Events a tracker may lag behind; at about three a step this is some hundred steps."""
LONGEST_REASON = 400


class Link:
    """One tracker in its own process. `begin` is its `Run` as plain values; its output is added to the file `log`.

    Raises OSError when the process cannot be started.
    """

    def __init__(self, name: str, begin: Mapping[str, Any], log: Path) -> None:
        self.name, self.log = name, log
        self.dropped = 0
        """Events that were lost because the tracker was too slow."""
        self._queue: queue.Queue[Mapping[str, Any] | None] = queue.Queue(QUEUED)
        self._broken = ""
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                # -P: a folder of the working directory must not stand for a package.
                [sys.executable, "-P", "-m", "peerwise.trackers.child", name],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Ctrl-C is for the run, which ends its trackers in its own time.
                start_new_session=True,
            )
        self._queue.put(begin)
        self._thread = Thread(target=self._pass_on, name=f"tracker {name}", daemon=True)
        self._thread.start()

    @property
    def failed(self) -> bool:
        """Whether the tracker is off."""
        return bool(self._broken) or self._process.poll() not in (None, 0)

    @property
    def reason(self) -> str:
        """Why it failed: the last line it wrote."""
        try:
            lines = self.log.read_text(encoding="utf-8", errors="replace").split("\n")
        except OSError as error:
            return str(error)
        return next((line.strip() for line in reversed(lines) if line.strip()), self._broken)[:LONGEST_REASON]

    def send(self, event: Mapping[str, Any]) -> None:
        """Pass an event on, some time."""
        try:
            self._queue.put_nowait(event)
        except queue.Full:
            self.dropped += 1

    def finish(self) -> None:
        """Nothing more will come: the tracker ends after what is queued. A full queue loses its oldest event for it."""
        while True:
            try:
                return self._queue.put_nowait(None)
            except queue.Full:
                with suppress(queue.Empty):
                    self._queue.get_nowait()
                    self.dropped += 1

    def wait(self, deadline: float) -> bool:
        """Wait for the end until a moment of the monotonic clock; False where it had to be killed then."""
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.kill()
            return False
        return True

    def kill(self) -> None:
        """End the tracker at once."""
        self._process.kill()
        self._process.wait()

    def _pass_on(self) -> None:
        assert self._process.stdin is not None
        try:
            while (event := self._queue.get()) is not None:
                self._process.stdin.write(json.dumps(event).encode() + b"\n")
                self._process.stdin.flush()
            self._process.stdin.close()
        except (OSError, TypeError, ValueError) as error:
            self._broken = f"{type(error).__name__}: {error}"
