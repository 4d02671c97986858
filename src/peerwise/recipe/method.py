"""The method that a recipe's `[algorithm]` section stands for: a preset with what the recipe sets on top."""

from __future__ import annotations

from dataclasses import fields, replace

from peerwise.algo.presets import PRESETS, Method
from peerwise.recipe.schema import Algorithm


def method_of(settings: Algorithm) -> Method:
    """Every axis resolved.

    Raises:
        KeyError: the preset is unknown (`check` says so with the nearest name).
    """
    axes = [field.name for field in fields(Method)]
    given = {axis: getattr(settings, axis) for axis in axes if getattr(settings, axis) is not None}
    return replace(PRESETS[settings.preset], **given)
