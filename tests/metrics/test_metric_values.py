"""Pins how measurements of one key combine: sums and counts are kept apart until the end, and nothing is guessed."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peerwise.metrics.value import Last, Max, Mean, Metrics, Min, Sum

NUMBERS = st.integers(-1000, 1000).map(float)
PARTS = st.lists(st.lists(NUMBERS, min_size=0, max_size=5), min_size=1, max_size=6)


def test_one_item_of_1_and_nine_items_of_0_have_mean_one_tenth_and_not_one_half() -> None:
    # (1 + 0) / (1 + 9) = 0.1; the mean of the means 1/1 and 0/9 would be 0.5.
    assert (Mean(1, 1) + Mean(0, 9)).value == 0.1


@given(PARTS)
def test_a_mean_over_parts_is_the_mean_over_all_items(parts: list[list[float]]) -> None:
    merged = Mean(0, 0)
    for part in parts:
        merged += Mean(sum(part), len(part))
    items = [item for part in parts for item in part]
    # Integers this small add exactly in float64, so there is no rounding to allow for.
    assert merged.value == (sum(items) / len(items) if items else None)


@given(NUMBERS, NUMBERS)
def test_sum_max_min_and_last_do_what_their_names_say(first: float, second: float) -> None:
    assert (Sum(first) + Sum(second)).value == first + second
    assert (Max(first) + Max(second)).value == sorted([first, second])[1]
    assert (Min(first) + Min(second)).value == sorted([first, second])[0]
    assert (Last(first) + Last(second)).value == second


@pytest.mark.parametrize("kind", [Max, Min])
def test_nan_is_not_lost_in_an_extreme_whichever_side_it_comes_from(kind: type[Max] | type[Min]) -> None:
    assert math.isnan((kind(math.nan) + kind(1.0)).value)  # type: ignore[operator]
    assert math.isnan((kind(1.0) + kind(math.nan)).value)  # type: ignore[operator]


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(ValueError, match="-1 items"):
        Mean(1.0, -1)


def test_measurements_of_a_step_are_combined_by_the_kind_in_the_table() -> None:
    metrics = Metrics()
    metrics.add("length/mean", 30, count=2)
    metrics.add("length/mean", 70, count=2)
    metrics.add("ratio/max", 1.5)
    metrics.add("ratio/max", 1.2)
    metrics.add("time/sampling", 2.0)
    metrics.add("time/sampling", 3.0)
    metrics.add("learning_rate", 2e-5)
    metrics.add("learning_rate", 1e-5)
    # (30 + 70) / (2 + 2) = 25; max(1.5, 1.2); 2 + 3; the later rate.
    assert metrics.resolve() == {
        "length/mean": 25.0,
        "ratio/max": 1.5,
        "time/sampling": 5.0,
        "learning_rate": 1e-5,
    }


def test_a_mean_over_nothing_is_left_out_and_never_nan() -> None:
    metrics = Metrics()
    metrics.add("length/right", 0, count=0)
    metrics.add("length/wrong", 12, count=3)
    assert metrics.resolve() == {"length/wrong": 4.0}


def test_a_key_that_is_not_in_the_table_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(KeyError, match="did you mean 'length/mean'"):
        Metrics().add("lenght/mean", 1.0)
    with pytest.raises(KeyError, match="did you mean 'loss'"):
        Metrics().update({"los": 1.0})


def test_a_count_for_what_is_not_a_mean_is_refused() -> None:
    with pytest.raises(ValueError, match="ratio/max"):
        Metrics().add("ratio/max", 1.0, count=3)


def test_a_typed_value_of_another_kind_than_the_table_says_is_refused() -> None:
    with pytest.raises(TypeError, match="loss takes a Mean"):
        Metrics().update({"loss": Max(1.0)})


def test_merging_two_halves_is_measuring_the_whole() -> None:
    whole, first, second = Metrics(), Metrics(), Metrics()
    for half, value, count in ((first, 1.0, 1), (second, 0.0, 9)):
        for metrics in (half, whole):
            metrics.add("kl/mean", value, count)
            metrics.update({"reward/part/steps": Mean(value, count), "epoch": value})
    first.merge(second)
    assert first.resolve() == whole.resolve() == {"kl/mean": 0.1, "reward/part/steps": 0.1, "epoch": 0.0}
    assert second.resolve()["kl/mean"] == 0.0
