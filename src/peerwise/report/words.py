"""How a report writes numbers and settings. Knows none of them by name."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


def share(value: float | None, bounds: Sequence[float] | None) -> str:
    """A share as per cent with its interval.

    >>> share(0.5, [0.25, 0.75])
    '50.0 % [25.0, 75.0]'
    """
    if value is None:
        return "not known"
    return f"{100 * value:.1f} %" + (f" [{100 * bounds[0]:.1f}, {100 * bounds[1]:.1f}]" if bounds else "")


def points(gain: dict[str, Any]) -> str:
    """A gain in percentage points with its interval and its sign test."""
    return f"{change(gain['difference'], (gain['low'], gain['high']))}, sign test {p_value(gain['p'])}"


def change(difference: float, bounds: Sequence[float]) -> str:
    """A difference of shares in percentage points with its interval.

    >>> change(0.125, (-0.01, 0.25))
    '+12.5 points [-1.0, +25.0]'
    """
    return f"{100 * difference:+.1f} points [{100 * bounds[0]:+.1f}, {100 * bounds[1]:+.1f}]"


def p_value(p: float) -> str:
    """A probability by chance, to three digits."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def setting(value: object) -> str:
    """A setting as a recipe writes it."""
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def duration(seconds: float) -> str:
    """Seconds in the two units that matter."""
    minutes, whole = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {whole:02d} s" if minutes else f"{whole} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
