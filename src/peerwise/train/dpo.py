"""DPO on pairs that the verifier makes (a right and a wrong answer of the policy's own), or on pairs of a file."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict

import torch
from torch import Tensor

from peerwise.algo.preference import dpo_loss
from peerwise.metrics.value import Metrics
from peerwise.models.forward import PackedGroup
from peerwise.models.lora import Reference
from peerwise.recipe.schema import Stage
from peerwise.records import Group
from peerwise.tasks.order import Order
from peerwise.tasks.pairs import Pair
from peerwise.train.budget import make_budget
from peerwise.train.learner import Learner
from peerwise.train.likelihood import sequence_logprobs, weighted_likelihood
from peerwise.train.optimizer import Optimizer, move
from peerwise.train.sampling import Sampling
from peerwise.train.schedule import stage_rate, stage_temperature
from peerwise.train.sequences import packed_groups
from peerwise.train.session import Session


class Dpo(Learner):
    """One stage of DPO. Without a file of pairs every step samples groups as GRPO does."""

    def __init__(self, session: Session, name: str, stage: Stage, optimizer: Optimizer) -> None:
        self.session, self.stage, self.optimizer = session, stage, optimizer
        self.budget = make_budget(stage.optimizer.micro_batch_tokens, session.policy.model, session.console.note)
        self.reference = Reference(session.policy.model)
        self.groups: list[Group] = []
        self.advantages = torch.zeros(0)
        self.read: list[Pair] = []
        self.sampling = Sampling(session, name, stage) if stage.dpo.pairs is None else None
        if self.sampling is None:
            self.order = Order([session.pairs[name]], [1.0], seed=session.stage_seed(name))

    def step(self, step: int) -> Metrics:
        """Batch `step` of the stage: pairs, sampled or read, then one optimizer update."""
        metrics = Metrics()
        self.groups = []
        packed, pairs = self._read_pairs(metrics) if self.sampling is None else self._sampled_pairs(step, metrics)
        started = time.perf_counter()
        rate = stage_rate(self.stage, step)
        metrics.add("learning_rate", rate)
        if pairs:
            # Answers of a file were drawn at no temperature.
            temperature = 1.0 if self.sampling is None else stage_temperature(self.stage, step)
            self._update(packed, pairs, metrics, rate, temperature)
        else:
            metrics.add("loss", 0.0)
            metrics.add("skipped/empty", 1)
        seconds = time.perf_counter() - started
        metrics.add("time/training", seconds)
        trained = sum(len(answer) for group in packed for answer in group.completions)
        metrics.add("speed/trained_tokens_per_s", trained, seconds)
        return metrics

    def save_batch(self, name: str) -> None:
        """Keep the last batch for going through it by hand."""
        self.session.save_bad(name, [*map(asdict, self.groups), *map(asdict, self.read)])

    def _sampled_pairs(self, step: int, metrics: Metrics) -> tuple[list[PackedGroup], list[tuple[int, int]]]:
        """The groups of a step that hold a pair, and the pairs. `advantages`: +1, -1, or 0 for an answer in no pair."""
        assert self.sampling is not None
        self.groups = self.sampling.draw(step)
        self.sampling.measure(metrics, self.groups)
        used = [group for group in self.groups if group.informative]
        pairs = pairs_of(used)
        metrics.add("pairs/mean", len(pairs), len(self.groups))
        signs = torch.zeros(sum(len(group.completions) for group in used))
        for right, wrong in pairs:
            signs[right], signs[wrong] = 1.0, -1.0
        self.advantages = torch.zeros(len(self.groups), len(self.groups[0].completions))
        if used:
            self.advantages[[group.informative for group in self.groups]] = signs.view(len(used), -1)
        return packed_groups(used), pairs

    def _read_pairs(self, metrics: Metrics) -> tuple[list[PackedGroup], list[tuple[int, int]]]:
        """The next pairs of the file, each a group of two answers, the better one first."""
        size = self.stage.dpo.batch_size
        self.read = self.order.take(self.position, size)
        self.position += size
        metrics.add("epoch", self.order.epoch(self.position))
        groups = [self._packed(pair) for pair in self.read]
        return groups, [(2 * i, 2 * i + 1) for i in range(size)]

    def _packed(self, pair: Pair) -> PackedGroup:
        policy = self.session.policy
        answers = tuple(policy.answer_ids(text) for text in (pair.chosen, pair.rejected))
        return PackedGroup(prompt=policy.prompt_ids(pair.messages), completions=answers)

    def _update(
        self,
        groups: Sequence[PackedGroup],
        pairs: Sequence[tuple[int, int]],
        metrics: Metrics,
        rate: float,
        temperature: float,
    ) -> None:
        """One optimizer step on pairs of (right, wrong) places among all completions of the groups.

        The loss couples two answers that may lie in different micro-batches. It depends on them through the log-probs
        of whole answers only, so these are computed first, and the loss's slope in each of them is the weight with
        which that answer is then followed or avoided: the same gradient, whatever the micro-batches.
        """
        budget = self.budget
        model = self.session.policy.model
        with self.reference.policy() as frozen:
            reference = _sums(sequence_logprobs(frozen, groups, temperature=temperature, micro_batch_tokens=budget))
        sums = _sums(sequence_logprobs(model, groups, temperature=temperature, micro_batch_tokens=budget))
        sums.requires_grad_()
        right, wrong = (torch.tensor([pair[side] for pair in pairs]) for side in (0, 1))
        loss, margins = dpo_loss(sums[right], sums[wrong], reference[right], reference[wrong], beta=self.stage.dpo.beta)
        loss.backward()  # type: ignore[no-untyped-call]
        assert sums.grad is not None
        weighted_likelihood(
            self.session.policy,
            groups,
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
        judged = [(start + i, score.correct) for i, score in enumerate(group.scores) if score.failed is None]
        right, wrong = ([place for place, correct in judged if correct == side] for side in (True, False))
        pairs += zip(right, wrong, strict=False)
        start += len(group.completions)
    return pairs


def _sums(logprobs: Sequence[Tensor]) -> Tensor:
    """[B] log-probs of whole answers, float64: hundreds of tokens add up to differences of a few nats."""
    return torch.stack([row.double().sum() for row in logprobs]).cpu()
