"""Pins curves, bars and trends of a few characters, on hand-worked values."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peerwise.metrics.draw import arrow, bar, sparkline, trend

NUMBERS = st.lists(st.floats(-1e6, 1e6), max_size=60)


def test_a_curve_goes_from_the_lowest_to_the_highest_of_its_own_values() -> None:
    # Levels are round(7 * (v - low) / span), halves up: 0, 1.75, 3.5, 5.25 and 7 give 0, 2, 4, 5, 7.
    assert sparkline([10, 11, 12, 13, 14], 9) == "▁▃▅▆█"
    assert sparkline([10, 11, 12, 13, 14], 9, ascii_only=True) == "_-+*#"


def test_more_values_than_room_are_averaged_in_neighbours() -> None:
    # Two bins: (0 + 0 + 3) / 3 = 1 and (9 + 9 + 9) / 3 = 9; three bins: 0, 6, 9 at 0, 4.67 and 7 of 7.
    assert sparkline([0, 0, 3, 9, 9, 9], 2) == "▁█"
    assert sparkline([0, 0, 3, 9, 9, 9], 3) == "▁▆█"


def test_equal_values_lie_at_the_bottom_and_nothing_draws_nothing() -> None:
    assert sparkline([5, 5, 5], 9) == "▁▁▁"
    assert sparkline([math.nan, 1.0, math.inf, 2.0], 9) == "▁█"
    assert sparkline([], 9) == sparkline([math.nan], 9) == sparkline([1.0], 0) == ""


@given(NUMBERS, st.integers(1, 80))
def test_a_curve_fits_its_width(values: list[float], width: int) -> None:
    assert len(sparkline(values, width)) == min(width, len(values))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], 0),
        ([1.0], 0),
        ([1.0, 2.0], 1),
        ([2.0, 1.0], -1),
        ([1.0] * 10, 0),
        ([1.0] * 5 + [1.01] * 5, 1),
        # Means 3 and 3.4, variances 2 and 2.24: the error is sqrt(4.24 / 5) = 0.92, so 0.4 may be noise.
        ([1, 2, 3, 4, 5, 1, 3, 4, 4, 5], 0),
        # Means 3 and 7: 4 is more than twice sqrt(4 / 5) = 0.89.
        ([1, 2, 3, 4, 5, 5, 6, 7, 8, 9], 1),
        # Only the last ten count.
        ([100.0] * 5 + [1, 2, 3, 4, 5, 5, 6, 7, 8, 9], 1),
    ],
)
def test_a_trend_is_told_beyond_twice_its_error(values: list[float], expected: int) -> None:
    assert trend(values) == expected


@given(NUMBERS)
def test_the_trend_of_what_is_turned_upside_down_is_the_opposite(values: list[float]) -> None:
    assert trend([-value for value in values]) == -trend(values)


def test_arrows_and_bars_have_plain_forms() -> None:
    assert [arrow(d) for d in (-1, 0, 1)] == ["↓", "→", "↑"]
    assert [arrow(d, ascii_only=True) for d in (-1, 0, 1)] == ["v", "=", "^"]
    assert bar(1, 4, 8) == "━━──────"
    assert bar(1, 4, 8, ascii_only=True) == "##------"


@given(st.integers(0, 2000), st.integers(0, 1000), st.integers(0, 60))
def test_a_bar_has_its_width_and_is_full_only_when_all_is_done(done: int, total: int, width: int) -> None:
    drawn = bar(done, total, width)
    assert len(drawn) == width
    assert ("─" not in drawn) == ((total > 0 and done >= total) or width == 0)
