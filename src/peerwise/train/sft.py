"""Supervised fine-tuning: imitate worked solutions, or the policy's own right answers; completion tokens only."""

from __future__ import annotations

import time
from dataclasses import asdict

import torch

from peerwise.errors import DataError
from peerwise.metrics.value import Metrics
from peerwise.recipe.schema import Stage
from peerwise.records import Group, Problem
from peerwise.tasks.order import Order
from peerwise.train.budget import make_budget
from peerwise.train.learner import Learner
from peerwise.train.likelihood import imitation_step
from peerwise.train.optimizer import Optimizer
from peerwise.train.sampling import Sampling
from peerwise.train.schedule import stage_rate
from peerwise.train.session import Session


class Sft(Learner):
    """One stage of imitation.

    Raises:
        DataError: worked solutions are wanted, and no training problem has one that fits.
    """

    def __init__(self, session: Session, name: str, stage: Stage, optimizer: Optimizer) -> None:
        self.session, self.stage, self.optimizer = session, stage, optimizer
        self.budget = make_budget(stage.optimizer.micro_batch_tokens, session.policy.model, session.console.note)
        self.groups: list[Group] = []
        self.advantages = torch.zeros(0)
        self.examples: list[Problem] = []
        self.sampling = Sampling(session, name, stage) if stage.sft.source == "own" else None
        if self.sampling is None:
            self.order = self._solved(name)

    def step(self, step: int) -> Metrics:
        """Optimizer step `step` of the stage, on the next examples of the stream."""
        metrics = Metrics()
        self.groups = []
        if self.sampling is None:
            size = self.stage.sft.batch_size
            self.examples = self.order.take(self._position, size)
            self._position += size
            policy = self.session.policy
            examples = [(policy.prompt_ids(p.messages), policy.answer_ids(p.solution or "")) for p in self.examples]
            metrics.add("epoch", self.order.epoch(self._position))
        else:
            self.groups = self.sampling.draw(step)
            self.sampling.measure(metrics, self.groups)
            examples = self._right_answers()
        started = time.perf_counter()
        rate = stage_rate(self.stage, step)
        metrics.add("learning_rate", rate)
        if examples:
            metrics.merge(
                imitation_step(
                    self.session.policy,
                    examples,
                    self.optimizer,
                    learning_rate=rate,
                    micro_batch_tokens=self.budget,
                )
            )
        else:
            metrics.add("loss", 0.0)
            metrics.add("skipped/empty", 1)
        seconds = time.perf_counter() - started
        metrics.add("time/training", seconds)
        metrics.add("speed/trained_tokens_per_s", sum(len(answer) for _, answer in examples), seconds)
        return metrics

    def save_batch(self, name: str) -> None:
        """Keep the last batch for going through it by hand."""
        problems, groups = [asdict(p) for p in self.examples], [asdict(g) for g in self.groups]
        self.session.save_bad(name, problems or groups)

    def _right_answers(self) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """(prompt, answer) for the first right answers of each group that ended by themselves, no two alike.

        `advantages` becomes 1 for these and 0 for all others.
        """
        self.advantages = torch.zeros(len(self.groups), len(self.groups[0].completions))
        examples = []
        for group, row in zip(self.groups, self.advantages, strict=True):
            kept: set[tuple[int, ...]] = set()
            for index, (completion, score) in enumerate(zip(group.completions, group.scores, strict=True)):
                wanted = (
                    score.correct
                    and score.failed is None
                    and completion.finish == "stop"
                    and completion.token_ids not in kept
                )
                if wanted and len(kept) < self.stage.sft.own_answers:
                    kept.add(completion.token_ids)
                    row[index] = 1.0
                    examples.append((group.prompt_ids, completion.token_ids))
        return examples

    def _solved(self, name: str) -> Order[Problem]:
        """The stream of problems with a worked solution that fits."""
        session, stage = self.session, self.stage
        solved = {
            label: tuple(problem for problem in problems if self._usable(problem))
            for label, problems in session.problems.train.items()
        }
        unusable = sum(map(len, session.problems.train.values())) - sum(map(len, solved.values()))
        if unusable:
            session.console.note(
                f"stage {name}: left out {unusable} problems without a worked solution of at most "
                f"{stage.rollout.max_new_tokens} tokens"
            )
        if not any(solved.values()):
            raise DataError(
                "an sft stage needs worked solutions, and no training problem has one that fits into "
                f"rollout.max_new_tokens = {stage.rollout.max_new_tokens}; map the column that holds them "
                "(--task.columns solution=NAME), raise the limit or leave the stage out"
            )
        weights = [session.problems.tasks[label].weight for label, problems in solved.items() if problems]
        seed = session.stage_seed(name)
        order = Order([problems for problems in solved.values() if problems], weights, seed=seed)
        total = sum(map(len, solved.values()))
        if stage.sft.examples is not None and stage.sft.examples < total:
            order = Order([order.take(0, stage.sft.examples)], [1.0], seed=seed)
        return order

    def _usable(self, problem: Problem) -> bool:
        """Solved, and no longer than an answer may be. A token is at least one byte, and counting bytes is quick."""
        if problem.solution is None:
            return False
        limit = self.stage.rollout.max_new_tokens
        return len(problem.solution.encode()) < limit or len(self.session.policy.answer_ids(problem.solution)) <= limit
