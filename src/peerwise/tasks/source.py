"""What a task is asked for and what it hands back, before splits and duplicates are looked at.

Only the shapes that `base` and the task modules share; no task is known here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from peerwise.records import Problem
from peerwise.tasks.prompts import Template


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemSet:
    """Problems and what was left out on the way to them.

    Example:
        ProblemSet(problems=(problem,), dropped={"duplicate question": 2})
    """

    problems: tuple[Problem, ...]
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Reason -> how many problems were left out for it; reasons that never occurred are absent."""

    def without(self, problems: tuple[Problem, ...], reason: str) -> ProblemSet:
        """The set reduced to `problems`, the difference counted under `reason`."""
        gone = len(self.problems) - len(problems)
        dropped = {**self.dropped, reason: self.dropped.get(reason, 0) + gone} if gone else self.dropped
        return ProblemSet(problems=problems, dropped=dropped)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Everything a task has: what may be trained on and, when the task has one, its own test split."""

    train: ProblemSet
    test: ProblemSet | None
    """None: the held-out problems are to be drawn from `train`."""


class Task(Protocol):
    """A source of problems. Raises RequestError or DataError for a request it cannot serve."""

    def __call__(self, request: Request) -> Pool: ...
