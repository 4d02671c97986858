"""GRPO: sample a group of answers to each problem, score them, follow those above the mean, correct those below."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, replace

import torch
from torch import Tensor

from peerwise.algo.advantage import group_advantages
from peerwise.algo.presets import PRESETS, Method
from peerwise.metrics.value import Metrics
from peerwise.models.lora import Reference
from peerwise.recipe.schema import Algorithm, Stage
from peerwise.records import Group, Problem
from peerwise.rewards.rubric import score_groups
from peerwise.rollout.base import Request, SamplingParams, sample_key
from peerwise.train.optimizer import Optimizer
from peerwise.train.schedule import stage_rate
from peerwise.train.session import Session
from peerwise.train.step import policy_step


def method_of(settings: Algorithm) -> Method:
    """The preset with what the recipe sets on top."""
    axes = ("scale", "aggregation", "clip_low", "clip_high", "kl_coefficient")
    given = {axis: getattr(settings, axis) for axis in axes if getattr(settings, axis) is not None}
    return replace(PRESETS[settings.preset], **given)


class Grpo:
    """One stage of GRPO."""

    def __init__(self, session: Session, name: str, stage: Stage, optimizer: Optimizer) -> None:
        self.session, self.stage, self.optimizer = session, stage, optimizer
        self.seed = session.stage_seed(name)
        self.method = method_of(stage.algorithm)
        self.per_step = stage.rollout.problems
        self.order = session.problems.order(self.seed)
        self.generator = session.generator(stage.rollout)
        self.params = SamplingParams(
            max_new_tokens=stage.rollout.max_new_tokens,
            temperature=stage.rollout.temperature,
            stop=tuple(stage.rollout.stop),
        )
        # The policy as it stands now: the KL term starts at 0.
        self.reference = Reference(session.policy.model) if self.method.kl_coefficient > 0 else None
        self.groups: list[Group] = []
        self.advantages = torch.zeros(0)

    def step(self, step: int, position: int) -> Metrics:
        """Batch `step` of the stage: rollout -> score -> advantage -> update. Keeps the groups for whoever asks."""
        clock = time.perf_counter
        started = clock()
        self.groups = []
        problems = self.order.take(position, self.per_step)
        requests = self._requests(problems, position)
        answers = self.generator.generate(requests, self.params)
        sampled = clock()
        scores = score_groups(self.session.problems.scorers, problems, answers)
        self.groups = [
            Group(problem=problem, prompt_ids=request.prompt_ids, completions=completions, scores=of_group)
            for problem, request, completions, of_group in zip(problems, requests, answers, scores, strict=True)
        ]
        self.advantages = group_advantages(
            torch.tensor([group.rewards for group in self.groups]), scale=self.method.scale
        )
        scored = clock()
        metrics = self._update(step)
        trained = clock()
        _measure(metrics, self.groups)
        tokens = sum(len(c.token_ids) for group in self.groups for c in group.completions)
        used = sum(
            len(c.token_ids)
            for group, row in zip(self.groups, self.advantages, strict=True)
            for c in group.completions
            if self.reference is not None or bool(row.any())
        )
        metrics.add("epoch", self.order.epoch(position + self.per_step))
        metrics.add("time/sampling", sampled - started)
        metrics.add("time/reward", scored - sampled)
        metrics.add("time/training", trained - scored)
        metrics.add("speed/sampled_tokens_per_s", tokens, sampled - started)
        passes = self.stage.algorithm.updates_per_batch
        metrics.add("speed/trained_tokens_per_s", passes * used, trained - scored)
        return metrics

    def save_batch(self, name: str) -> None:
        """Keep the last batch for going through it by hand."""
        rows = [
            asdict(group) | {"advantages": row} for group, row in zip(self.groups, _rows(self.advantages), strict=True)
        ]
        self.session.save_bad(name, rows)

    def _requests(self, problems: Sequence[Problem], position: int) -> list[Request]:
        """Keys come from the place in the stream, so a problem that returns in a later epoch is drawn afresh."""
        size = self.stage.rollout.group_size
        return [
            Request(
                prompt_ids=self.session.policy.prompt_ids(problem.messages),
                keys=tuple(sample_key(self.seed, place, problem.id, index) for index in range(size)),
            )
            for place, problem in enumerate(problems, position)
        ]

    def _update(self, step: int) -> Metrics:
        settings = self.stage.optimizer
        rate = stage_rate(self.stage, step)
        metrics = policy_step(
            self.session.policy,
            self.groups,
            self.advantages,
            self.optimizer,
            method=self.method,
            learning_rate=rate,
            temperature=self.params.temperature,
            max_new_tokens=self.params.max_new_tokens,
            micro_batch_tokens=settings.micro_batch_tokens,
            updates=self.stage.algorithm.updates_per_batch,
            reference=self.reference,
        )
        metrics.add("learning_rate", rate)
        return metrics


def _rows(advantages: Tensor) -> list[list[float]]:
    return [[float(value) for value in row] for row in advantages]


def _measure(metrics: Metrics, groups: Sequence[Group]) -> None:
    """What the samples say, before and apart from what the update did with them."""
    for group in groups:
        right = sum(score.correct for score in group.scores)
        rewards = torch.tensor(group.rewards, dtype=torch.float64)
        metrics.add("reward/mean", sum(group.rewards), len(group.rewards))
        metrics.add("reward/std_in_group", float(rewards.std(correction=0)))
        metrics.add("accuracy/sampled", right, len(group.scores))
        metrics.add("groups/informative", float(group.informative))
        metrics.add("groups/all_right", float(right == len(group.scores)))
        metrics.add("groups/all_wrong", float(right == 0))
        for completion, score in zip(group.completions, group.scores, strict=True):
            length = len(completion.token_ids)
            metrics.add("tokens/sampled", length)
            metrics.add("length/mean", length)
            metrics.add("length/right" if score.correct else "length/wrong", length)
            metrics.add("length/truncated", float(completion.finish == "length"))
            metrics.add("answers/unread", float(score.extracted is None))
            for name, value in score.parts.items():
                if value is not None:
                    metrics.add(f"reward/part/{name}", value)
