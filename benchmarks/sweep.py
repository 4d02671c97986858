"""What the long benchmarks share: lists as options, rows in a file as they are measured, the time left, memory.

Knows nothing of what is measured.
"""

from __future__ import annotations

import ctypes
import gc
import json
import platform
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def whole_numbers(text: str) -> list[int]:
    """An option's list of whole numbers, as in 4,8,16."""
    return [int(part) for part in text.split(",")]


def numbers(text: str) -> list[float]:
    """An option's list of numbers, as in 1.0,0.95."""
    return [float(part) for part in text.split(",")]


def words(text: str) -> list[str]:
    """An option's list of names, as in bfloat16,float32."""
    return text.split(",")


class Rows:
    """Rows of a sweep: each is in the file, if there is one, as soon as it is measured; the file's own come first."""

    def __init__(self, path: str | None) -> None:
        self.path = Path(path) if path else None
        text = self.path.read_text() if self.path and self.path.exists() else ""
        self.rows = read_rows(self.path) if self.path and text else []
        self.separator = "\n" if text and not text.endswith("\n") else ""

    def add(self, row: Row) -> None:
        """Keep a row and write it."""
        self.rows.append(row)
        if self.path:
            with self.path.open("a") as file:
                print(self.separator + json.dumps(row), file=file, flush=True)
            self.separator = ""

    def count(self, **wanted: Any) -> int:
        """How many rows have these values."""
        # A value that went through JSON is compared with one that did not.
        text = json.dumps(wanted, sort_keys=True)
        return sum(json.dumps({key: row.get(key) for key in wanted}, sort_keys=True) == text for row in self.rows)


def read_rows(path: Path) -> list[Row]:
    """The rows of a file of JSON lines; a last line that was cut off is left out."""
    rows = []
    for line in path.read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            print(f"{path}: a line that is not whole is left out", file=sys.stderr)
    return rows


class Progress:
    """Says on stderr what was done and how long the rest will take.

    Work comes in kinds with a pace of their own, which is measured; a kind not yet met is taken for the slowest.
    """

    def __init__(self, ahead: Mapping[str, float]) -> None:
        self.ahead, self.done = dict(ahead), defaultdict[str, float](float)
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def of(self, kind: str, work: float, what: str) -> Iterator[None]:
        """A piece of work, timed."""
        started = time.perf_counter()
        yield
        took = time.perf_counter() - started
        self.seconds[kind] += took
        self.done[kind] += work
        print(f"{what}: {took:.1f} s; {self.left()}", file=sys.stderr, flush=True)

    def seconds_left(self) -> float:
        """By the pace so far."""
        paces = {kind: self.seconds[kind] / work for kind, work in self.done.items() if work}
        slowest = max(paces.values())
        return sum(max(0.0, work - self.done[kind]) * paces.get(kind, slowest) for kind, work in self.ahead.items())

    def left(self) -> str:
        """The time left in words."""
        minutes, seconds = divmod(round(self.seconds_left()), 60)
        return f"about {minutes} min {seconds:02d} s left" if minutes or seconds else "done"


def give_memory_back() -> None:
    """Return what this process has freed to the system, where the C library is glibc."""
    gc.collect()
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


def resident(field: str, pid: int | str = "self") -> int:
    """VmRSS, or VmHWM (the most since `forget_peak`), of a process in bytes; Linux only."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def forget_peak(pid: int | str = "self") -> None:
    """The highest memory of a process is counted afresh from here; Linux only."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
