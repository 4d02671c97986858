"""The policy-gradient loss: ratio -> surrogate -> per-token loss -> weights -> one number, and what it did."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from peerwise.algo import surrogate as objectives
from peerwise.algo.divergence import divergence_of, held
from peerwise.algo.presets import Divergence, Ratio, Surrogate


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLoss:
    """The loss and what is worth knowing about it, summed over the tokens given (so that parts can be added up)."""

    loss: Tensor
    """[] with gradient: sum over tokens of weight * (-objective + coefficient * KL - coefficient * entropy)."""
    clipped_low: int
    """Tokens held at the lower end: unlikely already, and wrong."""
    clipped_high: int
    """Tokens held at the upper end: likely already, and right."""
    min_ratio: float
    max_ratio: float
    kl: float | None
    """Sum of the divergence over the tokens; None without a reference."""
    kl_clamped: int
    """Tokens at which the divergence was held at its bound."""
    num_tokens: int


def policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    weights: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    lengths: Tensor | None = None,
    ratio: Ratio = "token",
    surrogate: Surrogate = "clip",
    dual_clip: float | None = None,
    gate_positive: float = 1.0,
    gate_negative: float = 1.05,
    correction: Tensor | None = None,
    reference: Tensor | None = None,
    divergence: Divergence = "k3",
    kl_coefficient: float = 0.0,
    entropies: Tensor | None = None,
    entropy_coefficient: float = 0.0,
) -> PolicyLoss:
    """-objective(ratio, A) * correction + kl_coefficient * KL - entropy_coefficient * entropy, weighted and summed.

    The ratio is against the policy that *sampled* (`old`); the frozen reference enters through the KL term alone
    (DeepSeekMath eq. 3). At the first update after sampling the ratio is 1, the loss of a centred group is about 0,
    and the gradient is not. The objectives and their sources are in `surrogate.py`.

    Args:
        logprobs: [M] float32, of the policy being trained, with gradient.
        old_logprobs: [M] of the policy that sampled; carries no gradient.
        advantages: [M].
        weights: [M] from `aggregate.token_weights`.
        lengths: [B] tokens of each sequence, none of them split; needed where sequences matter (ratio "sequence",
            surrogate "geometric_mean").
        ratio: "token"; "sequence", the geometric mean over the sequence's tokens (GSPO, eq. 7); "none", plain
            REINFORCE: A * log p.
        correction: [M] weights for the mismatch of sampler and trainer, without gradient; None is 1 everywhere.
        reference: [M] of the frozen reference; None when there is no KL term.
        entropies: [M] with gradient, when there is an entropy bonus.
    Raises:
        ValueError: lengths are needed and missing.
    """
    log_ratio = logprobs - old_logprobs
    if ratio == "sequence" or surrogate == "geometric_mean":
        if lengths is None:
            raise ValueError("a sequence's ratio needs the lengths of the sequences")
        if ratio == "sequence":
            log_ratio = objectives.sequence_mean(log_ratio, lengths)
    ratios = torch.exp(log_ratio)
    bounds = {"clip_low": clip_low, "clip_high": clip_high}
    if ratio == "none":
        none_held = torch.zeros_like(ratios, dtype=torch.bool)
        objective = objectives.Objective(advantages * logprobs, none_held, none_held)
    elif surrogate == "clip":
        objective = objectives.clip(ratios, advantages, dual_clip=dual_clip, **bounds)
    elif surrogate == "clipped_weight":
        objective = objectives.clipped_weight(ratios, logprobs, advantages, **bounds)
    elif surrogate == "soft_gate":
        objective = objectives.soft_gate(ratios, advantages, positive=gate_positive, negative=gate_negative)
    else:
        assert lengths is not None
        objective = objectives.geometric_mean(log_ratio, advantages, lengths, **bounds)
    per_token = -objective.value
    if correction is not None:
        per_token = per_token * correction
    kl = None
    clamped = 0
    if reference is not None:
        kl = divergence_of(divergence, logprobs, reference)
        clamped = held(divergence, logprobs, reference)
        per_token = per_token + kl_coefficient * kl
    if entropies is not None:
        per_token = per_token - entropy_coefficient * entropies
    seen = ratios.detach()
    return PolicyLoss(
        loss=(weights * per_token).sum(),
        clipped_low=int(objective.held_low.sum()),
        clipped_high=int(objective.held_high.sum()),
        min_ratio=float(seen.min()) if len(seen) else 1.0,
        max_ratio=float(seen.max()) if len(seen) else 1.0,
        kl=None if kl is None else float(kl.detach().sum()),
        kl_clamped=clamped,
        num_tokens=len(seen),
    )
