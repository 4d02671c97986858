"""Maximum likelihood on given completions: the loss of supervised fine-tuning."""

from __future__ import annotations

from torch import Tensor


def likelihood_loss(logprobs: Tensor, weights: Tensor) -> Tensor:
    """-sum(weight * log-prob) over completion tokens only. logprobs, weights: [M] -> []."""
    return -(weights * logprobs).sum()
