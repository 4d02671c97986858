"""Pins the estimates and their intervals by hand-worked numbers and by oracles that share no code with them."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peerwise.evaluate.estimate import bootstrap_difference, maj_at_k, mean_interval, pass_at_k, wilson

Z_95 = 1.959963984540054  # the 97.5 % point of the standard normal, from tables

ROUNDING = 1e-9


def test_wilson_of_8_in_10() -> None:
    # z^2 = 3.841459. centre = (0.8 + 3.841459/20) / (1 + 0.3841459) = 0.99207295 / 1.3841459 = 0.716740
    # half = 1.959964 / 1.3841459 * sqrt(0.8*0.2/10 + 3.841459/400) = 1.416010 * 0.160011 = 0.226577
    assert wilson(8, 10) == pytest.approx((0.4902, 0.9433), abs=5e-5)


def test_wilson_of_0_in_10_starts_at_0_and_has_width() -> None:
    # At 0 successes the upper bound is z^2 / (n + z^2) = 3.841459 / 13.841459 = 0.277533.
    assert wilson(0, 10) == (0.0, pytest.approx(0.277533, abs=1e-6))
    assert wilson(10, 10) == (pytest.approx(1 - 0.277533, abs=1e-6), 1.0)


def test_wilson_at_another_confidence() -> None:
    # z = 1.644854, z^2 = 2.705543, n = 2, share 1/2: centre 1/2,
    # half = 1.644854 / 2.352772 * sqrt(0.125 + 2.705543/16) = 0.699113 * 0.542306 = 0.379133
    assert wilson(1, 2, confidence=0.9) == pytest.approx((0.120867, 0.879133), abs=2e-6)


@given(st.integers(1, 2000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_bounds_are_the_shares_that_lie_z_standard_errors_from_what_was_seen(case: tuple[int, int]) -> None:
    successes, n = case
    low, high = wilson(successes, n)
    assert 0 <= low <= successes / n <= high <= 1
    for bound in (low, high):
        if 0 < bound < 1:
            assert (successes / n - bound) ** 2 == pytest.approx(Z_95**2 * bound * (1 - bound) / n, abs=ROUNDING)
    assert wilson(n - successes, n) == pytest.approx((1 - high, 1 - low), abs=ROUNDING)


@pytest.mark.parametrize(("successes", "n"), [(0, 0), (-1, 5), (6, 5)])
def test_wilson_of_impossible_counts_is_an_error(successes: int, n: int) -> None:
    with pytest.raises(ValueError, match="successes"):
        wilson(successes, n)


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95.0])
def test_wilson_takes_its_confidence_as_a_share(confidence: float) -> None:
    with pytest.raises(ValueError, match="confidence"):
        wilson(1, 2, confidence)


@pytest.mark.parametrize(
    ("n", "c", "k", "expected"),
    [
        (5, 2, 2, 0.7),  # C(3,2) = 3 of C(5,2) = 10 pairs hold no right one: 1 - 3/10
        (4, 1, 1, 0.25),  # k = 1 is the share right
        (4, 1, 4, 1.0),  # all samples hold the right one
        (4, 0, 4, 0.0),
        (3, 2, 2, 1.0),  # two samples cannot both be the one wrong one
        (10, 3, 5, 11 / 12),  # C(7,5) = 21 of C(10,5) = 252: 1 - 1/12
    ],
)
def test_pass_at_k_by_hand(n: int, c: int, k: int, expected: float) -> None:
    assert pass_at_k(n, c, k) == expected


@given(
    st.integers(1, 9).flatmap(lambda n: st.tuples(st.lists(st.booleans(), min_size=n, max_size=n), st.integers(1, n)))
)
def test_pass_at_k_is_the_share_of_subsets_that_hold_a_right_sample(case: tuple[list[bool], int]) -> None:
    right, k = case
    subsets = list(itertools.combinations(right, k))
    assert pass_at_k(len(right), sum(right), k) == sum(map(any, subsets)) / len(subsets)


def test_pass_at_k_stays_exact_where_binomials_pass_the_range_of_floats() -> None:
    # C(9999, 5000) / C(10000, 5000) = (10000 - 5000) / 10000: one half, from integers of 3,000 digits.
    assert pass_at_k(10_000, 1, 5_000) == 0.5


@pytest.mark.parametrize(("n", "c", "k"), [(4, 2, 5), (4, 2, 0), (4, 5, 2), (4, -1, 2), (0, 0, 0)])
def test_pass_at_k_of_more_than_was_sampled_is_an_error(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match="expected"):
        pass_at_k(n, c, k)


@pytest.mark.parametrize(
    ("answers", "right", "expected"),
    [
        (["7", "7", "8"], [True, True, False], 1.0),
        (["7", "8", "8"], [True, False, False], 0.0),
        (["7", "8"], [True, False], 0.5),  # tied one to one: either is drawn
        (["7", "8", "9", None], [True, False, False, False], 1 / 3),  # three tied, one right
        (["7", "7", "8", "8", "9"], [True, True, False, False, False], 0.5),  # 9 has too few votes to tie
        ([None, None, None, "7"], [False, False, False, True], 1.0),  # None never votes
        ([None, None], [False, False], 0.0),
        ([], [], 0.0),
        (["7", "7"], [True, False], 0.5),  # judged differently: half of its votes
    ],
)
def test_maj_at_k_by_hand(answers: list[str | None], right: list[bool], expected: float) -> None:
    assert maj_at_k(answers, right) == expected


def test_maj_at_k_needs_a_verdict_for_every_answer() -> None:
    with pytest.raises(ValueError, match="zip"):
        maj_at_k(["7", "8"], [True])


def test_a_bootstrap_of_two_problems_by_hand() -> None:
    # Differences 1 and 0. A resample has mean 0, 1/2, 1 with chance 1/4, 1/2, 1/4, so the 2.5 % and 97.5 %
    # points are 0 and 1.
    assert bootstrap_difference([False, True], [True, True]) == (0.5, 0.0, 1.0)


def test_a_bootstrap_difference_is_after_minus_before() -> None:
    assert bootstrap_difference([False] * 9, [True] * 9) == (1.0, 1.0, 1.0)
    assert bootstrap_difference([True] * 9, [False] * 9) == (-1.0, -1.0, -1.0)


def test_a_bootstrap_is_paired_so_that_unchanged_problems_have_no_spread() -> None:
    half = [True, False] * 50
    assert bootstrap_difference(half, half) == (0.0, 0.0, 0.0)
    # The same two accuracies on problems that all changed: differences of +1 and -1 by halves have deviation 1, so
    # the standard error is 1 / sqrt(100) and the half width 1.96 * 0.1, in steps of 2 / 100.
    _, low, high = bootstrap_difference(half, half[::-1])
    assert (low, high) == pytest.approx((-0.196, 0.196), abs=0.02)


def binomial_quantile(n: int, p: float, tail: float) -> int:
    cumulative = 0.0
    for successes in range(n + 1):
        cumulative += math.comb(n, successes) * p**successes * (1 - p) ** (n - successes)
        if cumulative >= tail:
            return successes
    return n


@pytest.mark.parametrize(("n", "improved"), [(200, 100), (256, 40), (50, 45)])
def test_a_bootstrap_of_problems_that_only_improve_has_the_quantiles_of_the_binomial(n: int, improved: int) -> None:
    difference, low, high = bootstrap_difference([False] * n, [True] * improved + [False] * (n - improved))
    assert difference == improved / n
    # 10,000 resamples place a quantile to within one step of 1/n.
    assert low == pytest.approx(binomial_quantile(n, improved / n, 0.025) / n, abs=1.01 / n)
    assert high == pytest.approx(binomial_quantile(n, improved / n, 0.975) / n, abs=1.01 / n)


def test_the_same_seed_gives_the_same_interval_and_another_seed_another() -> None:
    values = [index * 0.37 % 1 for index in range(40)]
    assert mean_interval(values, seed=1) == mean_interval(values, seed=1)
    assert mean_interval(values, seed=1) != mean_interval(values, seed=2)


def test_problems_must_be_the_same_before_and_after() -> None:
    with pytest.raises(ValueError, match="2 results before and 1 after"):
        bootstrap_difference([True, False], [True])


@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=1, max_size=30))
def test_an_interval_holds_its_mean_and_stays_within_the_values(values: list[float]) -> None:
    mean, low, high = mean_interval(values, resamples=2000)
    assert mean == pytest.approx(sum(values) / len(values), abs=ROUNDING)
    assert min(values) - ROUNDING <= low <= mean + ROUNDING and mean - ROUNDING <= high <= max(values) + ROUNDING


def test_a_mean_interval_of_continuous_values_is_near_the_normal_one() -> None:
    # 0, 1/100, ..., 1: variance of the 101 values is (100 * 102 / 12) / 100^2 = 0.085, so the standard error is
    # sqrt(0.085 / 101) = 0.02901 and the normal half width 1.96 * 0.02901 = 0.0569.
    mean, low, high = mean_interval([index / 100 for index in range(101)])
    assert mean == pytest.approx(0.5)
    assert (mean - low, high - mean) == pytest.approx((0.0569, 0.0569), abs=0.003)


@pytest.mark.parametrize("values", [[], [math.nan], [0.5, math.inf]])
def test_an_interval_of_no_or_non_finite_values_is_an_error(values: list[float]) -> None:
    with pytest.raises(ValueError, match="finite"):
        mean_interval(values)


def test_an_interval_needs_a_resample() -> None:
    with pytest.raises(ValueError, match="resamples"):
        mean_interval([0.5], resamples=0)
