"""Runs programs against their tests, side by side, and says which tests passed.

Each program and its tests are two processes behind the `walls`: the tests hold the expected values, the program only
answers calls (`inside.wire`). A test has passed when the tests' process says so through a pipe of its own. Knows
nothing of rewards or of where programs come from.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

from peerwise.sandbox.walls import STARTUP_S, Process, SandboxFailed, readable, walls

DEADLINE_S = 10.0
"""Seconds for one program: running it and all of its tests."""
LONGEST_REPORT = 2**20

Ending = Literal["finished", "deadline", "died"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program and what it is to pass.

    Example:
        Program(source="def double(x): return 2 * x", names=("double",), tests=("assert double(2) == 4",))
    """

    source: str
    names: tuple[str, ...]
    """The globals of the program that its tests may use."""
    tests: tuple[str, ...]
    """Python, each a test that passes when it runs to its end; run in order in one namespace."""
    prelude: str = ""
    """Python that the program and its tests both begin with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one program."""

    compiled: bool
    passed: tuple[bool, ...]
    """One for each test; a test that was not reached has not passed."""
    ending: Ending
    """"finished": by the tests' end marker; "deadline": killed; "died": the tests' process ended without a marker."""


def run_all(
    programs: Sequence[Program], *, deadline_s: float = DEADLINE_S, workers: int | None = None
) -> list[Outcome]:
    """The outcomes in the order of `programs`, `workers` (None: one for each core) at a time.

    Raises SandboxFailed when processes cannot be started or ended; nothing is left running in any case.
    """
    walls()
    with ThreadPoolExecutor(workers or os.cpu_count() or 1) as pool:
        return list(pool.map(lambda program: run(program, deadline_s=deadline_s), programs))


def run(program: Program, *, deadline_s: float = DEADLINE_S) -> Outcome:
    """The outcome of one program; usable from any thread. Raises SandboxFailed."""
    with contextlib.ExitStack() as stack:
        report = _start(program, deadline_s, stack)
        if next(report, {}).get("ready") is not True:
            raise SandboxFailed("the processes for a program did not start; see peerwise.sandbox.walls.walls().lines()")
        return _follow(report, len(program.tests))


def _start(program: Program, deadline_s: float, stack: contextlib.ExitStack) -> Iterator[dict[str, Any]]:
    """Start the two processes, both ended with `stack`, and hand over the program; the report's lines."""
    choice, cpu_s = walls(), int(deadline_s) + 1
    asking, ask = os.pipe()
    report, reporting = os.pipe()
    calls, call = os.pipe()
    answers, answer = os.pipe()
    stack.callback(os.close, report)
    stack.callback(os.close, ask)
    # Our copies of their ends are closed before anything is written: a pipe whose reader died must not block us.
    with contextlib.ExitStack() as theirs:
        for descriptor in (asking, reporting, calls, call, answers, answer):
            theirs.callback(os.close, descriptor)
        tester = Process("tester", [asking, reporting, answers, call], cpu_s=cpu_s, choice=choice)
        stack.callback(tester.end)
        candidate = Process("candidate", [calls, answer], cpu_s=cpu_s, choice=choice)
        stack.callback(candidate.end)
    _hand_over(ask, program)
    return _lines(report, deadline_s)


def _hand_over(ask: int, program: Program) -> None:
    asked = {
        "source": program.source,
        "names": program.names,
        "tests": program.tests,
        "prelude": program.prelude,
    }
    data = memoryview(json.dumps(asked).encode() + b"\n")
    with contextlib.suppress(BrokenPipeError):  # it did not start, which the missing report says
        while data:
            data = data[os.write(ask, data) :]


def _lines(report: int, deadline_s: float) -> Iterator[dict[str, Any]]:
    """The report's lines; {"deadline": True} once the time after the first of them is over."""
    buffer, end = b"", time.monotonic() + STARTUP_S
    seen = 0
    while seen < LONGEST_REPORT:
        ready = readable(report, end - time.monotonic())
        chunk = os.read(report, 65536) if ready else b""
        if not ready:
            yield {"deadline": True}
        if not chunk:
            return
        if not seen:
            end = time.monotonic() + deadline_s
        seen += len(chunk)
        *lines, buffer = (buffer + chunk).split(b"\n")
        yield from map(json.loads, lines)


def _follow(report: Iterator[dict[str, Any]], tests: int) -> Outcome:
    compiled, passed = False, list[bool]()
    ending: Ending = "died"
    for line in report:
        if "compiled" in line:
            compiled = line["compiled"] is True
        elif "passed" in line:
            passed.append(line["passed"] is True)
        else:
            ending = "finished" if "end" in line else "deadline"
            break
    passed += [False] * (tests - len(passed))
    return Outcome(compiled=compiled, passed=tuple(passed), ending=ending)
