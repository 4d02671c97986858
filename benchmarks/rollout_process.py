"""A sampling engine as a process that draws when it is asked; what runs there is benchmarks/rollout_engines.py."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import torch

from sweep import forget_peak, resident

ENGINES_FILE = Path(__file__).with_name("rollout_engines.py")


class Engine:
    """A process that draws when asked."""

    def __init__(self, name: str, python: str, folder: str, dtype: str) -> None:
        self.name = name
        command = [python, str(ENGINES_FILE), name, folder, dtype, str(torch.get_num_threads())]
        # In a session of its own, so that Ctrl-C reaches this process alone.
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    def ready(self) -> None:
        """Wait until it has loaded its model."""
        self._answer()

    def ask(self, job: dict[str, Any]) -> dict[str, Any]:
        """Send a job and wait for its answer."""
        assert self.process.stdin is not None
        print(json.dumps(job), file=self.process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"engine {self.name} ended with {self.process.wait()}; its messages are above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def pids(self) -> list[int]:
        """The process and its children."""
        root = psutil.Process(self.process.pid)
        return [root.pid, *(child.pid for child in root.children(recursive=True))]

    def rest(self) -> None:
        """Have it give freed memory back, and wait until it computes no more: vLLM spins on a core after a draw."""
        self.ask({"rest": True})
        last = time.monotonic() + 10
        while time.monotonic() < last:
            before = self._busy_seconds()
            time.sleep(0.25)
            if self._busy_seconds() - before < 0.025:
                return

    def _busy_seconds(self) -> float:
        times = [psutil.Process(pid).cpu_times() for pid in self.pids()]
        return float(sum(of_one.user + of_one.system for of_one in times))

    def forget_peak(self) -> None:
        """From here on `peak_bytes` is counted afresh."""
        for pid in self.pids():
            forget_peak(pid)

    def peak_bytes(self) -> int:
        """The most memory that the process and its children have held, added up."""
        return sum(resident("VmHWM", pid) for pid in self.pids())

    def end(self) -> None:
        """Let it go; in the middle of a draw it is stopped."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGTERM)
            self.process.wait()


@contextmanager
def running(pythons: Mapping[str, str], folder: str, dtype: str) -> Iterator[list[Engine]]:
    """Engines by the interpreter of each, started one after the other and ended whatever happens."""
    engines: list[Engine] = []
    try:
        for name, python in pythons.items():
            engines.append(Engine(name, python, folder, dtype))
            engines[-1].ready()
        yield engines
    finally:
        for engine in engines:
            engine.end()
