"""Supervised fine-tuning: imitate worked solutions, completion tokens only."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict

from peerwise.errors import DataError
from peerwise.metrics.value import Metrics
from peerwise.recipe.schema import Stage
from peerwise.records import Problem
from peerwise.tasks.order import Order
from peerwise.train.optimizer import Optimizer
from peerwise.train.schedule import stage_rate
from peerwise.train.session import Session
from peerwise.train.step import imitation_step


class Sft:
    """One stage of imitation.

    Raises:
        DataError: no training problem has a worked solution that fits.
    """

    def __init__(self, session: Session, name: str, stage: Stage, optimizer: Optimizer) -> None:
        self.session, self.stage, self.optimizer = session, stage, optimizer
        self.position = 0
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
        self.order = order
        self.examples: list[Problem] = []

    def carried(self) -> dict[str, float]:
        """Nothing but the position goes from one step to the next."""
        return {}

    def carry(self, values: Mapping[str, float]) -> None:
        """Nothing to go on from."""

    def step(self, step: int) -> Metrics:
        """Optimizer step `step` of the stage, on the next examples of the stream."""
        started = time.perf_counter()
        policy = self.session.policy
        size = self.stage.sft.batch_size
        self.examples = self.order.take(self.position, size)
        self.position += size
        examples = [(policy.prompt_ids(p.messages), policy.answer_ids(p.solution or "")) for p in self.examples]
        settings = self.stage.optimizer
        rate = stage_rate(self.stage, step)
        metrics = imitation_step(
            policy,
            examples,
            self.optimizer,
            learning_rate=rate,
            micro_batch_tokens=settings.micro_batch_tokens,
        )
        seconds = time.perf_counter() - started
        metrics.add("learning_rate", rate)
        metrics.add("epoch", self.order.epoch(self.position))
        metrics.add("time/training", seconds)
        metrics.add("speed/trained_tokens_per_s", sum(len(answer) for _, answer in examples), seconds)
        return metrics

    def save_batch(self, name: str) -> None:
        """Keep the last batch for going through it by hand."""
        self.session.save_bad(name, [asdict(problem) for problem in self.examples])

    def _usable(self, problem: Problem) -> bool:
        """Solved, and no longer than an answer may be. A token is at least one byte, and counting bytes is quick."""
        if problem.solution is None:
            return False
        limit = self.stage.rollout.max_new_tokens
        return len(problem.solution.encode()) < limit or len(self.session.policy.answer_ids(problem.solution)) <= limit
