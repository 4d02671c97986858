"""The first half of every step that learns from rewards: problems -> answers -> scores. Knows nothing of updates."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from peerwise.metrics.diagnosis import CONSTANT_PART, Trouble
from peerwise.metrics.value import Metrics
from peerwise.recipe.schema import Stage
from peerwise.records import Group, Problem, Score
from peerwise.rewards.asking import timeouts
from peerwise.rewards.rubric import score_groups
from peerwise.rewards.watch import Watch
from peerwise.rollout.base import Request, SamplingParams, sample_key
from peerwise.train.curriculum import curriculum
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
        self.generator = session.generator(name, stage.rollout)
        self.position = 0
        problems = [problem for members in session.problems.train.values() for problem in members]
        self.curriculum = curriculum(stage.curriculum, problems, steps=stage.steps, seed=self.seed)
        self.passed_over = self.timeouts = 0
        self.watches = {label: Watch(scorer.paid) for label, scorer in session.problems.scorers.items()}
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
        self.passed_over = 0
        before = timeouts()
        groups: list[Group] = []
        missing = rollout.problems
        for _ in range(1 + self.refill_rounds):
            groups += self._groups(self._take(missing, step), params, step)
            missing = rollout.problems - sum(group.informative for group in groups)
            if missing <= 0:
                break
        if self.curriculum is not None:
            self.curriculum.observe(groups)
        self._watch_rewards(groups)
        self.timeouts = timeouts() - before
        return groups

    def _watch_rewards(self, groups: Sequence[Group]) -> None:
        """Say it when a reward turns out to teach nothing."""
        for label, watch in self.watches.items():
            scores = [score for group in groups if group.problem.task == label for score in group.scores]
            if (text := watch.look(scores)) is not None:
                self.session.console.warn(Trouble(CONSTANT_PART, f"task {label}: {text}").line)

    def carried(self) -> dict[str, Any]:
        """What the next step needs to know besides the position."""
        return {} if self.curriculum is None else {"curriculum": self.curriculum.state()}

    def carry(self, values: Mapping[str, Any]) -> None:
        """Go on from `carried`."""
        if self.curriculum is not None:
            self.curriculum.load(values.get("curriculum", {}))

    def measure(self, metrics: Metrics, groups: Sequence[Group]) -> None:
        """What the step's samples say and cost."""
        _measure(metrics, groups)
        if self.curriculum is not None:
            metrics.add("curriculum/passed_over", self.passed_over)
        metrics.add("answers/timeouts", self.timeouts)
        metrics.add("epoch", self.order.epoch(self.position))
        metrics.add("time/sampling", self.seconds["sampling"])
        metrics.add("time/reward", self.seconds["reward"])
        tokens = sum(len(c.token_ids) for group in groups for c in group.completions)
        metrics.add("speed/sampled_tokens_per_s", tokens, self.seconds["sampling"])

    def _take(self, count: int, step: int) -> list[tuple[int, Problem]]:
        """The next problems of the stream that the curriculum admits, with their places in it."""
        found: list[tuple[int, Problem]] = []
        while len(found) < count:
            (problem,) = self.order.take(self.position, 1)
            if self.curriculum is None or self.curriculum.admits(problem, self.position, step):
                found.append((self.position, problem))
            else:
                self.passed_over += 1
            self.position += 1
        return found

    def _groups(self, problems: Sequence[tuple[int, Problem]], params: SamplingParams, step: int) -> list[Group]:
        size = group_size(self.stage.rollout, step)
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
        scorers = self.session.problems.scorers
        scores = score_groups(scorers, [problem for _, problem in problems], answers, step=step)
        self.seconds["sampling"] += sampled - started
        self.seconds["reward"] += time.perf_counter() - sampled
        return [
            Group(problem=problem, prompt_ids=request.prompt_ids, completions=completions, scores=of_group)
            for (_, problem), request, completions, of_group in zip(problems, requests, answers, scores, strict=True)
        ]


def _measure(metrics: Metrics, groups: Sequence[Group]) -> None:
    """What the samples say, before and apart from what the update did with them.

    An answer whose reward failed has no part in figures of rewards and correctness; there are figures of length.
    """
    for group in groups:
        scores = [score for score in group.scores if score.failed is None]
        metrics.add("reward/failed", len(group.scores) - len(scores), len(group.scores))
        distinct = len({completion.token_ids for completion in group.completions})
        metrics.add("groups/duplicates", len(group.completions) - distinct, len(group.completions))
        for completion in group.completions:
            metrics.add("length/longest", len(completion.token_ids))
            metrics.add("tokens/sampled", len(completion.token_ids))
            metrics.add("length/mean", len(completion.token_ids))
            metrics.add("length/truncated", float(completion.finish == "length"))
        for completion, score in zip(group.completions, group.scores, strict=True):
            if score.failed is None:
                metrics.add("length/right" if score.correct else "length/wrong", len(completion.token_ids))
        _measure_scores(metrics, group, scores)


def _measure_scores(metrics: Metrics, group: Group, scores: Sequence[Score]) -> None:
    """What the scores of one group say, those that failed left out."""
    right = sum(score.correct for score in scores)
    rewards = torch.tensor([score.total for score in scores], dtype=torch.float64)
    metrics.add("groups/informative", float(group.informative))
    metrics.add("groups/equal", float(bool((rewards == rewards[:1]).all())))
    metrics.add("groups/all_right", float(0 < right == len(scores)))
    metrics.add("groups/all_wrong", float(right == 0))
    if not scores:
        return
    metrics.add("reward/mean", float(rewards.sum()), len(scores))
    metrics.add("reward/std_in_group", float(rewards.std(correction=0)))
    metrics.add("accuracy/sampled", right, len(scores))
    for score in scores:
        metrics.add("answers/unread", float(score.extracted is None))
        for name, value in score.parts.items():
            if value is not None:
                metrics.add(f"reward/part/{name}", value)
