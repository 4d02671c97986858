"""Learning from pairs: of two answers to one problem, which is right."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


def dpo_loss(
    right: Tensor, wrong: Tensor, right_reference: Tensor, wrong_reference: Tensor, *, beta: float
) -> tuple[Tensor, Tensor]:
    """-log sigmoid(margin), mean over pairs; margin = beta * ((right - its reference) - (wrong - its reference)).

    Source: DPO (Rafailov et al. 2023), eq. 7.

    Args:
        right, wrong: [N] log-probs of whole answers under the policy, with gradient.
        right_reference, wrong_reference: [N] under the frozen reference.
        beta: > 0; the larger, the nearer the policy stays to the reference.
    Returns:
        loss [], and margins [N] without gradient.
    """
    margins = beta * ((right - right_reference) - (wrong - wrong_reference))
    loss = -logsigmoid(margins).mean() if len(margins) else torch.zeros((), dtype=margins.dtype)
    return loss, margins.detach()
