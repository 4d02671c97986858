"""From a problem and a completion to a score: the named rewards, the user's own, and scoring a batch of groups.

A score's `correct` is the ordinary judge's verdict whatever the reward pays for, unless the user's own function says
otherwise. Knows no model and no tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial, update_wrapper

from peerwise.errors import RequestError, RewardError, nearest
from peerwise.records import Completion, Problem, Score
from peerwise.rewards import custom, equal, shape
from peerwise.rewards.math import judge

Scorer = Callable[[Problem, Completion], Score]

PARTS = ("correct", "format", "steps")
NAMES = ("correctness", "graded", "parts")


def build(reward: str, weights: Mapping[str, float] | None = None, *, last_number: bool = True) -> Scorer:
    """The scorer that a recipe's `reward`, `reward_weights` and `last_number` ask for.

    Raises RequestError for an unknown reward, weights that do not fit, or a user's file that cannot be loaded.
    """
    if reward == "parts":
        return _weighted(_checked(weights or {}), last_number)
    if weights:
        raise RequestError(f"reward_weights go with reward = 'parts', given {reward!r}; leave them out")
    if ":" in reward:
        return custom.load(reward, last_number=last_number)
    if reward == "correctness":
        return update_wrapper(partial(correctness, last_number=last_number), correctness)
    if reward == "graded":
        return update_wrapper(partial(graded, last_number=last_number), graded)
    raise RequestError(f"unknown reward {reward!r}; {nearest(reward, NAMES)}, or path/to/file.py:function")


def correctness(problem: Problem, completion: Completion, *, last_number: bool = True) -> Score:
    """1 for a right answer, 0 otherwise."""
    correct, extracted = judge(completion.text, problem.answer, last_number=last_number)
    return Score(total=float(correct), correct=correct, parts={"correct": float(correct)}, extracted=extracted)


def graded(problem: Problem, completion: Completion, *, last_number: bool = True) -> Score:
    """1 right; 0.2 wrong, in form, with steps; 0.1 steps without a stated answer; 0 wrong, in form, no steps;
    -0.5 neither form nor steps; -1 empty."""
    correct, extracted = judge(completion.text, problem.answer, last_number=last_number)
    form, steps = shape.form(completion.text), shape.steps(completion.text)
    if form is None:
        total = -1.0
    elif correct:
        total = 1.0
    elif form:
        total = 0.2 if steps else 0.0
    else:
        total = 0.1 if steps else -0.5
    parts = {"correct": float(correct), "format": form, "steps": steps}
    return Score(total=total, correct=correct, parts=parts, extracted=extracted)


def verifiable(problem: Problem) -> bool:
    """Whether the gold answer can be compared with anything: it equals itself and is not prose."""
    return equal.readable(problem.answer)


def score_groups(
    scorer_for: Mapping[str, Scorer],
    problems: Sequence[Problem],
    completions_per_problem: Sequence[Sequence[Completion]],
) -> list[tuple[Score, ...]]:
    """[P] tuples of [G] scores, in the order of the completions; `scorer_for` maps a task's name to its scorer.

    Raises RewardError, naming reward and problem, when a scorer raises or its total or a part is not a finite number.
    """
    return [
        tuple(_score(scorer_for[problem.task], problem, completion) for completion in completions)
        for problem, completions in zip(problems, completions_per_problem, strict=True)
    ]


def _score(scorer: Scorer, problem: Problem, completion: Completion) -> Score:
    name = getattr(scorer, "__name__", repr(scorer))
    try:
        score = scorer(problem, completion)
    except RewardError:
        raise
    except Exception as error:
        raise RewardError(f"reward {name} raised {type(error).__name__} on problem {problem.id}: {error}") from error
    if not isinstance(score, Score):
        raise RewardError(f"reward {name} returned {score!r} on problem {problem.id}, expected a Score")
    for part, value in {"total": score.total, **score.parts}.items():
        if (value is None and part == "total") or (value is not None and not math.isfinite(value)):
            raise RewardError(f"reward {name} gave {part} = {value} on problem {problem.id}, expected a finite number")
    return score


def _weighted(weights: Mapping[str, float], last_number: bool) -> Scorer:
    def parts(problem: Problem, completion: Completion) -> Score:
        correct, extracted = judge(completion.text, problem.answer, last_number=last_number)
        values: dict[str, float | None] = {
            "correct": float(correct),
            "format": shape.form(completion.text),
            "steps": shape.steps(completion.text),
        }
        values = {name: values[name] for name in weights}
        total = sum(weights[name] * value for name, value in values.items() if value is not None)
        return Score(total=total, correct=correct, parts=values, extracted=extracted)

    return parts


def _checked(weights: Mapping[str, float]) -> Mapping[str, float]:
    """`weights` if they name known parts and those of form cannot outweigh correctness; RequestError otherwise."""
    for name, weight in weights.items():
        if name not in PARTS:
            raise RequestError(f"reward_weights: unknown part {name!r}; {nearest(name, PARTS)}")
        if not math.isfinite(weight) or weight < 0:
            raise RequestError(f"reward_weights: {name} = {weight} is not a weight; expected a number of 0 or more")
    if not weights.get("correct"):
        raise RequestError(
            "reward = 'parts' needs reward_weights with `correct` above 0, e.g. correct = 1, format = 0.2"
        )
    form = sum(weight for name, weight in weights.items() if name != "correct")
    if form > weights["correct"]:
        raise RequestError(
            f"reward_weights: the other parts together weigh {form:g}, more than correct = {weights['correct']:g}: a "
            "well-formed wrong answer would beat a right one; raise correct or lower the others"
        )
    return weights
