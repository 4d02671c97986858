"""DPO on pairs that the verifier makes: a right and a wrong answer to one problem, both the policy's own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict

import torch
from torch import Tensor

from peerwise.algo.preference import dpo_loss
from peerwise.metrics.value import Metrics
from peerwise.models.lora import Reference
from peerwise.recipe.schema import Stage
from peerwise.records import Group
from peerwise.train.learner import Learner
from peerwise.train.optimizer import Optimizer
from peerwise.train.sampling import Sampling
from peerwise.train.schedule import stage_rate, stage_temperature
from peerwise.train.session import Session
from peerwise.train.step import move, sequence_logprobs, weighted_likelihood


class Dpo(Learner):
    """One stage of DPO; every step samples groups as GRPO does."""

    sampling: Sampling

    def __init__(self, session: Session, name: str, stage: Stage, optimizer: Optimizer) -> None:
        self.session, self.stage, self.optimizer = session, stage, optimizer
        self.sampling = Sampling(session, name, stage)
        self.reference = Reference(session.policy.model)
        self.groups: list[Group] = []
        self.advantages = torch.zeros(0)

    def step(self, step: int) -> Metrics:
        """Batch `step` of the stage: rollout -> score -> pairs -> update. `advantages`: +1, -1, or 0 (in no pair)."""
        self.groups = []
        self.groups = self.sampling.draw(step)
        started = time.perf_counter()
        pairs = pairs_of(self.groups)
        metrics = Metrics()
        self.sampling.measure(metrics, self.groups)
        signs = torch.zeros(len(self.groups), len(self.groups[0].completions))
        for right, wrong in pairs:
            signs.view(-1)[right], signs.view(-1)[wrong] = 1.0, -1.0
        self.advantages = signs
        rate = stage_rate(self.stage, step)
        metrics.add("learning_rate", rate)
        metrics.add("pairs/mean", len(pairs), len(self.groups))
        if pairs:
            self._update(pairs, metrics, rate, stage_temperature(self.stage, step))
        else:
            metrics.add("loss", 0.0)
            metrics.add("skipped/empty", 1)
        metrics.add("time/training", time.perf_counter() - started)
        return metrics

    def save_batch(self, name: str) -> None:
        """Keep the last batch for going through it by hand."""
        self.session.save_bad(name, [asdict(group) for group in self.groups])

    def _update(self, pairs: Sequence[tuple[int, int]], metrics: Metrics, rate: float, temperature: float) -> None:
        """One optimizer step on the pairs.

        The loss couples two answers that may lie in different micro-batches. It depends on them through the log-probs
        of whole answers only, so these are computed first, and the loss's slope in each of them is the weight with
        which that answer is then followed or avoided: the same gradient, whatever the micro-batches.
        """
        budget = self.stage.optimizer.micro_batch_tokens
        model = self.session.policy.model
        used = [group for group, signs in zip(self.groups, self.advantages, strict=True) if bool(signs.any())]
        rows = {row: place for place, row in enumerate(_rows(self.groups, self.advantages))}
        with self.reference.policy() as frozen:
            reference = _sums(sequence_logprobs(frozen, used, temperature=temperature, micro_batch_tokens=budget))
        sums = _sums(sequence_logprobs(model, used, temperature=temperature, micro_batch_tokens=budget))
        sums.requires_grad_()
        right, wrong = (torch.tensor([rows[pair[side]] for pair in pairs]) for side in (0, 1))
        loss, margins = dpo_loss(sums[right], sums[wrong], reference[right], reference[wrong], beta=self.stage.dpo.beta)
        loss.backward()  # type: ignore[no-untyped-call]
        assert sums.grad is not None
        weighted_likelihood(
            self.session.policy,
            [(group.prompt_ids, tuple(c.token_ids for c in group.completions)) for group in used],
            # The likelihood loss is minus the weighted log-prob.
            -sums.grad,
            self.optimizer,
            metrics,
            temperature=temperature,
            micro_batch_tokens=budget,
        )
        move(metrics, self.optimizer, rate)
        metrics.add("loss", float(loss.detach()))
        metrics.add("pairs/margin", float(margins.sum()), len(margins))
        metrics.add("pairs/preferred", float((margins > 0).sum()), len(margins))


def pairs_of(groups: Sequence[Group]) -> list[tuple[int, int]]:
    """(right, wrong) places among all completions: in each group, the i-th right answer with the i-th wrong one."""
    pairs: list[tuple[int, int]] = []
    start = 0
    for group in groups:
        right = [start + i for i, score in enumerate(group.scores) if score.correct]
        wrong = [start + i for i, score in enumerate(group.scores) if not score.correct]
        pairs += zip(right, wrong, strict=False)
        start += len(group.completions)
    return pairs


def _rows(groups: Sequence[Group], signs: Tensor) -> list[int]:
    """The places of the completions of groups that have a pair, in order."""
    size = len(groups[0].completions)
    return [g * size + i for g, row in enumerate(signs) if bool(row.any()) for i in range(size)]


def _sums(logprobs: Sequence[Tensor]) -> Tensor:
    """[B] log-probs of whole answers, float64: hundreds of tokens add up to differences of a few nats."""
    return torch.stack([row.double().sum() for row in logprobs]).cpu()
