"""Rules for the reward settings of a task: names, weights and their schedules, and that form cannot beat correctness.

Knows what each part may differ by, and not how it is computed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from peerwise.errors import nearest
from peerwise.recipe.finding import Finding, unknown, warning
from peerwise.recipe.schema import Task

REWARDS = ("correctness", "graded", "shaped", "programs", "parts")
ANSWER_PARTS = {"correct": 1.0, "levels": 0.8, "shaped": 0.5, "cosine": 1.0, "programs": 1.0}
"""Part -> the least that a right answer is above a wrong one of the same form."""
FORM_PARTS = {"format": 1.0, "steps": 1.0, "intermediate": 0.5, "length": 1.0, "repetition": 1.0, "language": 1.0}
"""Part -> the most that two answers differ by, whether right or wrong."""
PARTS = {**ANSWER_PARTS, **FORM_PARTS}
LENGTH_PARTS = ("length", "cosine")


def rules(key: str, task: Task, end: int | None) -> Iterator[Finding]:
    """What is to be said of the task under `key`; `end` is the last step that learns from it, None if not known."""
    path, _, function = task.reward.rpartition(":")
    is_own = path.endswith(".py") and function.isidentifier()
    if task.reward not in REWARDS and not is_own:
        yield Finding(
            f"{key}.reward: unknown name {task.reward!r}; {nearest(task.reward, REWARDS)} "
            "Your own is given as path/to/file.py:function"
        )
    if task.reward != "parts" and task.reward_weights:
        yield Finding(f"{key}.reward_weights: has no effect with reward {task.reward!r}; set reward = 'parts'")
    malformed = list(_malformed(f"{key}.reward_weights", task.reward_weights))
    yield from malformed
    if task.reward == "parts" and not malformed:
        yield from _balance(f"{key}.reward_weights", task.reward_weights, end)
    runs_programs = "programs" in (task.reward, *task.reward_weights)
    used = {
        "reward_length": any(part in task.reward_weights for part in LENGTH_PARTS),
        "reward_timeout": is_own,
        "reward_failures": is_own,
        "all_or_nothing": runs_programs,
    }
    for field in (field for field, is_used in used.items() if not is_used):
        if getattr(task, field) != Task.model_fields[field].default:
            yield warning(f"{key}.{field}: reward {task.reward!r} does not use it")


def _malformed(key: str, weights: Mapping[str, float | Mapping[str, float]]) -> Iterator[Finding]:
    for part, weight in weights.items():
        if part not in PARTS:
            yield unknown(f"{key}.{part}", part, PARTS)
        if isinstance(weight, Mapping):
            steps = [int(start) if start.isdecimal() else -1 for start in weight]
            if not steps or min(steps) < 0 or steps != sorted(set(steps)):
                yield Finding(
                    f"{key}.{part}: got steps {', '.join(weight) or 'none'}; expected whole numbers of 0 or more, each "
                    'after the one before, such as { "0" = 0.2, "100" = 1.0 }'
                )
        for value in weight.values() if isinstance(weight, Mapping) else [weight]:
            if not math.isfinite(value) or value < 0:
                yield Finding(f"{key}.{part}: got {value}, expected a finite number of 0 or more")


def _balance(key: str, weights: Mapping[str, float | Mapping[str, float]], end: int | None) -> Iterator[Finding]:
    """Whether something is paid at every step, and whether a well-formed wrong answer can beat a right one."""
    starts = {int(start) for weight in weights.values() if isinstance(weight, Mapping) for start in weight}
    if end is not None and max(starts, default=0) > end:
        yield warning(f"{key}: some of it lies beyond the {end + 1} steps of the last stage that learns from rewards")
    *steps, last = sorted({0, *starts}) if end is None else [*sorted(step for step in {0, *starts} if step < end), end]
    unpaid = [step for step in (*steps, last) if not any(_at(weight, step) for weight in weights.values())]
    if len(unpaid) == len(steps) + 1:
        yield Finding(f"{key}: reward 'parts' needs weights, such as {{correct = 1.0, format = 0.2}}")
        return
    if unpaid:
        yield Finding(f"{key}: the weights sum to 0 at step {unpaid[0]}; nothing would be learned there")
    form, answer = _of(FORM_PARTS, weights, last), _of(ANSWER_PARTS, weights, last)
    form_weighs = f"{key}: the other parts together weigh {form:g}" + (f" at step {last}, the last" if starts else "")
    if form > answer:
        yield Finding(
            f"{form_weighs}, more than the {answer:g} between a right answer and a wrong one: a well-formed wrong "
            "answer would beat a right one; raise correct or lower the others"
        )
    elif form == answer:
        yield warning(f"{form_weighs}, as much as correctness; the model may learn form instead of answers")
    early = [step for step in steps if _of(FORM_PARTS, weights, step) > _of(ANSWER_PARTS, weights, step)]
    if early:
        yield warning(
            f"{key}: at step {early[-1]} the other parts together weigh more than correctness; until the weights have "
            "moved on, the model learns form"
        )


def _of(worth: Mapping[str, float], weights: Mapping[str, float | Mapping[str, float]], step: int) -> float:
    """What the parts named in `worth` can make of a difference at a step; rounded, so that sums compare as written."""
    return round(sum(_at(weight, step) * worth.get(part, 0.0) for part, weight in weights.items()), 9)


def _at(weight: float | Mapping[str, float], step: int) -> float:
    if not isinstance(weight, Mapping):
        return weight
    return float(np.interp(step, [int(start) for start in weight], list(weight.values())))
