"""The policy-gradient loss: ratio -> clip -> per-token loss -> weights -> one number, and what it did on the way."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from peerwise.algo.divergence import k3


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLoss:
    """The loss and what is worth knowing about it, summed over the tokens given (so that parts can be added up)."""

    loss: Tensor
    """[] with gradient: sum over tokens of weight * (clipped surrogate + coefficient * KL)."""
    clipped_low: int
    """Tokens held at 1 - clip_low: unlikely already, and wrong."""
    clipped_high: int
    """Tokens held at 1 + clip_high: likely already, and right."""
    max_ratio: float
    kl: float | None
    """Sum of k3 over the tokens; None without a reference."""
    num_tokens: int


def policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    weights: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    reference: Tensor | None = None,
    kl_coefficient: float = 0.0,
) -> PolicyLoss:
    """-min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A) + coefficient * KL, weighted and summed.

    The ratio is against the policy that *sampled* (`old`); the frozen reference enters through the KL term alone
    (DeepSeekMath eq. 3; PPO, Schulman et al. 2017, eq. 7, for the clip). At the first update after sampling the
    ratio is 1, the loss of a centred group is about 0, and the gradient is not.

    Args:
        logprobs: [M] float32, of the policy being trained, with gradient.
        old_logprobs: [M] of the policy that sampled; carries no gradient.
        advantages: [M] each token's sequence advantage.
        weights: [M] from `aggregate.token_weights`.
        clip_low, clip_high: how far the ratio is followed below and above 1.
        reference: [M] of the frozen reference; None when the coefficient is 0.
    """
    ratio = torch.exp(logprobs - old_logprobs)
    surrogate = torch.minimum(ratio * advantages, ratio.clamp(1 - clip_low, 1 + clip_high) * advantages)
    per_token = -surrogate
    divergence = None
    if reference is not None:
        divergence = k3(logprobs, reference)
        per_token = per_token + kl_coefficient * divergence
    with torch.no_grad():
        low = (ratio < 1 - clip_low) & (advantages < 0)
        high = (ratio > 1 + clip_high) & (advantages > 0)
    return PolicyLoss(
        loss=(weights * per_token).sum(),
        clipped_low=int(low.sum()),
        clipped_high=int(high.sum()),
        max_ratio=float(ratio.detach().max()) if len(ratio) else 0.0,
        kl=None if divergence is None else float(divergence.detach().sum()),
        num_tokens=len(ratio),
    )
