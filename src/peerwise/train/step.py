"""The optimizer steps on one batch of sampled groups, in micro-batches that leave the gradient as it is.

Knows nothing of tasks, rewards or run folders: groups with advantages come in, measurements go out.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from peerwise.algo.correction import mismatch_weights
from peerwise.algo.policy import PolicyLoss, policy_loss
from peerwise.algo.presets import Method
from peerwise.metrics.value import Metrics
from peerwise.models.forward import packed_forward
from peerwise.models.load import Policy
from peerwise.models.lora import Reference
from peerwise.records import Group
from peerwise.train.batch import Part, micro_batches
from peerwise.train.budget import TokenBudget, budget_of
from peerwise.train.likelihood import part_logprobs
from peerwise.train.optimizer import Optimizer, move
from peerwise.train.sequences import Batch, make_batch, store, updates
from peerwise.train.trace import Seen


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
    micro_batch_tokens: int | TokenBudget,
    passes: int = 1,
    mini_batches: int = 1,
    seed: int = 0,
    reference: Reference | None = None,
    kl_coefficient: float | None = None,
    mismatch_bound: float = 2.0,
    stale: int = 0,
    seen: Seen | None = None,
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
        seen: is given what was computed for each token.
    """
    in_loss = reference is not None and method.kl_in == "loss"
    keep_all = in_loss or method.entropy_coefficient > 0
    batch = make_batch(groups, advantages, method, keep_all=keep_all, stale=stale, device=policy.model.device)
    metrics = Metrics()
    steps = _Steps(
        policy=policy,
        batch=batch,
        method=method,
        optimizer=optimizer,
        metrics=metrics,
        learning_rate=learning_rate,
        temperature=temperature,
        budget=budget_of(micro_batch_tokens),
        reference=reference if in_loss else None,
        kl_coefficient=method.kl_coefficient if kl_coefficient is None else kl_coefficient,
        mismatch_bound=mismatch_bound,
        seen=seen,
    )
    with packed_forward(policy.model, offload=policy.offload):
        if mini_batches > 1 or method.entropy_share < 1:
            steps.look_ahead()
        for number in range(passes):
            for skip, weights in updates(batch, method, max_new_tokens, mini_batches, f"{seed}/{number}"):
                steps.update(skip, weights, first=number == 0)
    if "loss" not in metrics.resolve():
        metrics.add("loss", 0.0)
    return metrics


@dataclass(slots=True, kw_only=True)
class _Steps:
    """The optimizer steps on one batch; the fields are those of `policy_step`."""

    policy: Policy
    batch: Batch
    method: Method
    optimizer: Optimizer
    metrics: Metrics
    learning_rate: float
    temperature: float
    budget: TokenBudget
    reference: Reference | None  # None unless the loss is charged for the divergence from it
    kl_coefficient: float
    mismatch_bound: float
    seen: Seen | None
    threshold: float | None = None
    """Entropy from which on a token follows its advantage; None: all do."""

    def look_ahead(self) -> None:
        """The log-probs and entropies of the whole batch before anything has moved."""
        batch = self.batch
        known = batch.old

        def look(tokens: int) -> None:
            batch.old = known
            for parts in micro_batches(batch.groups, tokens, skip=batch.skip):
                logprobs, entropies = part_logprobs(self.policy.model, parts, self.temperature)
                batch.keep_old(parts, logprobs)
                store(batch.entropies, parts, entropies)

        with torch.no_grad():
            self.budget.run(look)
        self.threshold = entropy_threshold(batch.entropies.values(), self.method.entropy_share)

    def update(self, skip: Sequence[bool], weights: Tensor, *, first: bool) -> None:
        """One optimizer step. `weights` [B] of each token of a sequence; `first`: nothing has seen this batch yet."""
        if not bool(weights.any()):
            self.metrics.add("skipped/empty", 1)
            return
        known = self.batch.old

        def collect(tokens: int) -> Metrics:
            metrics, loss = Metrics(), 0.0
            self.batch.old = known
            with self.optimizer.weights.collecting():
                for parts in micro_batches(self.batch.groups, tokens, skip=skip):
                    result, entropies = self._loss(parts, weights, metrics, first=first)
                    result.loss.backward()  # type: ignore[no-untyped-call]
                    loss += float(result.loss.detach())
                    _measure(metrics, result, entropies)
            metrics.add("loss", loss)
            return metrics

        self.metrics.merge(self.budget.run(collect, forget=self.optimizer.zero_grad))
        move(self.metrics, self.optimizer, self.learning_rate)

    def _loss(
        self, parts: Sequence[Part], weights: Tensor, metrics: Metrics, *, first: bool
    ) -> tuple[PolicyLoss, Tensor]:
        """The loss of one micro-batch, and the entropies [M] of its tokens."""
        batch, method = self.batch, self.method
        rows = [row for part in parts for row in part.rows]
        if first and self.reference is not None:
            with self.reference.policy() as frozen, packed_forward(frozen):
                logprobs, _ = part_logprobs(frozen, parts, self.temperature, with_entropies=False)
                store(batch.reference, parts, logprobs)
        logprobs, entropies = part_logprobs(self.policy.model, parts, self.temperature)
        batch.keep_old(parts, logprobs.detach())
        if self.seen is not None:
            store(self.seen.logprobs, parts, logprobs.detach())
            if first:
                store(self.seen.entropies, parts, entropies.detach())
        old, lengths = batch.of(rows, batch.old), batch.lengths[rows].to(logprobs.device)
        result = policy_loss(
            logprobs,
            old,
            batch.of(rows, batch.advantages),
            weights[rows].to(logprobs.device).repeat_interleave(lengths),
            **method.objective,
            lengths=lengths,
            correction=self._correction(rows, old, metrics, first=first),
            reference=batch.of(rows, batch.reference) if self.reference is not None else None,
            divergence=method.divergence,
            kl_coefficient=self.kl_coefficient,
            entropies=entropies if method.entropy_coefficient > 0 else None,
            entropy_coefficient=method.entropy_coefficient,
        )
        return result, entropies

    def _correction(self, rows: Sequence[int], old: Tensor, metrics: Metrics, *, first: bool) -> Tensor | None:
        """[M] what the advantage of each token is multiplied by; None is 1. Measures the mismatch the first time."""
        batch = self.batch
        sampled = batch.of(rows, batch.sampled)
        correction, outside = mismatch_weights(old, sampled, kind=self.method.correction, bound=self.mismatch_bound)
        fresh = sum(int(batch.lengths[row]) for row in rows if row < batch.first_stale)
        if first and fresh:
            # Stale rows come last, and their denominator is the sampler's own: there is nothing to disagree about.
            _measure_mismatch(metrics, old[:fresh], sampled[:fresh], outside)
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
