"""From rewards to advantages: how much better an answer did than what it is compared with."""

from __future__ import annotations

import torch
from torch import Tensor

from peerwise.algo.presets import Baseline, Scale

# Rewards closer together than this share of their size are equal: float noise must not become an advantage of 1.
EQUAL_REWARDS = 1e-6


def group_advantages(rewards: Tensor, *, scale: Scale = "group", baseline: Baseline = "group") -> Tensor:
    """A_i = (r_i - baseline) / scale, over the G answers to each of P problems.

    Baselines: "group", the group's mean (DeepSeekMath, Shao et al. 2024, section 4.1.2); "leave_one_out", the mean of
    the group's other answers, which is G / (G - 1) times as far away (RLOO, Ahmadian et al. 2024, eq. 9); "batch", the
    mean over the whole batch (REINFORCE++, Hu 2025); "none". (A critic's advantages come from `critic.gae`.)

    Scales: "group", the root mean square of the group's differences, which with the group's mean as baseline is its
    standard deviation (division by G: the group is all there is, not a sample from which to estimate); "batch", the
    same over all P * G differences; "none" (Dr. GRPO, Liu et al. 2025, which shows that dividing by the group's favours
    too easy and too hard problems).

    Args:
        rewards: [P, G] or [G], finite.
    Returns:
        Same shape, float32; exactly 0 where all rewards that are compared with each other are equal, float noise
        included.
    Raises:
        ValueError: G = 1 where a group is compared with itself, or a reward that is not finite.
    """
    exact = rewards.double()
    if not bool(torch.isfinite(exact).all()):
        raise ValueError(f"rewards must be finite, got {rewards.tolist()}")
    among = exact.flatten() if baseline in ("batch", "none") else exact
    if among.shape[-1] < 2 and baseline != "none":
        raise ValueError("a group of 1 has nothing to compare with; sample at least 2 answers for each problem")
    if baseline == "critic":
        raise ValueError("a critic's advantages are those of critic.gae")
    if baseline == "none":
        centred = exact
    else:
        centred = exact - among.mean(-1, keepdim=True)
        spread = among.amax(-1, keepdim=True) - among.amin(-1, keepdim=True)
        size = among.abs().amax(-1, keepdim=True).clamp(min=1.0)
        centred = torch.where(spread <= EQUAL_REWARDS * size, 0.0, centred)
    if baseline == "leave_one_out":
        centred = centred * (among.shape[-1] / (among.shape[-1] - 1))
    if scale == "group":
        centred = _divided(centred, centred.square().mean(-1, keepdim=True).sqrt())
    elif scale == "batch":
        centred = _divided(centred, centred.square().mean().sqrt())
    return centred.float()


def whitened(values: Tensor, *, centre: bool, scale: bool) -> Tensor:
    """Per-token advantages, their mean over the batch taken off, divided by their root mean square: [M] -> [M].

    With `centre` exactly 0 where all are equal, float noise included.
    """
    if not len(values):
        return values.float()
    exact = values.double()
    if centre:
        spread, size = exact.max() - exact.min(), exact.abs().max().clamp(min=1.0)
        exact = torch.where(spread <= EQUAL_REWARDS * size, 0.0, exact - exact.mean())
    return (_divided(exact, exact.square().mean().sqrt()) if scale else exact).float()


def _divided(values: Tensor, deviation: Tensor) -> Tensor:
    return values / deviation.clamp(min=torch.finfo(torch.float64).tiny)
