"""What changes logits before the temperature: a bias, the repetition penalty, end tokens that come too early.

Pure functions of logits and ids, the same for every engine. Knows nothing of models or batches.

Shapes: n rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from peerwise.rollout.base import SamplingParams


def adjusted(
    logits: Tensor,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[int]],
    params: SamplingParams,
    end_ids: Collection[int],
) -> Tensor:
    """Logits [n, V] as `params` wants them before the temperature; the given ones where it wants nothing.

    Args:
        prompts: n times the ids of the prompt.
        answers: n times the ids drawn so far.
    """
    if not params.adjusts:
        return logits
    logits = logits.clone()
    for token, bias in params.logit_bias:
        logits[:, token] += bias
    if params.repetition_penalty != 1.0:
        for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
            seen = torch.tensor(sorted({*prompt, *answer}), device=logits.device)
            found = logits[row, seen]
            penalty = params.repetition_penalty
            logits[row, seen] = torch.where(found < 0, found * penalty, found / penalty)
    early = [row for row, answer in enumerate(answers) if len(answer) < params.min_new_tokens]
    if early:
        logits[torch.tensor(early)[:, None], torch.tensor(sorted(end_ids))[None]] = float("-inf")
    return logits
