"""From the rewards of a group to advantages: who did better than the group's mean, and by how much."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Scale = Literal["group", "none"]

# Rewards closer together than this share of their size are equal: float noise must not become an advantage of 1.
EQUAL_REWARDS = 1e-6


def group_advantages(rewards: Tensor, *, scale: Scale = "group") -> Tensor:
    """A_i = (r_i - mean(r)) / std(r), over the G answers to one problem.

    Source: DeepSeekMath (Shao et al. 2024), section 4.1.2, with scale="group"; scale="none" leaves out the division
    (Liu et al. 2025, "Dr. GRPO", which shows that it favours too easy and too hard problems). std is that of the
    group itself (division by G): the group is all there is, not a sample from which to estimate.

    Args:
        rewards: [P, G] or [G], finite.
    Returns:
        Same shape, float32; exactly 0 where all rewards of a group are equal, float noise included.
    Raises:
        ValueError: G = 1 (nothing to compare with), or a reward that is not finite.
    """
    if rewards.shape[-1] < 2:
        raise ValueError("a group of 1 has nothing to compare with; sample at least 2 answers for each problem")
    exact = rewards.double()
    if not bool(torch.isfinite(exact).all()):
        raise ValueError(f"rewards must be finite, got {rewards.tolist()}")
    centred = exact - exact.mean(-1, keepdim=True)
    spread = exact.amax(-1, keepdim=True) - exact.amin(-1, keepdim=True)
    size = exact.abs().amax(-1, keepdim=True).clamp(min=1.0)
    if scale == "group":
        deviation = centred.square().mean(-1, keepdim=True).sqrt()
        centred = centred / deviation.clamp(min=torch.finfo(torch.float64).tiny)
    return torch.where(spread <= EQUAL_REWARDS * size, 0.0, centred).float()
