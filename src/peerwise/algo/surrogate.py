"""What a ratio to the sampling policy is worth: the objectives between which named policy-gradient methods differ.

Each takes log-ratios and advantages of M tokens and gives the objective of each token, to be made large. At a ratio of
1 all of them have the same gradient, A * grad log p (divided by the length where the ratio is a sequence's).

Shapes: M completion tokens laid behind each other, B sequences.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Objective(NamedTuple):
    """[M] the objective with gradient, and where the ratio was too low or too high to be followed any further."""

    value: Tensor
    held_low: Tensor
    held_high: Tensor


def sequence_mean(values: Tensor, lengths: Tensor) -> Tensor:
    """The mean over each sequence, at each of its tokens: values [M], lengths [B] -> [M]."""
    sequence = torch.arange(len(lengths), device=values.device).repeat_interleave(lengths)
    total = torch.zeros(len(lengths), dtype=values.dtype, device=values.device).index_add(0, sequence, values)
    return (total / lengths.clamp(min=1))[sequence]


def clip(
    ratio: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float, dual_clip: float | None = None
) -> Objective:
    """min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A).

    Source: PPO, Schulman et al. 2017, eq. 7; the two sides apart: DAPO, Yu et al. 2025, eq. 10. With a sequence's
    ratio: GSPO, Zheng et al. 2025, eq. 5.

    Args:
        dual_clip: c > 1; for A < 0 the objective is not let below c * A, so that an unlucky ratio of a wrong token
            cannot rule the batch (Ye et al. 2020, eq. 5). None leaves it out.
    """
    value = torch.minimum(ratio * advantages, ratio.clamp(1 - clip_low, 1 + clip_high) * advantages)
    low = (ratio < 1 - clip_low) & (advantages < 0)
    high = (ratio > 1 + clip_high) & (advantages > 0)
    if dual_clip is not None:
        beyond = (advantages < 0) & (ratio > dual_clip)
        value = torch.where(beyond, dual_clip * advantages, value)
        high = high | beyond
    return Objective(value, low, high)


def clipped_weight(
    ratio: Tensor, logprobs: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float
) -> Objective:
    """stop_gradient(clip(ratio, 1 - clip_low, 1 + clip_high)) * A * log p: no token loses its gradient.

    Source: CISPO, MiniMax-M1 (2025), eq. 4 and 5. clip_low = 1 sets no lower bound, as there.
    """
    low, high = ratio < 1 - clip_low, ratio > 1 + clip_high
    weight = ratio.clamp(1 - clip_low, 1 + clip_high).detach()
    return Objective(weight * advantages * logprobs, low, high)


def soft_gate(ratio: Tensor, advantages: Tensor, *, positive: float, negative: float) -> Objective:
    """(4 / t) * sigmoid(t * (ratio - 1)) * A with t = `positive` where A > 0 and `negative` elsewhere.

    Source: SAPO, Gao et al. 2025 (arXiv 2511.20347). Nothing is held; the gradient fades as the ratio leaves 1, on both
    sides, and faster for wrong tokens when `negative` is larger.
    """
    temperature = torch.where(advantages > 0, positive, negative)
    gate = torch.sigmoid(temperature * (ratio - 1)) * (4 / temperature)
    nothing = torch.zeros_like(ratio, dtype=torch.bool)
    return Objective(gate * advantages, nothing, nothing)


def geometric_mean(
    log_ratio: Tensor, advantages: Tensor, lengths: Tensor, *, clip_low: float, clip_high: float
) -> Objective:
    """(product of the sequence's clipped ratios) ^ (1 / length) * A, at each token of the sequence.

    Each token's log-ratio is held at `clip_high` where A > 0 and at -`clip_low` where A < 0, before the mean: the
    range is (exp(-clip_low), exp(clip_high)).

    Source: GMPO, Zhao et al. 2025 (arXiv 2507.20673).
    """
    high = (advantages > 0) & (log_ratio > clip_high)
    low = (advantages < 0) & (log_ratio < -clip_low)
    held = torch.where(high, clip_high, torch.where(low, -clip_low, log_ratio))
    return Objective(sequence_mean(held, lengths).exp() * advantages, low, high)
