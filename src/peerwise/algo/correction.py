"""Importance weights for the mismatch of sampler and trainer: the same weights, computed by different kernels, do not
give the same probabilities, and the answers were drawn from the sampler's."""

from __future__ import annotations

import torch
from torch import Tensor

from peerwise.algo.presets import Correction


def mismatch_weights(trainer: Tensor, sampler: Tensor, *, kind: Correction, bound: float) -> tuple[Tensor | None, int]:
    """w = p_trainer / p_sampler of each token, kept from ruling the batch.

    - "truncate": min(w, bound) (truncated importance sampling; Yao et al. 2025, "Your efficient RL framework secretly
      brings you off-policy RL training").
    - "mask": w, and 0 outside [1 / bound, bound] (IcePop, Ling team 2025).

    Args:
        trainer, sampler: [M] log-probs of the same tokens before the update.
        bound: above 1.
    Returns:
        [M] weights without gradient, None for "none"; and how many tokens lie outside [1 / bound, bound], whatever the
        kind.
    """
    weights = torch.exp(trainer - sampler).detach()
    outside = (weights > bound) | (weights < 1 / bound)
    count = int(outside.sum())
    if kind == "none":
        return None, count
    if kind == "truncate":
        return weights.clamp(max=bound), count
    return torch.where(outside, 0.0, weights), count
