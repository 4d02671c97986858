"""Log-probs of given answers, and optimizer steps that follow them with weights: supervised learning, and DPO's half.

Knows nothing of tasks, rewards or run folders.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from peerwise.algo.aggregate import token_weights
from peerwise.algo.likelihood import likelihood_loss
from peerwise.metrics.value import Metrics
from peerwise.models.forward import PackedGroup, completion_logprobs, packed_forward
from peerwise.models.load import Policy
from peerwise.train.batch import Part, micro_batches
from peerwise.train.budget import TokenBudget, budget_of
from peerwise.train.optimizer import Optimizer, move
from peerwise.train.sequences import store


def part_logprobs(
    model: PreTrainedModel, parts: Sequence[Part], temperature: float, *, with_entropies: bool = True
) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies [M] of the completion tokens of one micro-batch. Call within `packed_forward(model)`."""
    groups = [part.group for part in parts]
    return completion_logprobs(model, groups, temperature=temperature, with_entropies=with_entropies)


def sequence_logprobs(
    model: PreTrainedModel, groups: Sequence[PackedGroup], *, temperature: float, micro_batch_tokens: int | TokenBudget
) -> list[Tensor]:
    """Log-probs of all completion tokens under a model, without gradient: one [T] for each completion, in order."""
    found: dict[int, Tensor] = {}

    def look(tokens: int) -> None:
        for parts in micro_batches(groups, tokens, skip=[False] * len(groups)):
            store(found, parts, part_logprobs(model, parts, temperature, with_entropies=False)[0])

    with torch.no_grad(), packed_forward(model):
        budget_of(micro_batch_tokens).run(look)
    return [found[row] for row in range(len(found))]


def imitation_step(
    policy: Policy,
    examples: Sequence[tuple[tuple[int, ...], tuple[int, ...]]],
    optimizer: Optimizer,
    *,
    learning_rate: float,
    micro_batch_tokens: int | TokenBudget,
) -> Metrics:
    """One optimizer step towards given answers; the loss is the mean over answer tokens, prompts are not learned.

    Args:
        examples: (prompt ids, answer ids) with the end token last.
    """
    lengths = torch.tensor([len(answer) for _, answer in examples])
    metrics = Metrics()
    loss = weighted_likelihood(
        policy,
        [PackedGroup(prompt=prompt, completions=(answer,)) for prompt, answer in examples],
        token_weights(lengths, "token"),
        optimizer,
        metrics,
        temperature=1.0,
        micro_batch_tokens=micro_batch_tokens,
    )
    metrics.add("loss", loss)
    move(metrics, optimizer, learning_rate)
    return metrics


def weighted_likelihood(
    policy: Policy,
    groups: Sequence[PackedGroup],
    weights: Tensor,
    optimizer: Optimizer,
    metrics: Metrics,
    *,
    temperature: float,
    micro_batch_tokens: int | TokenBudget,
) -> float:
    """Collect the gradient of -sum(weight * log-prob) over all tokens of all answers; returns that loss.

    The optimizer holds no gradient yet.

    Args:
        weights: [B] one for each token of an answer, answers in order; of either sign. Groups of zeros are not
            computed.
    """
    lengths = torch.tensor([len(answer) for group in groups for answer in group.completions])
    weights = weights.float().to(policy.model.device)
    by_group = torch.split(weights, [len(group.completions) for group in groups])

    def collect(tokens: int) -> tuple[float, Metrics]:
        total, found = 0.0, Metrics()
        with optimizer.weights.collecting():
            for parts in micro_batches(groups, tokens, skip=[not bool(w.any()) for w in by_group]):
                rows = [row for part in parts for row in part.rows]
                logprobs, entropies = part_logprobs(policy.model, parts, temperature)
                loss = likelihood_loss(logprobs, weights[rows].repeat_interleave(lengths[rows].to(weights.device)))
                loss.backward()  # type: ignore[no-untyped-call]
                total += float(loss.detach())
                found.add("entropy/mean", float(entropies.detach().sum()), len(entropies))
        return total, found

    with packed_forward(policy.model, offload=policy.offload):
        total, found = budget_of(micro_batch_tokens).run(collect, forget=optimizer.zero_grad)
    metrics.merge(found)
    return total
