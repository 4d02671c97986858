"""The learning rate as a pure function of the step."""

from __future__ import annotations

import math
from typing import Literal

from peerwise.recipe.schema import Stage


def stage_rate(stage: Stage, step: int) -> float:
    """The learning rate of a stage's step, counted from 0."""
    settings = stage.optimizer
    return learning_rate(
        step,
        peak=settings.learning_rate,
        steps=stage.steps,
        warmup_steps=settings.warmup_steps,
        schedule=settings.schedule,
        final_fraction=settings.final_fraction,
    )


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
