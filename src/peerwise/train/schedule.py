"""What changes over a stage, as pure functions of the step: learning rate, temperature, group size."""

from __future__ import annotations

import math
from typing import Literal

from peerwise.recipe.schema import Rollout, Stage


def stage_rate(stage: Stage, step: int, *, peak: float | None = None) -> float:
    """The learning rate of a stage's step, counted from 0; with another peak where one is given."""
    settings = stage.optimizer
    return learning_rate(
        step,
        peak=settings.learning_rate if peak is None else peak,
        steps=stage.steps,
        warmup_steps=settings.warmup_steps,
        schedule=settings.schedule,
        final_fraction=settings.final_fraction,
    )


def stage_temperature(stage: Stage, step: int) -> float:
    """The sampling temperature of a stage's step, counted from 0: constant, or on a line to the final one."""
    first, last = stage.rollout.temperature, stage.rollout.final_temperature
    return first if last is None else first + (last - first) * step / max(1, stage.steps - 1)


def group_size(rollout: Rollout, step: int) -> int:
    """Answers to each problem at a stage's step, counted from 0.

    >>> [group_size(Rollout(group_size=4, group_schedule={"2": 8, "3": 12}), step) for step in range(4)]
    [4, 4, 8, 12]
    """
    later = [size for start, size in rollout.group_schedule.items() if step >= int(start)]
    return later[-1] if later else rollout.group_size


def learning_rate(
    step: int,
    *,
    peak: float,
    steps: int,
    warmup_steps: int = 0,
    schedule: Literal["constant", "linear", "cosine"] = "constant",
    final_fraction: float = 0.0,
) -> float:
    """Rate of optimizer step `step` (from 0) of `steps`: a linear rise, then constant, or a fall to the final share.

    The first step already moves: warm-up over w steps gives peak / w, 2 peak / w, ... peak.
    """
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    if schedule == "constant":
        return peak
    done = (step - warmup_steps) / max(1, steps - warmup_steps)
    falling = 1 - done if schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))
    return peak * (final_fraction + (1 - final_fraction) * falling)
