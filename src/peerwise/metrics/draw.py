"""Curves, bars and arrows of a few characters. Pure functions of numbers; knows nothing of runs or terminals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, pvariance

LEVELS, ASCII_LEVELS = "▁▂▃▄▅▆▇█", "_.-=+*%#"
LONGEST_WINDOW = 5
"""Values at the end, and as many before them, that a trend compares."""


def sparkline(values: Sequence[float], width: int, *, ascii_only: bool = False) -> str:
    """A curve of at most `width` characters, each the mean of neighbouring values, from the lowest to the highest.

    Values that are not finite are left out; equal ones are a line at the bottom.

    >>> sparkline([0.0, 0.5, 1.0], 8)
    '▁▅█'
    """
    finite = [value for value in values if math.isfinite(value)]
    if not finite or width < 1:
        return ""
    bins = min(width, len(finite))
    edges = [index * len(finite) // bins for index in range(bins + 1)]
    means = [fmean(finite[start:end]) for start, end in pairwise(edges)]
    levels, low, span = ASCII_LEVELS if ascii_only else LEVELS, min(means), max(means) - min(means)
    # Rounding halves upwards, so that the middle of three is above the middle of the eight levels.
    return "".join(levels[int((mean - low) / span * 7 + 0.5) if span else 0] for mean in means)


def trend(values: Sequence[float]) -> int:
    """1 where the latest values lie above those before them, -1 below, 0 where noise may explain the difference.

    Compares the means of two windows of equal length at the end; a difference counts beyond twice its standard error.
    """
    finite = [value for value in values if math.isfinite(value)]
    length = min(LONGEST_WINDOW, len(finite) // 2)
    if not length:
        return 0
    late, early = finite[-length:], finite[-2 * length : -length]
    difference = fmean(late) - fmean(early)
    error = math.sqrt((pvariance(late) + pvariance(early)) / length)
    return 0 if abs(difference) <= 2 * error else int(math.copysign(1, difference))


def arrow(direction: int, *, ascii_only: bool = False) -> str:
    """The sign of a trend."""
    return {1: "^", -1: "v", 0: "="}[direction] if ascii_only else {1: "↑", -1: "↓", 0: "→"}[direction]


def bar(done: int, total: int, width: int, *, ascii_only: bool = False) -> str:
    """How much of `total` is done, in `width` characters; full only when all of it is.

    >>> bar(1, 2, 4)
    '━━──'
    """
    filled = width * min(done, total) // total if total > 0 else 0
    full, rest = ("#", "-") if ascii_only else ("━", "─")
    return full * filled + rest * (width - filled)
