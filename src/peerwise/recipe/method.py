"""What a stage's settings mean for the run: its method on every axis, whether it samples, what it keeps beside."""

from __future__ import annotations

from dataclasses import fields, replace

from peerwise.algo.presets import PRESETS, Method
from peerwise.recipe.schema import Algorithm, Stage


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
    return stage.method != "sft" or stage.sft.source == "own"


def keeps_reference(stage: Stage) -> bool:
    """Whether the stage compares with the policy it started from."""
    return stage.method == "dpo" or (stage.method == "grpo" and method_of(stage.algorithm).kl_coefficient > 0)


def has_critic(stage: Stage) -> bool:
    """Whether a value network is trained along."""
    return stage.method == "grpo" and method_of(stage.algorithm).baseline == "critic"
