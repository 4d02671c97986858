"""Whether two evaluations asked the same problems in the same way, and the gain from one to the other by problem.

Works on rows of evals.jsonl as they are found, broken ones included; knows no file and no model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from peerwise.evaluate.estimate import mean_interval, sign_test

Row = Mapping[str, Any]

SAME = ("task", "settings", "split", "n", "samples", "temperature", "max_new_tokens", "stop", "seed")
"""What two records must have in common for their problems to be the same, in the same order, asked in the same way."""


@dataclass(frozen=True, slots=True)
class Gain:
    """Accuracy after minus before over the same problems, as shares; `low` and `high` bound it with 95 %."""

    difference: float
    low: float
    high: float
    gained: int
    lost: int
    p: float
    """Exact two-sided sign test over the problems that changed."""

    @property
    def beyond_chance(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.low > 0 or self.high < 0


def paired_gain(before: Row, after: Row) -> Gain | None:
    """The gain by problem, from the two records' `right`; None when they cannot be compared in pairs.

    The interval is the bootstrap's over problems, as in the run's own words at its end.
    """
    counts = right_of(before), right_of(after)
    if any(before.get(key) != after.get(key) for key in SAME) or len(counts[0]) != len(counts[1]):
        return None
    samples = samples_of(before)
    changes = [(now - then) / samples for then, now in zip(*counts, strict=True)]
    if not changes:
        return None
    mean, low, high = mean_interval(changes)
    gained, lost = sum(change > 0 for change in changes), sum(change < 0 for change in changes)
    return Gain(mean, low, high, gained, lost, sign_test(gained, lost))


def right_of(row: Row) -> list[int]:
    """Right answers by problem; empty where the record does not hold them, or counts that cannot be."""
    right, samples = row.get("right"), samples_of(row)
    if not isinstance(right, list) or not all(isinstance(count, int) and 0 <= count <= samples for count in right):
        return []
    return right


def samples_of(row: Row) -> int:
    """Answers drawn to each problem; 1 where the record does not say."""
    samples = row.get("samples")
    return samples if isinstance(samples, int) and samples > 1 else 1


def number(value: object) -> float | None:
    """The value if it is a finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None
