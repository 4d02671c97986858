"""The first half of every step that learns from rewards: problems -> answers -> scores. Knows nothing of updates."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from peerwise.metrics.value import Metrics
from peerwise.recipe.schema import Stage
from peerwise.records import Group, Problem
from peerwise.rewards.rubric import score_groups
from peerwise.rollout.base import Request, SamplingParams, sample_key
from peerwise.train.schedule import group_size, stage_temperature
from peerwise.train.session import Session


class Sampling:
    """Draws and scores the groups of one stage, step after step.

    Args:
        refill_rounds: how often more problems are sampled in one step while fewer than `rollout.problems` groups are
            informative (dynamic sampling; DAPO, Yu et al. 2025, eq. 11).
    """

    def __init__(self, session: Session, name: str, stage: Stage, *, refill_rounds: int = 0) -> None:
        self.session, self.stage, self.refill_rounds = session, stage, refill_rounds
        self.seed = session.stage_seed(name)
        self.order = session.problems.order(self.seed)
        self.generator = session.generator(stage.rollout)
        self.position = 0
        self.seconds = {"sampling": 0.0, "reward": 0.0}

    def draw(self, step: int) -> list[Group]:
        """All groups sampled for a stage's step, counted from 0; with refilling that may be more than asked for."""
        rollout = self.stage.rollout
        params = SamplingParams(
            max_new_tokens=rollout.max_new_tokens,
            temperature=stage_temperature(self.stage, step),
            stop=tuple(rollout.stop),
        )
        self.seconds = {"sampling": 0.0, "reward": 0.0}
        groups: list[Group] = []
        missing = rollout.problems
        for _ in range(1 + self.refill_rounds):
            groups += self._groups(self._take(missing), params, group_size(rollout, step))
            missing = rollout.problems - sum(group.informative for group in groups)
            if missing <= 0:
                break
        return groups

    def measure(self, metrics: Metrics, groups: Sequence[Group]) -> None:
        """What the step's samples say and cost."""
        _measure(metrics, groups)
        metrics.add("epoch", self.order.epoch(self.position))
        metrics.add("time/sampling", self.seconds["sampling"])
        metrics.add("time/reward", self.seconds["reward"])
        tokens = sum(len(c.token_ids) for group in groups for c in group.completions)
        metrics.add("speed/sampled_tokens_per_s", tokens, self.seconds["sampling"])

    def _take(self, count: int) -> list[tuple[int, Problem]]:
        """The next problems of the stream with their places in it."""
        problems = list(enumerate(self.order.take(self.position, count), self.position))
        self.position += count
        return problems

    def _groups(self, problems: Sequence[tuple[int, Problem]], params: SamplingParams, size: int) -> list[Group]:
        # Keys come from the place in the stream, so a problem that returns in a later epoch is drawn afresh.
        requests = [
            Request(
                prompt_ids=self.session.policy.prompt_ids(problem.messages),
                keys=tuple(sample_key(self.seed, place, problem.id, index) for index in range(size)),
            )
            for place, problem in problems
        ]
        started = time.perf_counter()
        answers = self.generator.generate(requests, params)
        sampled = time.perf_counter()
        scores = score_groups(self.session.problems.scorers, [problem for _, problem in problems], answers)
        self.seconds["sampling"] += sampled - started
        self.seconds["reward"] += time.perf_counter() - sampled
        return [
            Group(problem=problem, prompt_ids=request.prompt_ids, completions=completions, scores=of_group)
            for (_, problem), request, completions, of_group in zip(problems, requests, answers, scores, strict=True)
        ]


def _measure(metrics: Metrics, groups: Sequence[Group]) -> None:
    """What the samples say, before and apart from what the update did with them."""
    for group in groups:
        right = sum(score.correct for score in group.scores)
        rewards = torch.tensor(group.rewards, dtype=torch.float64)
        metrics.add("reward/mean", sum(group.rewards), len(group.rewards))
        metrics.add("reward/std_in_group", float(rewards.std(correction=0)))
        metrics.add("accuracy/sampled", right, len(group.scores))
        metrics.add("groups/equal", float(bool((rewards == rewards[0]).all())))
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
