"""From samples to scores: the named rewards, weighted parts, the user's own, and scoring a batch of groups.

A scorer takes a whole batch and gives one score for each sample, in order. A score's `correct` is the judge's verdict
whatever the reward pays for, unless the user's own function says otherwise. Knows no model and no tensors.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from peerwise.errors import RequestError, RewardError, nearest
from peerwise.records import Completion, Problem, Score
from peerwise.rewards import custom, equal
from peerwise.rewards.math import grade
from peerwise.rewards.parts import LENGTH_PARTS, PARTS, Judged

Sample = tuple[Problem, Completion]
Weight = float | Mapping[str, float]
"""A number, or points {step: weight} with lines between them and constant outside."""

NAMED: dict[str, dict[str, float]] = {
    "correctness": {"correct": 1.0},
    "graded": {"levels": 1.0, "correct": 0.0, "format": 0.0, "steps": 0.0},
    "shaped": {"shaped": 1.0, "correct": 0.0, "format": 0.0, "steps": 0.0, "intermediate": 0.0},
    "programs": {"programs": 1.0},
}
"""Rubrics by name; a part of weight 0 is measured and not paid."""
NAMES = (*NAMED, "parts")
LONGEST_STEP = 15
"""Digits of a step that a weight may follow."""


class Scorer(Protocol):
    """Scores a batch: one score for each sample, in their order. `step` is the stage's, counted from 0."""

    @property
    def name(self) -> str:
        """What messages call it."""

    @property
    def paid(self) -> frozenset[str] | None:
        """Names of the parts whose weight is ever above 0; None where any part may be paid."""

    @property
    def best(self) -> Mapping[str, float]:
        """Paid part -> its value for a bare right answer; empty where that is not known."""

    def __call__(self, samples: Sequence[Sample], *, step: int = 0) -> list[Score]: ...


def build(
    reward: str | Callable[..., Any],
    weights: Mapping[str, Weight] | None = None,
    *,
    last_number: bool = True,
    longest: int | None = None,
    all_or_nothing: bool = False,
    timeout_s: float = 60.0,
    most_failures: float = 0.1,
    warn: Callable[[str], object] = warnings.warn,
) -> Scorer:
    """The scorer that a recipe's `reward` and the settings beside it ask for; `reward` may be a Python function too.

    Args:
        longest: tokens that an answer may have, for the parts `length` and `cosine`.
        all_or_nothing: a program is worth 1 when it passes every test and 0 otherwise.
        timeout_s, most_failures, warn: for your own function, see `custom.Own`.

    Raises RequestError for an unknown reward, weights that do not fit, or a user's file that cannot be loaded.
    """
    if weights and reward != "parts":
        raise RequestError(f"reward_weights go with reward = 'parts', given {reward!r}; leave them out")
    if not isinstance(reward, str) or ":" in reward:
        return custom.load(reward, last_number=last_number, timeout_s=timeout_s, most_failures=most_failures, warn=warn)
    if reward not in NAMES:
        raise RequestError(f"unknown reward {reward!r}; {nearest(reward, NAMES)}, or path/to/file.py:function")
    chosen = _checked(weights or {}) if reward == "parts" else NAMED[reward]
    if longest is None and (measured := LENGTH_PARTS & set(chosen)):
        raise RequestError(f"the parts {', '.join(sorted(measured))} need `longest`, the tokens an answer may have")
    run = None
    if "programs" in chosen:
        from peerwise.rewards.programs import programs

        run = partial(programs, all_or_nothing=all_or_nothing)
    return Rubric(name=reward, weights=chosen, last_number=last_number, longest=longest, programs=run)


@dataclass(frozen=True, kw_only=True)
class Rubric:
    """Weighted parts: the total is their weighted sum, one that does not apply counting 0; they travel unweighted.

    Where `programs` is among the parts, running the program also decides what is correct.
    """

    name: str
    weights: Mapping[str, Weight]
    last_number: bool = True
    longest: int | None = None
    programs: Callable[[Sequence[Sample]], list[Score]] | None = None

    @property
    def paid(self) -> frozenset[str]:
        """Names of the parts whose weight is ever above 0."""
        return frozenset(name for name, weight in self.weights.items() if any(_values(weight)))

    @property
    def best(self) -> Mapping[str, float]:
        """Paid part -> its value for a bare right answer, for the parts that such an answer must satisfy."""
        return {name: best for name in self.weights if name in self.paid and (best := PARTS[name].best) is not None}

    def __call__(self, samples: Sequence[Sample], *, step: int = 0) -> list[Score]:
        """One score for each sample, in their order, with the weights of the stage's `step`, counted from 0."""
        weights = {name: weight_at(weight, step) for name, weight in self.weights.items()}
        return [_score(judged, weights) for judged in self._judged(samples)]

    def _judged(self, samples: Sequence[Sample]) -> list[Judged]:
        if self.programs is not None:
            scores = self.programs(samples)
            return [self._with_tests(sample, score) for sample, score in zip(samples, scores, strict=True)]
        return [self._read(problem, answer) for problem, answer in samples]

    def _read(self, problem: Problem, answer: Completion) -> Judged:
        found = grade(answer.text, problem.answer, last_number=self.last_number)
        return Judged(
            problem=problem,
            completion=answer,
            correct=found.right,
            extracted=found.extraction.answer,
            rule=found.rule,
            longest=self.longest,
        )

    def _with_tests(self, sample: Sample, score: Score) -> Judged:
        return Judged(
            problem=sample[0],
            completion=sample[1],
            correct=score.correct,
            extracted=score.extracted,
            rule=score.rule,
            longest=self.longest,
            tests=score.total,
            parts=score.parts,
            failed=score.failed,
        )


def weight_at(weight: Weight, step: int) -> float:
    """A weight at a step: linear between the points, constant before the first and after the last.

    >>> [weight_at({"10": 0.2, "20": 1.0}, step) for step in (0, 15, 99)]
    [0.2, 0.6, 1.0]
    """
    if not isinstance(weight, Mapping):
        return float(weight)
    points = sorted((int(start), value) for start, value in weight.items())
    return float(np.interp(step, [start for start, _ in points], [value for _, value in points]))


def verifiable(problem: Problem) -> bool:
    """Whether the gold answer can be compared with anything: it equals itself and is not prose."""
    return equal.readable(problem.answer)


def score_groups(
    scorer_for: Mapping[str, Scorer],
    problems: Sequence[Problem],
    completions_per_problem: Sequence[Sequence[Completion]],
    *,
    step: int = 0,
) -> list[tuple[Score, ...]]:
    """[P] tuples of [G] scores, in the order of the completions; `scorer_for` maps a task's name to its scorer.

    Each task's samples are scored in one call. Raises RewardError when a scorer does not give one score for each
    sample, or a number that is not finite.
    """
    members: dict[str, list[int]] = {}
    for place, problem in enumerate(problems):
        members.setdefault(problem.task, []).append(place)
    groups: dict[int, tuple[Score, ...]] = {}
    for task, places in members.items():
        samples = [(problems[place], answer) for place in places for answer in completions_per_problem[place]]
        scores = iter(_complete(scorer_for[task], samples, step))
        for place in places:
            groups[place] = tuple(next(scores) for _ in completions_per_problem[place])
    return [groups[place] for place, _ in enumerate(zip(problems, completions_per_problem, strict=True))]


def _complete(scorer: Scorer, samples: Sequence[Sample], step: int) -> list[Score]:
    name, scores = getattr(scorer, "name", repr(scorer)), scorer(samples, step=step)
    if len(scores) != len(samples):
        raise RewardError(f"reward {name} gave {len(scores)} scores for {len(samples)} samples; expected one for each")
    for (problem, _), score in zip(samples, scores, strict=True):
        for part, value in {"total": score.total, **score.parts}.items():
            if value is not None and not math.isfinite(value):
                raise RewardError(f"reward {name} gave {part} = {value} on problem {problem.id}; expected a finite one")
    return scores


def _score(judged: Judged, weights: Mapping[str, float]) -> Score:
    if judged.failed is not None:
        return Score(
            total=0.0, correct=judged.correct, extracted=judged.extracted, rule=judged.rule, failed=judged.failed
        )
    values = {name: PARTS[name].value(judged) for name in weights}
    total = sum(weights[name] * value for name, value in values.items() if value is not None)
    return Score(
        total=total,
        correct=judged.correct,
        parts={**judged.parts, **values},
        extracted=judged.extracted,
        rule=judged.rule,
    )


def _values(weight: Weight) -> Sequence[float]:
    return list(weight.values()) if isinstance(weight, Mapping) else [weight]


def _checked(weights: Mapping[str, Weight]) -> Mapping[str, Weight]:
    """`weights` if they name known parts, are numbers and pay for something at every step; RequestError otherwise."""
    steps = {0}
    for name, weight in weights.items():
        if name not in PARTS:
            raise RequestError(f"reward_weights: unknown part {name!r}; {nearest(name, PARTS)}")
        if isinstance(weight, Mapping):
            if not weight or not all(str(start).isdecimal() and len(str(start)) <= LONGEST_STEP for start in weight):
                raise RequestError(f'reward_weights: {name} = {dict(weight)!r}; expected points such as {{"0" = 0.2}}')
            steps |= {int(start) for start in weight}
        for value in _values(weight):
            if not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
                raise RequestError(
                    f"reward_weights: {name} = {value!r} is not a weight; expected a number of 0 or more"
                )
    for step in sorted(steps):
        if not any(weight_at(weight, step) for weight in weights.values()):
            raise RequestError(
                f"reward = 'parts' needs reward_weights that pay for something, such as correct = 1, format = 0.2; at "
                f"step {step} they sum to 0"
            )
    return weights
