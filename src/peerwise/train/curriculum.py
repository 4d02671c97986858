"""Which problems of the stream a step meets. The others are passed over, and come again in the next epoch.

Knows problems and how often they were answered right; knows nothing of models or updates.
"""

from __future__ import annotations

import contextlib
import math
import random
import re
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from peerwise.errors import DataError
from peerwise.recipe.schema import Curriculum as Settings
from peerwise.records import Group, Problem

MEASURED = "measured"
_NUMBER = re.compile(r"(?:(?<!\w)[-+])?(?:\d+(?:\.\d+)?|\.\d+)")


class Curriculum(Protocol):
    """Decides about one problem at one place in the stream."""

    def admits(self, problem: Problem, place: int, step: int) -> bool:
        """Whether the problem is met at this step of the stage, counted from 0. The same answer in a resumed run."""

    def observe(self, groups: Sequence[Group]) -> None:
        """What a step sampled."""

    def state(self) -> dict[str, Any]:
        """What a resumed run needs to know, as plain values."""

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`."""


def curriculum(settings: Settings, problems: Sequence[Problem], *, steps: int, seed: int) -> Curriculum | None:
    """The curriculum of a stage of `steps` steps; None where every problem is always met.

    Raises:
        DataError: the column that says how hard a problem is does not say it of every problem.
    """
    if settings.by is None:
        return None
    if settings.by == MEASURED:
        return ByPassRate(settings.floor, seed=seed)
    sign = 1.0 if settings.easy == "low" else -1.0
    hardness = [sign * _difficulty(problem, settings.by) for problem in problems]
    return ByColumn(settings, sorted(hardness), sign=sign, steps=steps)


class ByColumn:
    """Easy problems first: a share of the problems that grows on a line until all of them are met.

    Problems that are as hard as the last one of that share are met too, so a level is never cut in two.
    """

    def __init__(self, settings: Settings, hardness: Sequence[float], *, sign: float, steps: int) -> None:
        assert settings.by is not None
        self.column, self.start, self.sign = settings.by, settings.start, sign
        self.hardness = hardness
        self.until = settings.until * steps

    def admits(self, problem: Problem, place: int, step: int) -> bool:
        """Whether the problem is among the easiest that are open."""
        return self.sign * _difficulty(problem, self.column) <= self._hardest(step)

    def _hardest(self, step: int) -> float:
        share = min(1.0, self.start + (1 - self.start) * step / self.until)
        return self.hardness[max(1, math.ceil(share * len(self.hardness) - 1e-9)) - 1]

    def observe(self, groups: Sequence[Group]) -> None:
        """Difficulty is given."""

    def state(self) -> dict[str, Any]:
        """Nothing: the step says it all."""
        return {}

    def load(self, state: Mapping[str, Any]) -> None:
        """Nothing to load."""


class ByPassRate:
    """Problems that are sometimes right first: one with pass rate p when last sampled is met with chance 4 p (1 - p).

    That is the variance of its reward, as a share of the largest (Foster et al. 2025, "Learning to reason at the
    frontier of learnability", sample by p (1 - p)). Nobody is lost: the chance is never below `floor`, and a problem
    not sampled yet is always met.
    """

    def __init__(self, floor: float, *, seed: int) -> None:
        self.floor, self.seed = floor, seed
        self.rates: dict[str, float] = {}

    def admits(self, problem: Problem, place: int, step: int) -> bool:
        """Whether the problem is met at this place of the stream."""
        rate = self.rates.get(_key(problem), 0.5)
        chance = max(self.floor, 4 * rate * (1 - rate))
        return random.Random(f"{self.seed}/curriculum/{place}").random() < chance

    def observe(self, groups: Sequence[Group]) -> None:
        """Remember the share of right answers of each group, those whose reward failed left out."""
        for group in groups:
            judged = [score.correct for score in group.scores if score.failed is None]
            if judged:
                self.rates[_key(group.problem)] = sum(judged) / len(judged)

    def state(self) -> dict[str, Any]:
        """The pass rates by problem."""
        return dict(self.rates)

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`."""
        self.rates = dict(state)


def _key(problem: Problem) -> str:
    return f"{problem.task}:{problem.id}"


def _difficulty(problem: Problem, column: str) -> float:
    """The number in a column of the problem's row: a number, or text with exactly one in it, such as "Level 3"."""
    value = problem.meta.get(column)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    found: list[Any] = [value] if number else _NUMBER.findall(value) if isinstance(value, str) else []
    with contextlib.suppress(OverflowError):
        if len(found) == 1 and math.isfinite(float(found[0])):
            return float(found[0])
    columns = ", ".join(map(str, problem.meta)) or "none"
    raise DataError(
        f"curriculum.by = {column!r}: problem {problem.id} says {reprlib.repr(value)} there, expected one number "
        f"(columns of this problem: {columns}); name another column or set curriculum.by = {MEASURED!r}"
    )
