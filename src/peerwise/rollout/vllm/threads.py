"""Calls that wait for somebody else, side by side. Knows nothing of what they do."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def side_by_side(jobs: Sequence[Callable[[], T]], workers: int) -> Iterator[tuple[int, T]]:
    """(index, result) of every job as they end, at most `workers` of them at one time.

    The first error ends it: jobs that have not begun are left out, those that run are not waited for (their threads
    do not keep the process alive).
    """
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    ended: queue.SimpleQueue[tuple[int, T | None, BaseException | None]] = queue.SimpleQueue()
    for index in range(len(jobs)):
        waiting.put(index)
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            try:
                index = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                ended.put((index, jobs[index](), None))
            except BaseException as error:
                over.set()
                ended.put((index, None, error))

    for _ in range(min(workers, len(jobs))):
        threading.Thread(target=work, daemon=True).start()
    try:
        for _ in jobs:
            index, result, error = ended.get()
            if error is not None:
                raise error
            yield index, result  # type: ignore[misc]
    finally:
        over.set()
