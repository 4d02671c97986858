"""Advantages and losses of a value network: what PPO has in place of a group to compare with.

Shapes: B sequences of uneven lengths, T tokens of one sequence, M = all their tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def gae(
    rewards: Sequence[Tensor], values: Sequence[Tensor], *, discount: float, trace: float
) -> tuple[list[Tensor], list[Tensor]]:
    """A_t = sum over k of (discount * trace)^k * d_(t+k), d_t = r_t + discount * V_(t+1) - V_t, and R_t = A_t + V_t.

    The answer ends with its last token, cut off or not: there the next value is 0.

    Source: Schulman et al. 2016, "High-dimensional continuous control using generalized advantage estimation", eq. 16.

    Args:
        rewards, values: B times [T]; V_t is the value of the state in which token t is drawn.
    Returns:
        advantages and returns, B times [T] each, float32.
    """
    advantages, returns = [], []
    for reward, value in zip(rewards, values, strict=True):
        following = torch.cat([value[1:], value.new_zeros(1)])
        errors = (reward + discount * following - value).double()
        running = 0.0
        row = torch.empty(len(errors), dtype=torch.float64)
        for t in range(len(errors) - 1, -1, -1):
            running = float(errors[t]) + discount * trace * running
            row[t] = running
        advantages.append(row.float())
        returns.append(row.float() + value.cpu())
    return advantages, returns


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, weights: Tensor, *, clip: float | None) -> Tensor:
    """1/2 * max((V - R)^2, (V held within clip of the old V - R)^2), weighted and summed.

    Source: the clipped value loss of PPO's reference implementation, as in RLHF (Ouyang et al. 2022, appendix C).

    Args:
        values: [M] with gradient; old_values, returns, weights: [M].
        clip: None leaves the clip out.
    """
    error = (values - returns).square()
    if clip is not None:
        held = old_values + (values - old_values).clamp(-clip, clip)
        error = torch.maximum(error, (held - returns).square())
    return 0.5 * (weights * error).sum()


def explained_variance(values: Tensor, returns: Tensor) -> float:
    """1 - var(R - V) / var(R): 1 is a perfect critic, 0 one no better than a constant. 0 when the returns are equal."""
    spread = float(returns.double().var(correction=0))
    return 1 - float((returns - values).double().var(correction=0)) / spread if spread > 0 else 0.0
