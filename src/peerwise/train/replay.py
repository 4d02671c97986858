"""A store of informative groups that later steps use again, and how old what they use is.

It knows when a group was sampled and what it taught; the update that uses it is elsewhere.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from peerwise.metrics.value import Metrics
from peerwise.records import Completion, Group, Problem, Score


@dataclass(frozen=True, slots=True)
class Kept:
    """A group and the stage's step that sampled it."""

    step: int
    group: Group


class Replay:
    """Keeps groups for a bounded number of steps.

    What is drawn at a step depends on the seed, the step and what was kept, so a resumed run draws the same.

    Args:
        groups: how many join each step; fewer where fewer are kept.
        steps: steps after which a group is forgotten.
    """

    def __init__(self, groups: int, steps: int, *, seed: int) -> None:
        self.groups, self.steps, self.seed = groups, steps, seed
        self.kept: list[Kept] = []

    def draw(self, step: int, size: int) -> list[Kept]:
        """Groups of `size` answers to learn from again at a step, at random, none of them twice."""
        self.kept = [kept for kept in self.kept if step - kept.step <= self.steps]
        fitting = [kept for kept in self.kept if len(kept.group.completions) == size]
        return random.Random(f"{self.seed}/replay/{step}").sample(fitting, min(self.groups, len(fitting)))

    def keep(self, step: int, groups: Sequence[Group]) -> None:
        """Remember the informative ones of the groups that a step sampled."""
        if self.groups:
            self.kept += [Kept(step, group) for group in groups if group.informative]

    def state(self) -> list[dict[str, Any]]:
        """What is kept, as plain values; problems by task and id, since a run has them anyway."""
        return [
            {
                "step": kept.step,
                "task": kept.group.problem.task,
                "problem": kept.group.problem.id,
                "prompt_ids": list(kept.group.prompt_ids),
                "completions": [asdict(completion) for completion in kept.group.completions],
                "scores": [asdict(score) for score in kept.group.scores],
            }
            for kept in self.kept
        ]

    def load(self, rows: Sequence[Mapping[str, Any]], problems: Mapping[tuple[str, str], Problem]) -> None:
        """Go on from `state`; a group whose problem, by (task, id), is no longer there is forgotten."""
        known = [row for row in rows if (row["task"], row["problem"]) in problems]
        self.kept = [Kept(row["step"], _group(row, problems[row["task"], row["problem"]])) for row in known]


def measure(metrics: Metrics, drawn: Sequence[Kept], step: int) -> None:
    """How much of a step's update is old, and how old."""
    metrics.add("replay/groups", len(drawn))
    for kept in drawn:
        metrics.add("replay/age", step - kept.step)
        metrics.add("replay/oldest", step - kept.step)


def _group(row: Mapping[str, Any], problem: Problem) -> Group:
    completions = (
        Completion(**{**c, "token_ids": tuple(c["token_ids"]), "logprobs": tuple(c["logprobs"])})
        for c in row["completions"]
    )
    return Group(
        problem=problem,
        prompt_ids=tuple(row["prompt_ids"]),
        completions=tuple(completions),
        scores=tuple(Score(**score) for score in row["scores"]),
    )
