"""Pins generalised advantage estimation and the value loss by numbers worked by hand."""

from __future__ import annotations

import pytest
import torch

from peerwise.algo.advantage import group_advantages
from peerwise.algo.critic import explained_variance, gae, value_loss


def row(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers)


def test_gae_by_hand() -> None:
    # Rewards 0, 0, 1; values 0.5, 0.4, 0.2; discount 0.9, trace 0.5, so a factor of 0.45 a step.
    # d2 = 1 + 0 - 0.2 = 0.8; d1 = 0 + 0.9 * 0.2 - 0.4 = -0.22; d0 = 0.9 * 0.4 - 0.5 = -0.14.
    # A2 = 0.8; A1 = -0.22 + 0.45 * 0.8 = 0.14; A0 = -0.14 + 0.45 * 0.14 = -0.077. R = A + V.
    advantages, returns = gae([row(0, 0, 1)], [row(0.5, 0.4, 0.2)], discount=0.9, trace=0.5)
    assert advantages[0].tolist() == pytest.approx([-0.077, 0.14, 0.8])
    assert returns[0].tolist() == pytest.approx([0.423, 0.54, 1.0])


def test_a_trace_of_one_gives_what_was_earned_minus_what_was_expected() -> None:
    # Without discount: rewards still to come, 0.5 + 1, 0.5 + 1 and 1, minus the values.
    advantages, returns = gae([row(0, 0.5, 1)], [row(0.1, 0.2, 0.3)], discount=1.0, trace=1.0)
    assert advantages[0].tolist() == pytest.approx([1.4, 1.3, 0.7])
    assert returns[0].tolist() == pytest.approx([1.5, 1.5, 1.0])


def test_a_trace_of_zero_trusts_the_next_value() -> None:
    advantages, _ = gae([row(0, 1)], [row(0.5, 0.25)], discount=1.0, trace=0.0)
    assert advantages[0].tolist() == pytest.approx([0.25 - 0.5, 1 - 0.25])


def test_sequences_do_not_see_each_other() -> None:
    alone = gae([row(0, 1)], [row(0.5, 0.25)], discount=0.9, trace=0.9)
    beside = gae([row(3), row(0, 1)], [row(0.7), row(0.5, 0.25)], discount=0.9, trace=0.9)
    assert beside[0][1].tolist() == alone[0][0].tolist()
    assert beside[0][0].tolist() == pytest.approx([2.3])


@pytest.mark.parametrize(
    ("value", "clip", "loss", "slope"),
    [
        # Old value 1, return 2. Unclipped at 1.1: (1.1 - 2)^2 / 2 = 0.405, slope -0.9.
        (1.1, 0.2, 0.405, -0.9),
        # At 1.5 the held value is 1.2: max(0.25, 0.64) / 2 = 0.32, and nothing pulls any more.
        (1.5, 0.2, 0.32, 0.0),
        (1.5, None, 0.125, -0.5),
        # Moved away from the return: max((0.5 - 2)^2, (0.8 - 2)^2) / 2 = 1.125, slope -1.5.
        (0.5, 0.2, 1.125, -1.5),
    ],
)
def test_the_value_loss_and_its_slope_on_each_side_of_the_clip(
    value: float, clip: float | None, loss: float, slope: float
) -> None:
    values = torch.tensor([value], requires_grad=True)
    found = value_loss(values, row(1), row(2), row(1), clip=clip)
    found.backward()
    assert found.item() == pytest.approx(loss)
    assert values.grad is not None
    assert values.grad.tolist() == pytest.approx([slope])


def test_explained_variance_is_one_for_a_perfect_critic_and_zero_for_a_constant() -> None:
    returns = row(1, 2, 3)
    assert explained_variance(returns, returns) == 1.0
    assert explained_variance(row(5, 5, 5), returns) == pytest.approx(0.0)
    # Twice the returns: errors -1, -2, -3 vary as much as the returns do.
    assert explained_variance(2 * returns, returns) == pytest.approx(0.0)
    assert explained_variance(row(1, 2, 3), row(4, 4, 4)) == 0.0


def test_a_critics_advantages_are_not_a_groups() -> None:
    with pytest.raises(ValueError, match="critic"):
        group_advantages(torch.tensor([[1.0, 0.0]]), baseline="critic")
