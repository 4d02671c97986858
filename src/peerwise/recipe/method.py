"""What a stage's settings mean for the run: its method on every axis, whether it samples, what it keeps beside."""

from __future__ import annotations

import math
from dataclasses import fields, replace

from peerwise.algo.presets import PRESETS, Method
from peerwise.recipe.schema import Algorithm, Recipe, Rollout, Stage


def method_of(settings: Algorithm) -> Method:
    """Every axis resolved.

    Raises:
        KeyError: the preset is unknown (`check` says so with the nearest name).
    """
    axes = [field.name for field in fields(Method)]
    given = {axis: getattr(settings, axis) for axis in axes if getattr(settings, axis) is not None}
    return replace(PRESETS[settings.preset], **given)


def samples(stage: Stage) -> bool:
    """Whether the stage samples answers."""
    reads = {"sft": stage.sft.source == "solutions", "dpo": stage.dpo.pairs is not None}
    return not reads.get(stage.method, False)


def keeps_reference(stage: Stage) -> bool:
    """Whether the stage compares with the policy it started from."""
    return stage.method == "dpo" or (stage.method == "grpo" and method_of(stage.algorithm).kl_coefficient > 0)


def compares_groups(stage: Stage) -> bool:
    """Whether the answers to one problem are compared with each other, so that two are needed."""
    return stage.method != "grpo" or method_of(stage.algorithm).baseline in ("group", "leave_one_out")


def largest_group(rollout: Rollout) -> int:
    """The most answers to one problem that the stage samples."""
    return max([rollout.group_size, *rollout.group_schedule.values()])


def has_critic(stage: Stage) -> bool:
    """Whether a value network is trained along."""
    return stage.method == "grpo" and method_of(stage.algorithm).baseline == "critic"


def problems_per_step(stage: Stage) -> int:
    """Training problems, or pairs, that one step of the stage takes from its stream; refilling takes more."""
    if samples(stage):
        return stage.rollout.problems
    return stage.dpo.batch_size if stage.method == "dpo" else stage.sft.batch_size


def with_steps(recipe: Recipe, num_problems: int) -> Recipe:
    """The recipe with every stage's epochs turned into steps.

    >>> recipe = Recipe(stage={"a": Stage(method="sft", epochs=0.5)})
    >>> with_steps(recipe, 96).stage["a"].steps  # 48 of 96 problems, 16 a step
    3
    """
    stages = {}
    for name, stage in recipe.stage.items():
        if stage.epochs is not None:
            capped = stage.sft.examples if stage.method == "sft" and stage.sft.source == "solutions" else None
            taken = stage.epochs * min(num_problems, capped or num_problems)
            stage = stage.model_copy(update={"steps": max(1, math.ceil(taken / problems_per_step(stage)))})
        stages[name] = stage
    return recipe.model_copy(update={"stage": stages})
