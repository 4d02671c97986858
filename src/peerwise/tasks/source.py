"""What a task is asked for and what it hands back, before splits and duplicates are looked at.

Only the shapes that `base` and the task modules share; no task is known here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol

from peerwise.records import Problem
from peerwise.tasks.prompts import Template

EXAMPLES = 5
"""How many of the rows left out for one reason are remembered: the first ones."""


@dataclass(frozen=True, slots=True)
class Example:
    """One row that was left out.

    Example:
        Example(13, "not JSON (Expecting value: line 1 column 1 (char 0)); expected one object a line")
    """

    line: int | None
    """Line of the file, counted from 1 (of parquet and hub data the row); None for a problem that was generated."""
    note: str
    """What is wrong with it, or what it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemSet:
    """Problems and what was left out on the way to them.

    Example:
        ProblemSet(problems=(problem,), dropped={"duplicate": 2}, examples={"duplicate": (Example(7, "as line 3"),)})
    """

    problems: tuple[Problem, ...]
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Reason -> how many problems were left out for it; reasons that never occurred are absent."""
    examples: Mapping[str, tuple[Example, ...]] = field(default_factory=dict)
    """Reason -> the first EXAMPLES that were left out for it."""

    @property
    def rows(self) -> int:
        """How many there were before anything was left out."""
        return len(self.problems) + sum(self.dropped.values())

    def without(
        self, problems: tuple[Problem, ...], reason: str, note: Callable[[Problem], str] | None = None
    ) -> ProblemSet:
        """The set reduced to `problems`, a part of its own; the others are counted under `reason`.

        `note` says of a problem why it went; None shows its name and gold.
        """
        count = len(self.problems) - len(problems)
        if not count:
            return self
        kept = set(map(id, problems))
        gone = (p for p in self.problems if id(p) not in kept)
        before = self.examples.get(reason, ())
        shown = (Example(p.meta.get("line"), (note or _named)(p)) for p in islice(gone, EXAMPLES - len(before)))
        return ProblemSet(
            problems=problems,
            dropped={**self.dropped, reason: self.dropped.get(reason, 0) + count},
            examples={**self.examples, reason: (*before, *shown)},
        )


def merged(sets: Iterable[ProblemSet]) -> ProblemSet:
    """The sets one after the other, their counts added up."""
    problems: list[Problem] = []
    dropped: Counter[str] = Counter()
    examples: dict[str, tuple[Example, ...]] = {}
    for part in sets:
        problems += part.problems
        dropped.update(part.dropped)
        for reason, found in part.examples.items():
            examples[reason] = (*examples.get(reason, ()), *found)[:EXAMPLES]
    return ProblemSet(problems=tuple(problems), dropped=dict(dropped), examples=examples)


def _named(problem: Problem) -> str:
    return f"{problem.id}, gold {problem.answer[:60]!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Which problems are wanted; the fields are those of `base.load_task`."""

    path: str | None
    split: str
    eval_split: str | None
    template: Template
    columns: Mapping[str, str]
    params: Mapping[str, Any]
    held_out: int | None
    seed: int
    encoding: str = "utf-8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Everything a task has: what may be trained on and, when the task has one, its own test split."""

    train: ProblemSet
    test: ProblemSet | None
    """None: the held-out problems are to be drawn from `train`."""


class Task(Protocol):
    """A source of problems. Raises RequestError or DataError for a request it cannot serve."""

    def __call__(self, request: Request) -> Pool: ...
