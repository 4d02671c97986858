"""What the length of an answer costs."""

from __future__ import annotations


def overlong_penalty(length: int, *, longest: int, buffer: int) -> float:
    """0 up to `longest - buffer` tokens, from there falling linearly to -1 at `longest` and beyond.

    Source: DAPO (Yu et al. 2025), eq. 13, "soft overlong punishment".

    >>> [overlong_penalty(n, longest=100, buffer=20) for n in (80, 90, 100)]
    [0.0, -0.5, -1.0]
    """
    return max(-1.0, min(0.0, (longest - buffer - length) / buffer))
