"""One optimizer step from sampled groups, or from worked solutions, in micro-batches that leave the gradient as it is.

Knows nothing of tasks, rewards or run folders: groups with advantages come in, measurements go out.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import PreTrainedModel

from peerwise.algo.aggregate import token_weights
from peerwise.algo.correction import mismatch_weights
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
    """The sequences of one batch of groups as tensors. B sequences, one after the other over all groups."""

    groups: list[PackedGroup]
    lengths: Tensor  # [B] tokens of each sequence, on the CPU
    counted: Tensor  # [B] the same, 0 where a sequence is left out of loss and denominators
    advantages: list[Tensor]  # B times [T]
    sampled: list[Tensor]  # B times [T], the sampler's log-probs
    skip: list[bool]  # [groups] True where nothing can be learned
    first_stale: int  # the first row that the policy of an earlier step sampled; B where there is none
    old: dict[int, Tensor] = field(default_factory=dict)  # row -> [T] log-probs before the first update
    reference: dict[int, Tensor] = field(default_factory=dict)  # row -> [T]
    entropies: dict[int, Tensor] = field(default_factory=dict)  # row -> [T] before the first update, where needed

    def of(self, rows: Sequence[int], values: Sequence[Tensor] | dict[int, Tensor]) -> Tensor:
        """[M] the per-token values of some rows, one after the other."""
        return torch.cat([values[row] for row in rows])

    def keep_old(self, parts: Sequence[Part], logprobs: Tensor) -> None:
        """Cut [M] into rows: the ratio's denominators, for rows that have none yet."""
        found: dict[int, Tensor] = {}
        store(found, parts, logprobs)
        self.old = found | self.old

    def rows(self, group: int) -> range:
        """The sequences of one group."""
        start = sum(len(g.completions) for g in self.groups[:group])
        return range(start, start + len(self.groups[group].completions))


def policy_step(
    policy: Policy,
    groups: Sequence[Group],
    advantages: Tensor | Sequence[Tensor],
    optimizer: Optimizer,
    *,
    method: Method,
    learning_rate: float,
    temperature: float,
    max_new_tokens: int,
    micro_batch_tokens: int,
    passes: int = 1,
    mini_batches: int = 1,
    seed: int = 0,
    reference: Reference | None = None,
    kl_coefficient: float | None = None,
    mismatch_bound: float = 2.0,
    stale: int = 0,
) -> Metrics:
    """`passes` times `mini_batches` optimizer steps on one batch of sampled groups.

    The denominators of an optimizer step are counted over all its sequences before the first backward. A group whose
    advantages are all 0 adds nothing to the gradient when there is neither a KL term nor an entropy bonus: it keeps its
    share in the denominators, and its forward and backward are saved.

    The ratio's denominator is the policy that sampled, under the trainer's own arithmetic: the log-probs of the first
    pass, before anything moved. With one mini-batch that pass is the first one of training and costs nothing; with
    more, it is made beforehand. How far the sampler's own log-probs are from those is measured ("mismatch").

    Args:
        advantages: [P, G], one for each completion, or P * G times [T], one for each of its tokens.
        temperature: the sampler's.
        mini_batches: optimizer steps of one pass, over groups in an order drawn from `seed`.
        reference: needed when the method charges the divergence in the loss.
        kl_coefficient: in place of the method's, when it is adapted.
        mismatch_bound: ratio of trainer to sampler beyond which a token counts as mismatched.
        stale: how many of the last groups were sampled by the policy of an earlier step. The denominator of their ratio
            is what their sampler said, the only thing that is left of that policy.
    """
    in_loss = reference is not None and method.kl_in == "loss"
    batch = _make_batch(
        policy, groups, advantages, method, keep_all=in_loss or method.entropy_coefficient > 0, stale=stale
    )
    metrics = Metrics()
    steps = _Steps(
        policy=policy,
        batch=batch,
        method=method,
        optimizer=optimizer,
        metrics=metrics,
        learning_rate=learning_rate,
        temperature=temperature,
        micro_batch_tokens=micro_batch_tokens,
        reference=reference if in_loss else None,
        kl_coefficient=method.kl_coefficient if kl_coefficient is None else kl_coefficient,
        mismatch_bound=mismatch_bound,
    )
    with use_attention(policy.model, NAME):
        if mini_batches > 1 or method.entropy_share < 1:
            steps.look_ahead()
        for number in range(passes):
            for skip, weights in _mini_batches(batch, method, max_new_tokens, mini_batches, f"{seed}/{number}"):
                steps.update(skip, weights, first=number == 0)
    if "loss" not in metrics.resolve():
        metrics.add("loss", 0.0)
    return metrics


@dataclass(slots=True, kw_only=True)
class _Steps:
    """The optimizer steps on one batch; the fields are those of `policy_step`."""

    policy: Policy
    batch: _Batch
    method: Method
    optimizer: Optimizer
    metrics: Metrics
    learning_rate: float
    temperature: float
    micro_batch_tokens: int
    reference: Reference | None  # None unless the loss is charged for the divergence from it
    kl_coefficient: float
    mismatch_bound: float
    threshold: float | None = None
    """Entropy from which on a token follows its advantage; None: all do."""

    def look_ahead(self) -> None:
        """The log-probs and entropies of the whole batch before anything has moved."""
        batch = self.batch
        with torch.no_grad():
            for parts in micro_batches(batch.groups, self.micro_batch_tokens, skip=batch.skip):
                logprobs, entropies = _logprobs(self.policy.model, parts, self.temperature)
                batch.keep_old(parts, logprobs)
                store(batch.entropies, parts, entropies)
        self.threshold = entropy_threshold(batch.entropies.values(), self.method.entropy_share)

    def update(self, skip: Sequence[bool], weights: Tensor, *, first: bool) -> None:
        """One optimizer step. `weights` [B] of each token of a sequence; `first`: nothing has seen this batch yet."""
        if not bool(weights.any()):
            self.metrics.add("skipped/empty", 1)
            return
        loss = 0.0
        for parts in micro_batches(self.batch.groups, self.micro_batch_tokens, skip=skip):
            result, entropies = self._loss(parts, weights, first=first)
            result.loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.weights.collect()
            loss += float(result.loss.detach())
            _measure(self.metrics, result, entropies)
        self.metrics.add("loss", loss)
        move(self.metrics, self.optimizer, self.learning_rate)

    def _loss(self, parts: Sequence[Part], weights: Tensor, *, first: bool) -> tuple[PolicyLoss, Tensor]:
        """The loss of one micro-batch, and the entropies [M] of its tokens."""
        batch, method = self.batch, self.method
        rows = [row for part in parts for row in part.rows]
        if first and self.reference is not None:
            with self.reference.policy() as frozen, use_attention(frozen, NAME):
                store(batch.reference, parts, _logprobs(frozen, parts, self.temperature)[0])
        logprobs, entropies = _logprobs(self.policy.model, parts, self.temperature)
        batch.keep_old(parts, logprobs.detach())
        old, lengths = batch.of(rows, batch.old), batch.lengths[rows].to(logprobs.device)
        result = policy_loss(
            logprobs,
            old,
            batch.of(rows, batch.advantages),
            weights[rows].to(logprobs.device).repeat_interleave(lengths),
            **method.objective,
            lengths=lengths,
            correction=self._correction(rows, old, first=first),
            reference=batch.of(rows, batch.reference) if self.reference is not None else None,
            divergence=method.divergence,
            kl_coefficient=self.kl_coefficient,
            entropies=entropies if method.entropy_coefficient > 0 else None,
            entropy_coefficient=method.entropy_coefficient,
        )
        return result, entropies

    def _correction(self, rows: Sequence[int], old: Tensor, *, first: bool) -> Tensor | None:
        """[M] what the advantage of each token is multiplied by; None is 1. Measures the mismatch the first time."""
        batch = self.batch
        sampled = batch.of(rows, batch.sampled)
        correction, outside = mismatch_weights(old, sampled, kind=self.method.correction, bound=self.mismatch_bound)
        fresh = sum(int(batch.lengths[row]) for row in rows if row < batch.first_stale)
        if first and fresh:
            # Stale rows come last, and their denominator is the sampler's own: there is nothing to disagree about.
            _measure_mismatch(self.metrics, old[:fresh], sampled[:fresh], outside)
        if self.threshold is None:
            return correction
        forking = (batch.of(rows, batch.entropies) >= self.threshold).float()
        return forking if correction is None else correction * forking


def entropy_threshold(entropies: Collection[Tensor], share: float) -> float | None:
    """The entropy from which on a token is among the `share` of all tokens with the highest; None when all are.

    Source: Wang et al. 2025, "Beyond the 80/20 rule": few tokens decide how an answer goes on, and learning from those
    alone is enough. Tokens below keep their place in the denominators.
    """
    if share >= 1 or not entropies:
        return None
    every = torch.cat(list(entropies)).sort(descending=True).values
    return float(every[max(1, math.ceil(share * len(every))) - 1])


def _mini_batches(
    batch: _Batch, method: Method, max_new_tokens: int, count: int, seed: str
) -> Iterator[tuple[list[bool], Tensor]]:
    """For each optimizer step: the groups to leave out [groups], and the weight of each token of a sequence [B]."""
    order = list(range(len(batch.groups)))
    if count > 1:
        random.Random(seed).shuffle(order)
    for part in range(count):
        members = set(order[part::count])
        rows = [row for group in sorted(members) for row in batch.rows(group)]
        weights = torch.zeros(len(batch.lengths))
        weights[rows] = token_weights(batch.counted[rows], method.aggregation, fixed_length=max_new_tokens)
        yield [skipped or group not in members for group, skipped in enumerate(batch.skip)], weights


def sequence_logprobs(
    model: PreTrainedModel, groups: Sequence[PackedGroup], *, temperature: float, micro_batch_tokens: int
) -> list[Tensor]:
    """Log-probs of all completion tokens under a model, without gradient: one [T] for each completion, in order."""
    found: dict[int, Tensor] = {}
    with torch.no_grad(), use_attention(model, NAME):
        for parts in micro_batches(groups, micro_batch_tokens, skip=[False] * len(groups)):
            store(found, parts, _logprobs(model, parts, temperature)[0])
    return [found[row] for row in range(len(found))]


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
    micro_batch_tokens: int,
) -> float:
    """Collect the gradient of -sum(weight * log-prob) over all tokens of all answers; returns that loss.

    Args:
        weights: [B] one for each token of an answer, answers in order; of either sign. Groups of zeros are not
            computed.
    """
    lengths = torch.tensor([len(answer) for group in groups for answer in group.completions])
    weights = weights.float().to(policy.model.device)
    by_group = torch.split(weights, [len(group.completions) for group in groups])
    total = 0.0
    with use_attention(policy.model, NAME):
        for parts in micro_batches(groups, micro_batch_tokens, skip=[not bool(w.any()) for w in by_group]):
            rows = [row for part in parts for row in part.rows]
            logprobs, entropies = _logprobs(policy.model, parts, temperature)
            loss = likelihood_loss(logprobs, weights[rows].repeat_interleave(lengths[rows].to(weights.device)))
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.weights.collect()
            total += float(loss.detach())
            metrics.add("entropy/mean", float(entropies.detach().sum()), len(entropies))
    return total


def move(metrics: Metrics, optimizer: Optimizer, learning_rate: float) -> None:
    """One optimizer update; one that is left out because its gradient is not finite is counted."""
    norm = optimizer.step(learning_rate)
    metrics.add("grad_norm", norm)
    if not math.isfinite(norm):
        metrics.add("skipped/steps", 1)


def _make_batch(
    policy: Policy,
    groups: Sequence[Group],
    advantages: Tensor | Sequence[Tensor],
    method: Method,
    *,
    keep_all: bool,
    stale: int,
) -> _Batch:
    device = policy.model.device
    completions = [c for group in groups for c in group.completions]
    lengths = torch.tensor([len(c.token_ids) for c in completions])
    if isinstance(advantages, Tensor):
        by_row = [a.expand(int(n)) for a, n in zip(advantages.flatten(), lengths, strict=True)]
    else:
        by_row = list(advantages)
    dropped = [method.uninformative != "keep" and not group.informative for group in groups]
    left_out = torch.tensor(
        [
            drop or (method.truncated == "mask" and c.finish == "length")
            for group, drop in zip(groups, dropped, strict=True)
            for c in group.completions
        ]
    )
    left_out |= ~counted_of(groups)
    batch = _Batch(
        groups=packed_groups(groups),
        lengths=lengths,
        counted=torch.where(left_out, 0, lengths),
        advantages=[row.to(device) for row in by_row],
        sampled=[torch.tensor(c.logprobs, device=device) for c in completions],
        skip=dropped,
        first_stale=sum(len(group.completions) for group in groups[: len(groups) - stale]),
    )
    batch.old = {row: batch.sampled[row] for row in range(batch.first_stale, len(lengths))}
    for index, drop in enumerate(dropped):
        rows = batch.rows(index)
        nothing = not keep_all and not any(bool(batch.advantages[row].any()) for row in rows)
        batch.skip[index] = drop or nothing or not bool(batch.counted[list(rows)].any())
    return batch


def counted_of(groups: Sequence[Group]) -> Tensor:
    """[B] bool, False for answers whose reward failed: they are neither followed, nor corrected, nor compared with."""
    return torch.tensor([score.failed is None for group in groups for score in group.scores])


def packed_groups(groups: Sequence[Group]) -> list[PackedGroup]:
    """The ids of sampled groups."""
    return [
        PackedGroup(prompt=group.prompt_ids, completions=tuple(c.token_ids for c in group.completions))
        for group in groups
    ]


def _logprobs(model: PreTrainedModel, parts: Sequence[Part], temperature: float) -> tuple[Tensor, Tensor]:
    return completion_logprobs(model, [part.group for part in parts], temperature=temperature)


def store(target: dict[int, Tensor], parts: Sequence[Part], logprobs: Tensor) -> None:
    """Cut [M] into its rows and keep them."""
    lengths = [len(y) for part in parts for y in part.group.completions]
    pieces: Iterator[Tensor] = iter(torch.split(logprobs, lengths))
    for part in parts:
        for row in part.rows:
            target[row] = next(pieces)


def _measure_mismatch(metrics: Metrics, trainer: Tensor, sampler: Tensor, outside: int) -> None:
    difference = (trainer - sampler).abs()
    metrics.add("mismatch/mean", float(difference.sum()), len(difference))
    metrics.add("mismatch/max", float(difference.max()))
    metrics.add("mismatch/outside", outside, len(difference))


def _measure(metrics: Metrics, result: PolicyLoss, entropies: Tensor) -> None:
    metrics.add("entropy/mean", float(entropies.detach().sum()), len(entropies))
    metrics.add("ratio/clipped_low", result.clipped_low, result.num_tokens)
    metrics.add("ratio/clipped_high", result.clipped_high, result.num_tokens)
    metrics.add("ratio/min", result.min_ratio)
    metrics.add("ratio/max", result.max_ratio)
    if result.kl is not None:
        metrics.add("kl/mean", result.kl, result.num_tokens)
        metrics.add("kl/clamped", result.kl_clamped, result.num_tokens)
