"""Estimates and their uncertainty from counts and booleans: Wilson, Newcombe, bootstrap, sign test, pass@k, maj@k.

Pure functions of numbers; nothing here knows a model, a task or a file. All intervals are 95 % unless said.
Bad arguments are ValueError: what a user can get wrong is checked where the settings are read.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

_TAILS = (2.5, 97.5)
_RESAMPLES_AT_ONCE = 200


def wilson(successes: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """(low, high) of a share, by Wilson's score interval (Wilson 1927; Brown, Cai and DasGupta 2001, eq. 4).

    Unlike the normal interval it stays inside 0 to 1 and has width at 0 and n successes.

    >>> [round(bound, 4) for bound in wilson(8, 10)]
    [0.4902, 0.9433]
    """
    if not 0 <= successes <= n or n < 1:
        raise ValueError(f"got {successes} successes of {n}; expected 0 <= successes <= n and n >= 1")
    if not 0 < confidence < 1:
        raise ValueError(f"got confidence {confidence}; expected a share between 0 and 1, such as 0.95")
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    share = successes / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    # At the ends one bound is the share itself; rounding may leave it a hair to the wrong side.
    return max(0.0, min(share, centre - half)), min(1.0, max(share, centre + half))


def bootstrap_difference(
    before: Sequence[bool], after: Sequence[bool], *, resamples: int = 10_000, seed: int = 0
) -> tuple[float, float, float]:
    """(difference, low, high) of accuracy after minus before, paired over the same problems.

    Problems are resampled with both their results, so what makes a problem hard cancels (percentile interval, Efron
    and Tibshirani 1993, ch. 13). Raises ValueError when the two are not the same problems by number, or there are none.
    """
    if len(before) != len(after):
        raise ValueError(f"got {len(before)} results before and {len(after)} after; expected the same problems in both")
    return mean_interval([int(b) - int(a) for a, b in zip(before, after, strict=True)], resamples=resamples, seed=seed)


def newcombe_difference(successes: int, n: int, other_successes: int, other_n: int) -> tuple[float, float, float]:
    """(difference, low, high) of the second share minus the first, for two independent samples.

    Source: Newcombe 1998, "Interval estimation for the difference between independent proportions", method 10: Wilson's
    bounds of both, their distances from the shares added in squares.

    >>> [round(value, 4) for value in newcombe_difference(48, 80, 56, 70)]
    [0.2, 0.0524, 0.3339]
    """
    share, other = successes / n, other_successes / other_n
    low, high = wilson(successes, n)
    other_low, other_high = wilson(other_successes, other_n)
    return (
        other - share,
        other - share - math.hypot(other - other_low, high - share),
        other - share + math.hypot(other_high - other, share - low),
    )


def sign_test(gained: int, lost: int) -> float:
    """How likely a split at least as uneven is when gains and losses are equally likely: two-sided, exact.

    >>> sign_test(9, 1)
    0.021484375
    """
    if min(gained, lost) < 0:
        raise ValueError(f"got {gained} gained and {lost} lost; expected counts")
    number, fewer = gained + lost, min(gained, lost)
    tail = sum(math.comb(number, k) for k in range(fewer + 1))
    return float(min(1.0, 2 * tail / 2**number))


def mean_interval(values: Sequence[float], *, resamples: int = 10_000, seed: int = 0) -> tuple[float, float, float]:
    """(mean, low, high) of one value per problem, such as its pass@k, by the percentile bootstrap over problems.

    The bootstrap and not a normal interval: such values are bounded, lumpy and often mostly 0 or 1. It has no width
    when all values are equal; for a plain accuracy use `wilson`. Raises ValueError for no or non-finite values.
    """
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.ndim != 1 or numbers.size == 0 or not np.isfinite(numbers).all():
        raise ValueError(f"got values of shape {numbers.shape}; expected at least one, each a finite number")
    if resamples < 1:
        raise ValueError(f"got {resamples} resamples; expected at least 1")
    distinct, counts = np.unique(numbers, return_counts=True)
    # Drawing n problems with replacement is drawing how often each distinct value comes up.
    rng = np.random.default_rng(seed)
    chunks = (min(_RESAMPLES_AT_ONCE, resamples - start) for start in range(0, resamples, _RESAMPLES_AT_ONCE))
    means = np.concatenate(
        [rng.multinomial(numbers.size, counts / numbers.size, size=chunk) @ distinct for chunk in chunks]
    )
    low, high = np.percentile(means / numbers.size, _TAILS)
    return float(numbers.mean()), float(low), float(high)


def pass_at_k(n: int, c: int, k: int) -> float:
    """Chance that k of n samples, drawn without replacement, hold one of the c right ones (Chen et al. 2021, eq. 1).

    Unbiased, where 1 - (1 - c/n)^k is not. Raises ValueError when k > n: draw more samples.

    >>> pass_at_k(5, 2, 2)
    0.7
    """
    if not 1 <= k <= n:
        raise ValueError(f"got k = {k} with n = {n} samples; expected 1 <= k <= n: draw at least k samples a problem")
    if not 0 <= c <= n:
        raise ValueError(f"got c = {c} right of n = {n} samples; expected 0 <= c <= n")
    subsets = math.comb(n, k)
    return (subsets - math.comb(n - c, k)) / subsets


def maj_at_k(answers: Sequence[str | None], gold_right: Sequence[bool]) -> float:
    """Chance that the majority answer of one problem's k samples is right (Wang et al. 2023, self-consistency).

    `answers` [k] are extracted and normalised, so that equal answers are equal texts; None, no answer, never votes.
    `gold_right` [k] says whether each is right. A tie counts as drawing one of the tied answers at random; an answer
    whose votes were judged differently counts by the share judged right. Without any vote the result is 0.
    """
    right_votes: Counter[str] = Counter()
    votes: Counter[str] = Counter()
    for answer, right in zip(answers, gold_right, strict=True):
        if answer is not None:
            votes[answer] += 1
            right_votes[answer] += right
    if not votes:
        return 0.0
    most = max(votes.values())
    tied = [answer for answer, count in votes.items() if count == most]
    return sum(right_votes[answer] for answer in tied) / (most * len(tied))
