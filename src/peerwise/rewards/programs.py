"""From a completion that holds a program to the share of the problem's tests that it passes.

Code is taken from the last complete fence. Knows how a program's tests are written down in `Problem.answer`, and
nothing of how programs are run.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Sequence
from typing import Any

from peerwise.errors import RewardError
from peerwise.records import Completion, Problem, Score
from peerwise.sandbox.programs import DEADLINE_S, Outcome, Program, run_all
from peerwise.sandbox.walls import SandboxFailed

NO_PROGRAM = -0.5
"""The total of a completion without code, or with code that does not compile."""

_FENCE = re.compile(r"[ \t]{0,40}(`{3,40}|~{3,40})[ \t]{0,8}([^\s`]{0,40})[^`]{0,200}$")
_PYTHON = frozenset({"", "python", "python3", "py", "py3"})
_BEGINNING = re.compile(r"^(?:def|async def|class|import|from|@\w)\b", re.MULTILINE)
_DEFINITION = re.compile(r"^(?:def|async def|class) ", re.MULTILINE)


def programs(
    samples: Sequence[tuple[Problem, Completion]], *, all_or_nothing: bool = False, deadline_s: float = DEADLINE_S
) -> list[Score]:
    """A score for each sample, in order: the share of tests passed (`all_or_nothing`: 1 for all of them, else 0), -0.5
    for code that does not compile and for none. Parts: `correct`, `tests` (the share; None where nothing ran) and
    `compiles`. Programs run side by side, each for at most `deadline_s` seconds.

    Raises RewardError when a problem has no tests or the sandbox itself fails.
    """
    found = [(problem, code_of(completion.text)) for problem, completion in samples]
    runnable = [_program(problem, code) for problem, code in found if code is not None]
    try:
        outcomes = iter(run_all(runnable, deadline_s=deadline_s))
    except SandboxFailed as error:
        raise RewardError(f"reward programs: {error}") from error
    return [_score(code, None if code is None else next(outcomes), all_or_nothing) for _, code in found]


def has_tests(problem: Problem) -> bool:
    """Whether the problem's gold is a set of tests, as the tasks of programs write it."""
    return _tests(problem) is not None


def code_of(text: str) -> str | None:
    """The program in a completion, None when there is none.

    Reasoning closed with </think> is not looked at. Of complete fences marked as Python or not marked, the last one is
    taken, its common indentation removed. A fence that was opened and never closed is not code, and hides nothing
    before it. Text without any fence is taken from its first line that begins with def, class, import, from or a
    decorator, if it defines a function or class.
    """
    text = text.rpartition("</think>")[2].partition("<think>")[0].replace("\r\n", "\n")
    code, fenced = _last_fence(text)
    if fenced:
        return code
    beginning = _BEGINNING.search(text)
    return text[beginning.start() :] if beginning and _DEFINITION.search(text) else None


def _last_fence(text: str) -> tuple[str | None, bool]:
    """(content of the last complete fence of Python, whether there is any fence)."""
    code, marker, python, begun, any_fence = None, "", False, 0, False
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if not marker:
            if opening := _FENCE.match(line):
                marker, begun, any_fence = opening[1], number + 1, True
                python = opening[2].strip("{}.").casefold() in _PYTHON
        elif (closing := line.strip()).startswith(marker) and not closing.strip(marker[0]):
            if python:
                code = textwrap.dedent("\n".join(lines[begun:number]))
            marker = ""
    return (code if code and code.strip() else None), any_fence


def _tests(problem: Problem) -> dict[str, Any] | None:
    try:
        tests = json.loads(problem.answer)
    except (ValueError, RecursionError):
        return None
    if not isinstance(tests, dict) or tests.keys() != {"prelude", "names", "tests"} or not tests["tests"]:
        return None
    lists = isinstance(tests["names"], list) and isinstance(tests["tests"], list)
    if not lists or not all(isinstance(text, str) for text in (tests["prelude"], *tests["names"], *tests["tests"])):
        return None
    return tests


def _program(problem: Problem, code: str) -> Program:
    tests = _tests(problem)
    if tests is None:
        raise RewardError(
            f"reward programs: problem {problem.id} has no tests; use it with task = 'mbpp', 'humaneval' or 'programs'"
        )
    return Program(source=code, names=tuple(tests["names"]), tests=tuple(tests["tests"]), prelude=tests["prelude"])


def _score(code: str | None, outcome: Outcome | None, all_or_nothing: bool) -> Score:
    if outcome is None or not outcome.compiled:
        return Score(
            total=NO_PROGRAM,
            correct=False,
            parts={"correct": 0.0, "tests": None, "compiles": 0.0},
            extracted=code,
            rule="none" if code is None else "program, compiling",
        )
    share = sum(outcome.passed) / len(outcome.passed)
    correct = all(outcome.passed)
    return Score(
        total=float(correct) if all_or_nothing else share,
        correct=correct,
        parts={"correct": float(correct), "tests": share, "compiles": 1.0},
        extracted=code,
        rule="program, tests",
    )
