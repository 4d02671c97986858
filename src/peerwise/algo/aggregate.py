"""How per-token losses become one number: a weight for each token, fixed before the first backward pass.

The loss of a batch is `sum(weight * per_token)`. The weights are computed once from the lengths of *all* sequences
of the update, so that splitting the batch into micro-batches (or over ranks) cannot change the gradient: each part
adds its own tokens with the weights they have.
"""

from __future__ import annotations

import torch
from torch import Tensor

from peerwise.algo.presets import Aggregation


def token_weights(lengths: Tensor, aggregation: Aggregation, *, fixed_length: int | None = None) -> Tensor:
    """The weight of each token of each sequence.

    - "token": 1 / (all tokens). Every token counts the same (DAPO, Yu et al. 2025, eq. 8).
    - "sequence": 1 / (B * length). Mean over sequences of their token means (DeepSeekMath, eq. 3).
    - "fixed": 1 / (B * fixed_length). A token counts the same in short and long answers, and the scale does not
      depend on what was sampled (Dr. GRPO, Liu et al. 2025).

    Args:
        lengths: [B] completion tokens of every sequence of the update, end token included; 0 leaves one out.
        fixed_length: for "fixed", the longest answer allowed.
    Returns:
        [B] float32, the weight of each token of that sequence; all 0 when there is no token at all.
    """
    counts = lengths.double()
    kept = counts > 0
    num_sequences = kept.sum().clamp(min=1)
    if aggregation == "token":
        weights = (1 / counts.sum().clamp(min=1)).expand(len(counts))
    elif aggregation == "sequence":
        weights = 1 / (num_sequences * counts.clamp(min=1))
    else:
        if not fixed_length:
            raise ValueError("aggregation 'fixed' needs fixed_length, the longest answer allowed")
        weights = (1 / (num_sequences * fixed_length)).expand(len(counts))
    return torch.where(kept, weights, 0.0).float()
