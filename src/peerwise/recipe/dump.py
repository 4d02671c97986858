"""A resolved recipe written as TOML that reads back equal, and what it changes against the defaults."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping
from typing import Any

from peerwise.errors import RecipeError
from peerwise.recipe.schema import STAGE_SECTIONS, Recipe, Section, Stage


def dumps(recipe: Recipe) -> str:
    """The recipe as TOML. `loads` reads it back to an equal Recipe.

    Sections are written in full, a stage only in what departs from them. A None that is the default is left out;
    any other None is written "None".
    """
    parts = []
    for name in Recipe.model_fields:
        if isinstance(section := getattr(recipe, name), Section):
            parts.append(_table(f"[{name}]", _shown(section)))
    parts += [_table("[[more_tasks]]", _shown(task)) for task in recipe.more_tasks]
    parts += [_stage(recipe, name, stage) for name, stage in recipe.stage.items()] or ["[stage]\n"]
    return "\n".join(parts)


def diff(recipe: Recipe, default: Recipe | None = None) -> dict[str, tuple[object, object]]:
    """Dotted key -> (default, recipe) for every setting that departs from `default` (None: the schema's defaults).

    A stage that only inherits a changed base setting is not listed again; a stage that `default` has not is compared
    with the recipe's own base sections.
    """
    default = Recipe() if default is None else default
    before, after = _flat(_without_stages(default)), _flat(_without_stages(recipe))
    changed = _changes(before, after)
    if list(recipe.stage) != list(default.stage):
        changed["stage"] = (list(default.stage), list(recipe.stage))
    for name, stage in recipe.stage.items():
        inherited = {section: getattr(recipe, section).model_dump() for section in STAGE_SECTIONS}
        own = _flat(stage.model_dump())
        if name in default.stage:
            theirs = _flat(default.stage[name].model_dump())
            same_as_base = {key for key, value in _flat(inherited).items() if own.get(key) == value}
            same_as_base = {key for key in same_as_base if theirs.get(key) == before.get(key)}
            found = {key: pair for key, pair in _changes(theirs, own).items() if key not in same_as_base}
        else:
            found = _changes(_flat({"steps": Stage.model_fields["steps"].default, **inherited}), own)
        changed |= {f"stage.{name}.{key}": pair for key, pair in found.items()}
    return changed


def _without_stages(recipe: Recipe) -> dict[str, object]:
    tasks = {str(index): task.model_dump() for index, task in enumerate(recipe.more_tasks)}
    return {**recipe.model_dump(exclude={"stage"}), "more_tasks": tasks}


def _changes(before: Mapping[str, object], after: Mapping[str, object]) -> dict[str, tuple[object, object]]:
    keys = [*after, *(key for key in before if key not in after)]
    return {key: (before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)}


def _flat(values: Any, prefix: str = "") -> dict[str, object]:
    """Nested tables by dotted key."""
    if not isinstance(values, Mapping):
        return {prefix: values}
    flat: dict[str, object] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}.{key}" if prefix else key)
    return flat


def _shown(section: Section) -> dict[str, object]:
    """The section's values; None is dropped where reading nothing gives None anyway."""
    values: dict[str, object] = {}
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if value is not None or field.get_default(call_default_factory=True) is not None:
            values[name] = value
    return values


def _stage(recipe: Recipe, name: str, stage: Stage) -> str:
    header = f"stage.{_key(name)}"
    own = {"method": stage.method, "steps": stage.steps, "epochs": stage.epochs}
    parts = [_table(f"[{header}]", {key: value for key, value in own.items() if value is not None})]
    for section in STAGE_SECTIONS:
        base, settings = getattr(recipe, section).model_dump(), getattr(stage, section).model_dump()
        if departs := {key: value for key, value in settings.items() if value != base[key]}:
            parts.append(_table(f"[{header}.{section}]", departs))
    return "\n".join(parts)


def _table(header: str, values: Mapping[str, object]) -> str:
    lines = (f"{_key(key)} = {_value(value)}\n" for key, value in values.items())
    return f"{header}\n" + "".join(lines)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _text(name)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if value is None or isinstance(value, str):
        return _text(str(value))
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(str(key))} = {_value(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    raise RecipeError(
        f"a recipe cannot hold {value!r} of type {type(value).__name__}; use text, numbers, lists, tables"
    )


def _text(text: str) -> str:
    # JSON's escapes are TOML's, save that TOML also wants DEL escaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
