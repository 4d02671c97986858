"""Pins what leaving answers out does to advantages: everything is as if they had not been sampled. Worked by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from peerwise.algo.advantage import group_advantages, whitened

YES, NO = True, False
SQRT2 = 2**0.5


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # Counted are 1, 0, 0: mean 1/3, differences 2/3, -1/3, -1/3, mean square 2/9.
        ({"scale": "none"}, [2 / 3, -1 / 3, -1 / 3, 0.0]),
        ({"scale": "group"}, [SQRT2, -SQRT2 / 2, -SQRT2 / 2, 0.0]),
        # Mean of the two others: 0 for the first, 1/2 for the second and third.
        ({"scale": "none", "baseline": "leave_one_out"}, [1.0, -0.5, -0.5, 0.0]),
        ({"scale": "none", "baseline": "none"}, [1.0, 0.0, 0.0, 0.0]),
    ],
)
def test_an_answer_that_is_not_counted_is_in_no_mean_and_has_no_advantage(
    settings: dict[str, Any], expected: list[float]
) -> None:
    rewards, counted = torch.tensor([1.0, 0.0, 0.0, 7.0]), torch.tensor([YES, YES, YES, NO])
    found = group_advantages(rewards, counted=counted, **settings)
    torch.testing.assert_close(found, torch.tensor(expected))


def test_compared_with_the_batch_it_is_in_no_mean_either() -> None:
    # Counted are 1, 0, 0 | 1, 1: mean 3/5; squares 4/25, 9/25, 9/25, 4/25, 4/25 with mean 6/25.
    rewards = torch.tensor([[1.0, 0.0, 0.0], [1.0, 1.0, -9.0]])
    counted = torch.tensor([[YES, YES, YES], [YES, YES, NO]])
    right, wrong = 0.4 / 0.24**0.5, -0.6 / 0.24**0.5
    found = group_advantages(rewards, baseline="batch", scale="batch", counted=counted)
    torch.testing.assert_close(found, torch.tensor([[right, wrong, wrong], [right, right, 0.0]]))


@pytest.mark.parametrize("baseline", ["group", "leave_one_out"])
@pytest.mark.parametrize("counted", [[NO, NO, NO], [NO, YES, NO], [YES, NO, YES]])
def test_where_too_few_are_counted_or_all_counted_are_equal_there_is_no_advantage(
    baseline: Any, counted: list[bool]
) -> None:
    found = group_advantages(torch.tensor([1.0, 0.0, 1.0]), baseline=baseline, counted=torch.tensor(counted))
    assert found.tolist() == [0.0, 0.0, 0.0]


def test_tokens_that_are_not_counted_are_in_neither_mean_nor_deviation() -> None:
    # Counted are 3, 1: mean 2, deviation 1.
    values, counted = torch.tensor([3.0, 50.0, 1.0]), torch.tensor([YES, NO, YES])
    assert whitened(values, centre=True, scale=True, counted=counted).tolist() == [1.0, 0.0, -1.0]
    # Without centring the root mean square of 3 and 1 is the square root of 5.
    found = whitened(values, centre=False, scale=True, counted=counted)
    torch.testing.assert_close(found, torch.tensor([3.0, 0.0, 1.0]) / 5**0.5)


def test_no_token_counted_is_all_zeros() -> None:
    assert whitened(torch.tensor([3.0, 1.0]), centre=True, scale=True, counted=torch.zeros(2).bool()).tolist() == [0, 0]
