"""What is wrong with a set of problems: golds that cannot be graded, solutions that contradict them, prompts that are
too long, leaks from the test split, problems that are too easy or too hard; and whether that is too much to go on.

`peerwise data check` and a run call the same functions. Every problem is counted once, under the first reason that
applies. Grading and tokens are functions that are handed in: this file knows no reward and no model.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from peerwise.errors import DataError, RequestError
from peerwise.records import Problem
from peerwise.tasks import splits
from peerwise.tasks.formats import MALFORMED, MISENCODED
from peerwise.tasks.prompts import Template
from peerwise.tasks.rows import MISSING, STATEMENT_ADDED
from peerwise.tasks.source import ProblemSet

UNEQUAL = "unequal"
UNVERIFIABLE = "unverifiable"
DISAGREEING = "disagreeing"
OVERLAP = "overlap"
NEAR = "near-overlap"
TOO_EASY = "too-easy"
TOO_HARD = "too-hard"

REASONS: dict[str, str] = {
    MISENCODED: "bytes that are not in the file's encoding",
    MALFORMED: "not a row, or a column of the wrong kind",
    MISSING: "a column is missing or empty",
    splits.CONTRADICTORY: "same question as another row, different gold",
    splits.DUPLICATE: "same question and gold as an earlier row",
    UNEQUAL: "the gold, stated as an answer, is not judged right",
    UNVERIFIABLE: "no rule can compare the gold (prose, or too long)",
    DISAGREEING: "the solution's own answer is not the gold",
    splits.OVERLONG: "the prompt is longer than the limit",
    OVERLAP: "the question is in the test split too",
    NEAR: "shares a long run of words with a test question",
    TOO_EASY: "pass rate at or above the upper bound",
    TOO_HARD: "pass rate at or below the lower bound",
}
"""Reason -> what it means, in the order they are looked for. Named tasks count reasons of their own besides."""

UNREADABLE = frozenset((MISENCODED, MALFORMED, MISSING))
_NO_FAULT = frozenset(
    (splits.DUPLICATE, splits.OVERLONG, splits.HELD_OUT, splits.LIMIT, OVERLAP, NEAR, TOO_EASY, TOO_HARD)
)
"""Left out although nothing is wrong with the row itself."""
MOST_FAULTY = 0.05
"""Share of faulty rows above which the wrong column, format or encoding is likelier than a few bad rows."""

GRAM = 13
"""Words in a row that two questions share only when one was taken from the other (Brown et al. 2020, appendix C)."""
CJK_GRAM = 19
"""The same for Chinese characters: the 250 MGSM problems take 1.46 times as many of them as English words."""
COMMON = 10
"""A run of words in more questions than this is boilerplate and shows no overlap (Brown et al. 2020, appendix C)."""
_FIGURE = re.compile(r"-?\d+(?:\.\d+)?")
_SEPARATOR = re.compile(r"(?<=\d)[ ,](?=\d{3}(?!\d))")
_TOKEN = re.compile(f"[{splits.CJK}]|[^\\W{splits.CJK}]+")


class Judge(Protocol):
    """Whether the final answer of a text equals a gold, and that answer (None: there is none)."""

    def __call__(self, text: str, gold: str, *, last_number: bool = True) -> tuple[bool, str | None]: ...


@dataclass(frozen=True, slots=True)
class PassRates:
    """Which problems are worth sampling, by how often they were solved before.

    Example:
        PassRates("pass_rate", low=0.0, high=0.9)
    """

    column: str
    low: float = 0.0
    """Too hard at or below."""
    high: float = 1.0
    """Too easy at or above."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grading:
    """How golds are judged."""

    template: Template
    """The form in which an answer is stated."""
    judge: Judge
    verifiable: Callable[[Problem], bool]


def graded(problems: ProblemSet, grading: Grading, *, solutions: bool = True) -> ProblemSet:
    """The problems whose gold can be graded and, with `solutions`, whose solution comes to it if there is one."""
    problems = _only(problems, lambda p: _equals_itself(p, grading), UNEQUAL)
    problems = _only(problems, grading.verifiable, UNVERIFIABLE)
    if not solutions:
        return problems
    found = {id(p): stated for p in problems.problems if (stated := _other_answer(p, grading)) is not None}
    kept = tuple(p for p in problems.problems if id(p) not in found)
    return problems.without(kept, DISAGREEING, lambda p: f"gold {p.answer[:60]!r}, solution says {found[id(p)][:60]!r}")


def _only(problems: ProblemSet, holds: Callable[[Problem], bool], reason: str) -> ProblemSet:
    return problems.without(tuple(p for p in problems.problems if holds(p)), reason)


def _equals_itself(problem: Problem, grading: Grading) -> bool:
    return grading.judge(grading.template.state(problem.answer), problem.answer)[0]


def _other_answer(problem: Problem, grading: Grading) -> str | None:
    """The answer that the solution comes to when it is not the gold.

    The statement that was appended on loading is not looked at, and a solution whose last number is the gold agrees
    whatever else it states. One that states no answer disagrees only when the gold stands nowhere in it.
    """
    if not problem.solution:
        return None
    added = grading.template.state(problem.answer) if problem.meta.get(STATEMENT_ADDED) else ""
    text = problem.solution.removesuffix(added)
    plain, gold = _SEPARATOR.sub("", text), _SEPARATOR.sub("", problem.answer)
    if _FIGURE.findall(plain)[-1:] == [gold]:
        return None
    right, answer = grading.judge(text, problem.answer, last_number=False)
    if answer is None and not re.search(rf"(?<![\d.]){re.escape(gold)}(?!\d)", f"{text}\n{plain}"):
        right, answer = grading.judge(text, problem.answer, last_number=True)
    return None if right else answer


def by_pass_rate(problems: ProblemSet, rates: PassRates) -> ProblemSet:
    """The problems whose pass rate lies between the bounds.

    Raises RequestError when no problem has the column; a value that is no number from 0 to 1 is malformed.
    """
    if problems.problems and not any(rates.column in p.meta for p in problems.problems):
        found = sorted({key for p in problems.problems for key in p.meta} - {"line", STATEMENT_ADDED})
        raise RequestError(f"no column {rates.column!r} with pass rates; found: {', '.join(found) or 'none'}")
    values = {id(p): _rate(p.meta.get(rates.column)) for p in problems.problems}

    def note(problem: Problem) -> str:
        return f"pass rate {problem.meta.get(rates.column)!r}"

    kept = tuple(p for p in problems.problems if 0 <= values[id(p)] <= 1)
    problems = problems.without(kept, MALFORMED, lambda p: f"{note(p)}, expected a number from 0 to 1")
    easy = tuple(p for p in problems.problems if values[id(p)] < rates.high)
    problems = problems.without(easy, TOO_EASY, note)
    return problems.without(tuple(p for p in easy if values[id(p)] > rates.low), TOO_HARD, note)


def _rate(value: object) -> float:
    try:
        return float(value) if isinstance(value, str | int | float) else math.nan
    except ValueError:
        return math.nan


def without_near(problems: ProblemSet, test: Iterable[Problem]) -> ProblemSet:
    """`problems` without those that share GRAM words, or CJK_GRAM Chinese characters, in a row with a test question.

    Shorter questions overlap only when they are equal, which `splits.without_questions` sees.
    """
    grams = [(p, _grams(p)) for p in {splits.question_key(p): p for p in test}.values()]
    known = {gram: p for p, found in grams for gram in found}
    often = Counter(gram for _, found in grams for gram in found)
    shared = {id(p): found for p in problems.problems if (found := known.keys() & _grams(p))}
    often.update(gram for found in shared.values() for gram in found)
    near = {
        key: known[min(rare)] for key, found in shared.items() if (rare := [g for g in found if often[g] <= COMMON])
    }
    kept = tuple(p for p in problems.problems if id(p) not in near)
    return problems.without(kept, NEAR, lambda p: f"like {near[id(p)].id}")


def _grams(problem: Problem) -> set[int]:
    """Hashes of every run of words, or of characters where these are the greater part."""
    tokens = _TOKEN.findall(splits.normalised(splits.question_text(problem)))
    characters = sum(1 for token in tokens if len(token) == 1 and not token.isascii())
    size = CJK_GRAM if 2 * characters > len(tokens) else GRAM
    return {hash(tuple(tokens[start : start + size])) for start in range(len(tokens) - size + 1)}


def faulty(problems: ProblemSet, reasons: Iterable[str] | None = None) -> dict[str, int]:
    """Reason -> count of the rows with a fault of their own; None takes every such reason."""
    chosen = problems.dropped.keys() - _NO_FAULT if reasons is None else set(reasons)
    return {reason: count for reason, count in problems.dropped.items() if reason in chosen}


def refuse_above(
    name: str, problems: ProblemSet, *, share: float = MOST_FAULTY, reasons: Iterable[str] | None = None
) -> None:
    """Raise DataError when more than `share` of all rows are faulty, with the first examples of each reason."""
    found = faulty(problems, reasons)
    if sum(found.values()) <= share * problems.rows:
        return
    shown = "; ".join(f"{count} {reason} ({_shown(problems, reason)})" for reason, count in found.items())
    raise DataError(
        f"{name}: {sum(found.values())} of {problems.rows} rows cannot be used, more than {share:.0%}: {shown}. "
        "`peerwise data check` lists what is wrong, and --fix writes a clean file"
    )


def _shown(problems: ProblemSet, reason: str) -> str:
    examples = problems.examples.get(reason, ())
    first = examples[0].note if examples else ""
    more = ", ".join(str(example.line) for example in examples[1:] if example.line is not None)
    return f"{first}; also line {more}" if more else first


def summary(problems: ProblemSet) -> str:
    """One line: how many problems there are and what was left out, by reason."""
    left_out = ", ".join(f"{count} {reason}" for reason, count in problems.dropped.items() if count)
    return f"{len(problems.problems)} of {problems.rows} rows" + (f"; left out: {left_out}" if left_out else "")
