"""A recipe file and the command line become one resolved `Recipe`, or one error that lists all that is wrong.

Knows the schema and nothing of what the settings mean together: that is `check`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from peerwise.algo.presets import PRESETS
from peerwise.errors import RecipeError, nearest
from peerwise.recipe.dump import diff, dumps
from peerwise.recipe.overrides import allows_none, parse, section_of, suggest, table
from peerwise.recipe.schema import METHOD_SECTIONS, STAGE_SECTIONS, Recipe, Section, Stage, Task

__all__ = ["diff", "dumps", "load", "loads"]

_TABLES_BY_NAME: dict[str, type[Section]] = {"stage": Stage, "more_tasks": Task}
"""The fields of a recipe that hold several sections."""


def load(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe file, with `--section.key value` words on top.

    Raises:
        RecipeError: no such file, not TOML, or as `loads`.
    """
    return _build(_read(Path(path)), overrides, str(path))


def loads(text: str, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe from TOML text, with `--section.key value` words on top.

    Text "None" is None wherever the schema allows None. `--help` among the overrides prints every setting and leaves
    through SystemExit(0).

    Raises:
        RecipeError: not TOML, an unknown flag or key, a value out of bounds (all of them in one message), or a base
            setting on the command line that some stage would ignore.
    """
    return _build(text, overrides, "recipe")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        beside = [other.name for other in path.parent.glob("*.toml")]
        hint = nearest(path.name, beside) if beside else "no .toml file is in that folder"
        raise RecipeError(f"{path}: no such recipe; {hint}") from None
    except IsADirectoryError:
        raise RecipeError(f"{path} is a folder, expected a recipe file such as {path / 'recipe.toml'}") from None
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path}: not UTF-8 at byte {error.start}; save it as UTF-8") from None
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read: {error.strerror}") from None


def _build(text: str, args: Sequence[str], source: str) -> Recipe:
    try:
        raw = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise RecipeError(f"{source}: not valid TOML: {error}") from None
    raw.setdefault("stage", {"grpo": {"method": "grpo"}})
    overrides = parse(args, raw, prog="peerwise COMMAND RECIPE") if args else {}
    _refuse_without_effect(raw, overrides)
    raw = _merge(raw, overrides)
    try:
        return Recipe.model_validate(_resolve(raw), strict=True)
    except ValidationError as error:
        lines = list(_violations(error, raw))
        count = "1 setting is" if len(lines) == 1 else f"{len(lines)} settings are"
        raise RecipeError(f"{source}: {count} wrong:\n  " + "\n  ".join(lines)) from None


def _merge(base: Any, top: Any) -> Any:
    """`top` over `base`: tables key by key, a list of tables by position, anything else replaced."""
    if isinstance(base, Mapping) and isinstance(top, Mapping):
        return {**base, **{key: _merge(base[key], top[key]) if key in base else top[key] for key in top}}
    if isinstance(base, list) and isinstance(top, Mapping):
        return [_merge(item, top.get(str(index), {})) for index, item in enumerate(base)]
    return top


def _resolve(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Every stage completed with the base sections, and "None" read as None."""
    shared = {section: raw[section] for section in STAGE_SECTIONS if section in raw}
    resolved = _with_nones(raw, Recipe)
    if isinstance(raw["stage"], Mapping):
        resolved["stage"] = {
            name: _with_nones(_merge(shared, stage), Stage) if isinstance(stage, Mapping) else stage
            for name, stage in raw["stage"].items()
        }
    if isinstance(tasks := raw.get("more_tasks"), list):
        resolved["more_tasks"] = [_with_nones(task, Task) if isinstance(task, Mapping) else task for task in tasks]
    return resolved


def _with_nones(values: Mapping[str, Any], model: type[Section]) -> dict[str, Any]:
    out = dict(values)
    for name, field in model.model_fields.items():
        if name in out and allows_none(field) and out[name] == "None":
            out[name] = None
        elif (section := section_of(field)) is not None and isinstance(out.get(name), Mapping):
            out[name] = _with_nones(out[name], section)
    return out


def _refuse_without_effect(raw: Mapping[str, Any], overrides: Mapping[str, Any]) -> None:
    """A setting that was typed must change something; otherwise its author trains with another one than they think."""
    stages, typed = table(raw, "stage"), table(overrides, "stage")
    methods = {name: table(typed, name).get("method", table(stages, name).get("method")) for name in stages}
    lines: list[str] = []
    for section in STAGE_SECTIONS:
        readers = {method for method, own in METHOD_SECTIONS.items() if own == section} or set(METHOD_SECTIONS)
        users = [name for name in stages if str(methods[name]) in readers or methods[name] not in METHOD_SECTIONS]
        for key in table(overrides, section):
            lines += _shadowed(section, key, users, stages, typed)
        for name in stages:
            if name not in users and table(table(typed, name), section):
                lines.append(f"--stage.{name}.{section} has no effect: method {methods[name]!r} does not use it")
    if lines:
        raise RecipeError("\n".join(lines))


def _shadowed(
    section: str, key: str, users: Sequence[str], stages: Mapping[str, Any], typed: Mapping[str, Any]
) -> Iterator[str]:
    """What is wrong with a base setting on the command line, given the stages that read its section."""
    flag = f"--{section}.{key}".replace("_", "-")
    by_recipe = [name for name in users if key in table(table(stages, name), section)]
    by_flag = [name for name in users if key in table(table(typed, name), section)]
    if not users:
        yield f"{flag} has no effect: no stage uses [{section}]"
    elif set(users) == set(by_flag):
        yield f"{flag} has no effect: every stage was given its own; leave it out"
    for name in by_recipe:
        if name not in by_flag:
            own = f"--stage.{name}.{section}.{key}".replace("_", "-")
            yield f"{flag} has no effect on stage {name!r}, which sets its own; use {own}"


def _violations(error: ValidationError, raw: Mapping[str, Any]) -> Iterator[str]:
    """One line each; a base setting that is wrong is not repeated for the stages that inherit it."""
    for item in error.errors(include_url=False):
        where = item["loc"]
        if len(where) > 3 and where[0] == "stage":
            own = table(table(table(raw, "stage"), str(where[1])), str(where[2]))
            if where[2] in STAGE_SECTIONS and where[3] not in own:
                continue
        yield _violation(".".join(map(str, where)), item["type"], item["msg"], item["input"], where)


def _violation(key: str, kind: str, message: str, given: Any, where: tuple[int | str, ...]) -> str:
    if kind == "extra_forbidden":
        model, name = _model_at(where[:-1]), str(where[-1])
        hint = suggest(name, [*model.model_fields, *_leaves(model), *_leaves(Recipe)])
        hint = hint if hint.startswith("did") else nearest(name, model.model_fields)
        return f"{key}: unknown {'key' if len(where) > 1 else 'section or key'}; {hint}"
    if kind == "missing":
        meaning = _model_at(where[:-1]).model_fields[str(where[-1])].description or ""
        return f"{key}: missing; {' '.join(meaning.split())}"
    shown = repr(given)
    expected = "a table of settings" if kind == "model_type" else message.removeprefix("Input should be ")
    if where[-1] == "method" and given in PRESETS:
        expected += f"; {given!r} is a preset: method = 'grpo' with algorithm.preset = {given!r}"
    return f"{key}: got {shown if len(shown) <= 60 else shown[:57] + '...'}, expected {expected}"


def _leaves(model: type[Section]) -> list[str]:
    """The keys of a section's own sections, as section.key."""
    sections = {name: section_of(field) for name, field in model.model_fields.items()}
    return [f"{name}.{key}" for name, section in sections.items() if section for key in section.model_fields]


def _model_at(where: tuple[int | str, ...]) -> type[Section]:
    """The section that lies at a path of the recipe."""
    model: type[Section] = Recipe
    for step in map(str, where):
        if model is Recipe and step in _TABLES_BY_NAME:
            model = _TABLES_BY_NAME[step]
        elif (field := model.model_fields.get(step)) and (section := section_of(field)):
            model = section
    return model
