"""From rewards to advantages: how much better an answer did than what it is compared with."""

from __future__ import annotations

import torch
from torch import Tensor

from peerwise.algo.presets import Baseline, Scale

# Rewards closer together than this share of their size are equal: float noise must not become an advantage of 1.
EQUAL_REWARDS = 1e-6


def group_advantages(
    rewards: Tensor, *, scale: Scale = "group", baseline: Baseline = "group", counted: Tensor | None = None
) -> Tensor:
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
        counted: same shape; False leaves an answer out of every mean, as if it had not been sampled. None counts all.
    Returns:
        Same shape, float32; exactly 0 where all rewards that are compared with each other are equal, float noise
        included, where there is nothing to compare with, and for answers that are not counted.
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
    taken = torch.ones_like(exact, dtype=torch.bool) if counted is None else counted
    of_among = taken.flatten() if baseline in ("batch", "none") else taken
    number = of_among.sum(-1, keepdim=True)
    centred = torch.where(taken, exact, 0.0)
    if baseline != "none":
        centred = torch.where(taken, _centred(exact, among, of_among), 0.0)
    if baseline == "leave_one_out":
        centred = centred * (number / (number - 1).clamp(min=1))
    if scale == "group":
        centred = _divided(centred, _root_mean_square(centred, taken.sum(-1, keepdim=True)))
    elif scale == "batch":
        centred = _divided(centred, _root_mean_square(centred.flatten(), taken.sum()))
    return centred.float()


def whitened(values: Tensor, *, centre: bool, scale: bool, counted: Tensor | None = None) -> Tensor:
    """Per-token advantages, their mean over the batch taken off, divided by their root mean square: [M] -> [M].

    With `centre` exactly 0 where all are equal, float noise included. `counted` [M]: False leaves a token out of mean
    and deviation, and gives it 0.
    """
    taken = torch.ones_like(values, dtype=torch.bool) if counted is None else counted
    if not bool(taken.any()):
        return torch.zeros_like(values, dtype=torch.float32)
    exact = values.double()
    exact = torch.where(taken, _centred(exact, exact, taken) if centre else exact, 0.0)
    return (_divided(exact, _root_mean_square(exact, taken.sum())) if scale else exact).float()


def _centred(values: Tensor, among: Tensor, taken: Tensor) -> Tensor:
    """`values` minus the mean of those of `among` that are taken, along the last axis; 0 where these are equal."""
    mean = torch.where(taken, among, 0.0).sum(-1, keepdim=True) / taken.sum(-1, keepdim=True).clamp(min=1)
    highest = torch.where(taken, among, -torch.inf).amax(-1, keepdim=True)
    lowest = torch.where(taken, among, torch.inf).amin(-1, keepdim=True)
    size = torch.where(taken, among.abs(), 0.0).amax(-1, keepdim=True).clamp(min=1.0)
    return torch.where(highest - lowest <= EQUAL_REWARDS * size, 0.0, values - mean)


def _root_mean_square(values: Tensor, number: Tensor) -> Tensor:
    """Over the last axis, `number` of the values counted and the others 0."""
    return (values.square().sum(-1, keepdim=True) / number.clamp(min=1)).sqrt()


def _divided(values: Tensor, deviation: Tensor) -> Tensor:
    return values / deviation.clamp(min=torch.finfo(torch.float64).tiny)
