"""Calls of a user's function under a time limit: what it returned, or why there is nothing.

A call that overruns is left behind in its thread, which Python cannot end; its result is never read. Coroutines run
side by side on one event loop that lives as long as the caller, so that clients a user keeps open stay usable. Knows
nothing of rewards.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")
TRACEBACK_FRAMES = 10
"""The innermost frames are shown."""
MOST_LINES, WIDEST = 60, 400
"""Lines of a failure, the last ones, and characters of each that are kept: a message may hold a whole batch."""
RESPONSE_S = 1.0
"""An event loop that does nothing for so long is blocked by a coroutine and is given up."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A call that gave nothing."""

    reason: str
    """A few words that can be counted: "raised ValueError"."""
    detail: str
    """What to read when looking for the cause; its last line says it in short."""


class Calls:
    """Calls one function, sync or async, each call with its own arguments and `timeout_s` seconds.

    What is returned is read within the call, so that an object that hangs, raises or changes later does no more harm
    than a function that does.
    """

    def __init__(self, function: Callable[..., Any], timeout_s: float) -> None:
        self._function, self._timeout_s = function, timeout_s
        self._is_async = any(map(inspect.iscoroutinefunction, (function, type(function).__call__)))
        self._loop: asyncio.AbstractEventLoop | None = None

    def results(self, arguments: Sequence[Mapping[str, Any]], read: Callable[[object], T]) -> Iterator[T | Failed]:
        """What `read` makes of each value, or Failed, in the order of `arguments`; coroutines run side by side."""
        if self._is_async:
            yield from self._side_by_side(arguments, read)
        else:
            yield from (self._one(given, read) for given in arguments)

    def _one(self, arguments: Mapping[str, Any], read: Callable[[object], T]) -> T | Failed:
        returned: list[T | Failed] = []

        def work() -> None:
            try:
                returned.append(read(self._function(**arguments)))
            except BaseException as error:  # sys.exit() in a thread would otherwise end it without a word
                returned.append(raised(error))

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(self._timeout_s)
        return returned[0] if returned else self._overran()

    def _side_by_side(self, arguments: Sequence[Mapping[str, Any]], read: Callable[[object], T]) -> list[T | Failed]:
        loop = self._loop = self._loop or _started()
        futures = [asyncio.run_coroutine_threadsafe(self._awaited(given, read), loop) for given in arguments]
        _, late = concurrent.futures.wait(futures, timeout=self._timeout_s)
        for future in late:
            future.cancel()
        if late and not _responds(loop):
            self._loop = None
        return [self._overran() if future in late else future.result() for future in futures]

    async def _awaited(self, arguments: Mapping[str, Any], read: Callable[[object], T]) -> T | Failed:
        try:
            return read(await self._function(**arguments))
        except BaseException as error:
            return raised(error)

    def _overran(self) -> Failed:
        return Failed("timed out", f"TimeoutError: no result within {self._timeout_s:g} s; the call was left behind")


def raised(error: BaseException) -> Failed:
    """An exception that a user's code raised, with the traceback as far as it is theirs."""
    theirs = error.__traceback__.tb_next if error.__traceback__ else None
    lines = traceback.format_exception(type(error), error, theirs, limit=-TRACEBACK_FRAMES)
    kept = "".join(lines).rstrip().splitlines()[-MOST_LINES:]
    return Failed(f"raised {type(error).__name__}", "\n".join(line[:WIDEST] for line in kept))


def _started() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return loop


def _responds(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(RESPONSE_S)
    except concurrent.futures.TimeoutError:
        return False
    return True
