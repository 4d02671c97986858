"""One optimizer step from sampled groups, or from worked solutions, in micro-batches that leave the gradient as it is.

Knows nothing of tasks, rewards or run folders: groups with advantages come in, measurements go out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import PreTrainedModel

from peerwise.algo.aggregate import token_weights
from peerwise.algo.likelihood import likelihood_loss
from peerwise.algo.policy import PolicyLoss, policy_loss
from peerwise.algo.presets import Method
from peerwise.metrics.value import Metrics
from peerwise.models.attention import NAME, use_attention
from peerwise.models.forward import PackedGroup, completion_logprobs
from peerwise.models.load import Policy
from peerwise.models.lora import Reference
from peerwise.records import Group
from peerwise.train.batch import Part, micro_batches
from peerwise.train.optimizer import Optimizer


@dataclass(slots=True)
class _Batch:
    """The sequences of one update as tensors. B sequences, one after the other over all groups."""

    groups: list[PackedGroup]
    advantages: Tensor  # [B]
    weights: Tensor  # [B] weight of each token of the sequence
    sampled: list[Tensor]  # B times [T], the sampler's log-probs
    skip: list[bool]  # [groups] True where nothing can be learned
    old: dict[int, Tensor] = field(default_factory=dict)  # row -> [T] log-probs before the first update
    reference: dict[int, Tensor] = field(default_factory=dict)  # row -> [T]

    def of(self, rows: Sequence[int], values: Sequence[Tensor] | dict[int, Tensor]) -> Tensor:
        """[M] the per-token values of some rows, one after the other."""
        return torch.cat([values[row] for row in rows])


def policy_step(
    policy: Policy,
    groups: Sequence[Group],
    advantages: Tensor,
    optimizer: Optimizer,
    *,
    method: Method,
    learning_rate: float,
    temperature: float,
    max_new_tokens: int,
    micro_batch_tokens: int,
    updates: int = 1,
    reference: Reference | None = None,
) -> Metrics:
    """`updates` optimizer steps on one batch of sampled groups.

    The denominators are counted over the whole batch before the first backward. A group whose advantages are all 0
    adds nothing to the gradient when there is no KL term: it keeps its share in the denominators, and its forward
    and backward are saved.

    The ratio's denominator is the policy that sampled, under the trainer's own arithmetic: the log-probs of the
    first pass, before anything moved, which costs no pass of its own. How far the sampler's own log-probs are from
    those is measured ("mismatch").

    Args:
        advantages: [P, G].
        temperature: the sampler's.
        reference: needed when `method.kl_coefficient` is above 0.
    """
    batch = _make_batch(policy, groups, advantages, method, max_new_tokens, keep_all=reference is not None)
    metrics = Metrics()
    loss = 0.0
    with use_attention(policy.model, NAME):
        for update in range(updates):
            for parts in micro_batches(batch.groups, micro_batch_tokens, skip=batch.skip):
                rows = [row for part in parts for row in part.rows]
                if update == 0 and reference is not None:
                    with reference.policy() as frozen, use_attention(frozen, NAME):
                        _store(batch.reference, parts, _logprobs(frozen, parts, temperature)[0])
                logprobs, entropies = _logprobs(policy.model, parts, temperature)
                if update == 0:
                    _store(batch.old, parts, logprobs.detach())
                    _measure_mismatch(metrics, logprobs.detach(), batch.of(rows, batch.sampled))
                lengths = torch.tensor([len(batch.sampled[row]) for row in rows], device=logprobs.device)
                result = policy_loss(
                    logprobs,
                    batch.of(rows, batch.old),
                    batch.advantages[rows].repeat_interleave(lengths),
                    batch.weights[rows].repeat_interleave(lengths),
                    clip_low=method.clip_low,
                    clip_high=method.clip_high,
                    reference=batch.of(rows, batch.reference) if reference is not None else None,
                    kl_coefficient=method.kl_coefficient,
                )
                result.loss.backward()  # type: ignore[no-untyped-call]
                optimizer.weights.collect()
                loss += float(result.loss.detach()) / updates
                _measure(metrics, result, entropies)
            _move(metrics, optimizer, learning_rate)
    metrics.add("loss", loss)
    return metrics


def imitation_step(
    policy: Policy,
    examples: Sequence[tuple[tuple[int, ...], tuple[int, ...]]],
    optimizer: Optimizer,
    *,
    learning_rate: float,
    micro_batch_tokens: int,
) -> Metrics:
    """One optimizer step towards given answers; the loss is the mean over answer tokens, prompts are not learned.

    Args:
        examples: (prompt ids, answer ids) with the end token last.
    """
    groups = [PackedGroup(prompt=prompt, completions=(answer,)) for prompt, answer in examples]
    lengths = torch.tensor([len(answer) for _, answer in examples])
    weights = token_weights(lengths, "token").to(policy.model.device)
    metrics = Metrics()
    total = 0.0
    with use_attention(policy.model, NAME):
        for parts in micro_batches(groups, micro_batch_tokens, skip=[False] * len(groups)):
            rows = [row for part in parts for row in part.rows]
            logprobs, entropies = _logprobs(policy.model, parts, 1.0)
            loss = likelihood_loss(logprobs, weights[rows].repeat_interleave(lengths[rows].to(weights.device)))
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.weights.collect()
            total += float(loss.detach())
            metrics.add("entropy/mean", float(entropies.sum()), len(entropies))
    metrics.add("loss", total)
    _move(metrics, optimizer, learning_rate)
    return metrics


def _move(metrics: Metrics, optimizer: Optimizer, learning_rate: float) -> None:
    """One optimizer update; one that is left out because its gradient is not finite is counted."""
    norm = optimizer.step(learning_rate)
    metrics.add("grad_norm", norm)
    if not math.isfinite(norm):
        metrics.add("skipped/steps", 1)


def _make_batch(
    policy: Policy, groups: Sequence[Group], advantages: Tensor, method: Method, max_new_tokens: int, *, keep_all: bool
) -> _Batch:
    device = policy.model.device
    packed = [
        PackedGroup(prompt=group.prompt_ids, completions=tuple(c.token_ids for c in group.completions))
        for group in groups
    ]
    sampled = [torch.tensor(c.logprobs, device=device) for group in groups for c in group.completions]
    lengths = torch.tensor([len(logprobs) for logprobs in sampled])
    weights = token_weights(lengths, method.aggregation, fixed_length=max_new_tokens)
    nothing = [not keep_all and not bool(row.any()) for row in advantages]
    return _Batch(packed, advantages.flatten().to(device), weights.to(device), sampled, nothing)


def _logprobs(model: PreTrainedModel, parts: Sequence[Part], temperature: float) -> tuple[Tensor, Tensor]:
    return completion_logprobs(model, [part.group for part in parts], temperature=temperature)


def _store(target: dict[int, Tensor], parts: Sequence[Part], logprobs: Tensor) -> None:
    """Cut [M] into its rows and keep them."""
    lengths = [len(y) for part in parts for y in part.group.completions]
    pieces: Iterator[Tensor] = iter(torch.split(logprobs, lengths))
    for part in parts:
        for row in part.rows:
            target[row] = next(pieces)


def _measure_mismatch(metrics: Metrics, trainer: Tensor, sampler: Tensor) -> None:
    difference = (trainer - sampler).abs()
    metrics.add("mismatch/mean", float(difference.sum()), len(difference))
    metrics.add("mismatch/max", float(difference.max()))


def _measure(metrics: Metrics, result: PolicyLoss, entropies: Tensor) -> None:
    metrics.add("entropy/mean", float(entropies.sum()), len(entropies))
    metrics.add("ratio/clipped_low", result.clipped_low, result.num_tokens)
    metrics.add("ratio/clipped_high", result.clipped_high, result.num_tokens)
    metrics.add("ratio/max", result.max_ratio)
    if result.kl is not None:
        metrics.add("kl/mean", result.kl, result.num_tokens)
