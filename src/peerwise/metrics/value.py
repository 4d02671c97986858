"""Typed metric values that stay (sum, count) until they are written, because a mean of means is wrong.

Two values of one kind merge with `+`. Nothing here knows what a metric measures, and nothing is written or shown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from peerwise.metrics.names import Kind, lookup


@dataclass(frozen=True, slots=True)
class Mean:
    """A sum and how many items it is over; for a rate the count may be seconds.

    >>> (Mean(1, 1) + Mean(0, 9)).value
    0.1
    """

    sum: float
    count: float = 1

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError(f"a mean over {self.count} items: the count must be 0 or more")

    def __add__(self, other: Mean) -> Mean:
        return Mean(self.sum + other.sum, self.count + other.count)

    @property
    def value(self) -> float | None:
        """Sum over count; None when there was nothing to take a mean of."""
        return self.sum / self.count if self.count else None


@dataclass(frozen=True, slots=True)
class Sum:
    """A total."""

    total: float

    def __add__(self, other: Sum) -> Sum:
        return Sum(self.total + other.total)

    @property
    def value(self) -> float:
        return self.total


@dataclass(frozen=True, slots=True)
class Max:
    """The largest; NaN once any part was NaN, whatever the order."""

    largest: float

    def __add__(self, other: Max) -> Max:
        return Max(math.nan if _any_nan(self.largest, other.largest) else max(self.largest, other.largest))

    @property
    def value(self) -> float:
        return self.largest


@dataclass(frozen=True, slots=True)
class Min:
    """The smallest; NaN once any part was NaN, whatever the order."""

    smallest: float

    def __add__(self, other: Min) -> Min:
        return Min(math.nan if _any_nan(self.smallest, other.smallest) else min(self.smallest, other.smallest))

    @property
    def value(self) -> float:
        return self.smallest


@dataclass(frozen=True, slots=True)
class Last:
    """The latest: the right side of `+`."""

    latest: float

    def __add__(self, other: Last) -> Last:
        return other

    @property
    def value(self) -> float:
        return self.latest


Value = Mean | Sum | Max | Min | Last

_CLASSES: dict[Kind, type[Value]] = {"mean": Mean, "sum": Sum, "max": Max, "min": Min, "last": Last}


class Metrics:
    """What was measured in one step, by key.

    Example:
        metrics = Metrics()
        metrics.add("length/mean", 130, count=4)  # four completions, 130 tokens together
        metrics.add("ratio/max", 1.7)
        metrics.resolve()  # {"length/mean": 32.5, "ratio/max": 1.7}
    """

    def __init__(self) -> None:
        self._values: dict[str, Value] = {}

    def add(self, key: str, value: float, count: float = 1) -> None:
        """Add a measurement; for a mean `value` is the sum over `count` items, for other kinds count must be 1.

        Raises KeyError when the table of names has no such key, ValueError for a count that makes no sense.
        """
        kind = lookup(key).kind
        if kind == "mean":
            self._merge(key, Mean(float(value), float(count)))
            return
        if count != 1:
            raise ValueError(f"{key} is combined by {kind!r}, which has no count; got count={count}")
        self._merge(key, _CLASSES[kind](float(value)))

    def update(self, values: Mapping[str, float | Value]) -> None:
        """Add several: a bare number counts once, a typed value as it is."""
        for key, value in values.items():
            if isinstance(value, Value):
                self._merge(key, value)
            else:
                self.add(key, value)

    def merge(self, other: Metrics) -> None:
        """Add everything `other` holds; it counts as the later of the two."""
        self.update(other._values)

    def resolve(self) -> dict[str, float]:
        """The numbers to write. A mean over nothing is left out."""
        return {key: value.value for key, value in self._values.items() if value.value is not None}

    def _merge(self, key: str, value: Value) -> None:
        expected = _CLASSES[lookup(key).kind]
        if not isinstance(value, expected):
            raise TypeError(f"{key} takes a {expected.__name__}, got {value}")
        known = self._values.get(key)
        # Both are of the table's kind for this key, which the union of types cannot express.
        self._values[key] = value if known is None else known + value  # type: ignore[operator]


def _any_nan(*numbers: float) -> bool:
    return any(math.isnan(number) for number in numbers)
