"""From `--section.key value` on the command line to raw settings, as if they had been written in the recipe.

tyro splits the words and prints the help, whose texts are the schema's docstrings; it never sees a type, so that
a value is judged in one place, by the schema, with the recipe's other settings. Knows nothing about merging.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Annotated, Any, TypedDict, get_args, get_origin

import tyro
from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from peerwise.errors import RecipeError, nearest
from peerwise.recipe.schema import Recipe, Section, Stage, Task

STAGE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
"""A stage is a folder in the run and a word in a flag."""

_SCALAR_NAMES = {"int": "INT", "float": "FLOAT", "str": "TEXT", "bool": "[true|false]"}


def parse(args: Sequence[str], raw: Mapping[str, Any], *, prog: str) -> dict[str, Any]:
    """Only what was typed, as nested raw settings: {"rollout": {"group_size": 16}}.

    `raw` is the recipe as read: it gives the stage names, the number of tasks and the values the help shows.
    `--help` among the words prints it and leaves through SystemExit(0).

    Raises:
        RecipeError: an unknown flag, a flag given twice, a stray word, or the wrong number of values.
    """
    flags: dict[str, FieldInfo] = {}
    kind = _recipe_type(raw, flags)
    try:
        typed, unknown = tyro.cli(
            kind, args=list(args), prog=prog, description="Every setting of a recipe.", return_unknown_args=True
        )
    except SystemExit as stop:
        if stop.code:
            raise RecipeError(f"cannot read the settings {' '.join(args)!r}; {prog} --help lists them") from None
        raise
    _refuse_unknown(unknown, flags)
    _refuse_repeated(args, flags)
    return _values(typed, "--", flags)


def allows_none(field: FieldInfo) -> bool:
    """Whether None is one of the field's values; in a recipe and on the command line it is written "None"."""
    return NoneType in get_args(field.annotation)


def section_of(field: FieldInfo) -> type[Section] | None:
    """The model of a field that is itself a section."""
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None


def table(values: Any, key: str) -> Mapping[str, Any]:
    """values[key] where both are tables, else an empty one; the schema reports what is not a table."""
    inner = values.get(key, {}) if isinstance(values, Mapping) else {}
    return inner if isinstance(inner, Mapping) else {}


def suggest(name: str, known: Sequence[str]) -> str:
    """A tail for 'unknown' messages: names that end the same, at most three, else as `nearest`."""
    same_end = dict.fromkeys(other for other in known if _last(other) == _last(name))
    return f"did you mean {' or '.join(map(repr, list(same_end)[:3]))}?" if same_end else nearest(name, known)


def _last(name: str) -> str:
    return name.removeprefix("--").rpartition(".")[2]


def _recipe_type(raw: Mapping[str, Any], flags: dict[str, FieldInfo]) -> Any:
    """The type tyro reads: one table per section and stage of this recipe. Fills `flags` by the way."""
    members: dict[str, Any] = {}
    for name, field in Recipe.model_fields.items():
        if (section := section_of(field)) is not None:
            members[name] = _section_type(section, f"--{name}", table(raw, name), {}, flags)
    tasks = raw.get("more_tasks", [])
    for index, task in enumerate(tasks if isinstance(tasks, list) else []):
        numbered = members.setdefault("more_tasks", {})
        numbered[str(index)] = _section_type(Task, f"--more-tasks.{index}", table({"task": task}, "task"), {}, flags)
    if numbered := members.get("more_tasks"):
        members["more_tasks"] = _typed_dict("MoreTasks", numbered)
    stages = {
        name: _section_type(Stage, f"--stage.{name}", table(raw["stage"], name), raw, flags)
        for name in table(raw, "stage")
        if STAGE_NAME.fullmatch(name)
    }
    return _typed_dict("Recipe", members | {"stage": _typed_dict("Stages", stages)})


def _section_type(
    section: type[Section],
    prefix: str,
    now: Mapping[str, Any],
    inherited: Mapping[str, Any],
    flags: dict[str, FieldInfo],
) -> Any:
    members: dict[str, Any] = {}
    for name, field in section.model_fields.items():
        flag = f"{prefix}.{name}".replace("_", "-")
        if (inner := section_of(field)) is not None:
            below = {**table(inherited, name), **table(now, name)}
            members[name] = _section_type(inner, flag, below, {}, flags)
        else:
            flags[flag] = field
            members[name] = _leaf(field, now.get(name, field.get_default(call_default_factory=True)))
    return _typed_dict(section.__name__, members, section.__doc__)


def _typed_dict(name: str, members: dict[str, Any], doc: str | None = None) -> Any:
    # total=False makes tyro leave out what was not typed, so a value that equals the default still counts as given.
    kind: Any = TypedDict(name, members, total=False)  # type: ignore[misc]
    kind.__doc__ = doc
    return kind


def _leaf(field: FieldInfo, now: Any) -> Any:
    hint = "(required)" if field.is_required() and repr(now) == "PydanticUndefined" else f"(now: {now!r})"
    return Annotated[list[str], tyro.conf.arg(help=field.description, metavar=_metavar(field), help_behavior_hint=hint)]


def _metavar(field: FieldInfo) -> str:
    kind: Any = field.annotation
    none = "|None" if allows_none(field) else ""
    kind = next((arg for arg in get_args(kind) if arg is not NoneType), kind) if none else kind
    if get_origin(kind) is list:
        return "TEXT ..."
    if get_origin(kind) is dict:
        return "KEY=VALUE ..."
    return (_SCALAR_NAMES.get(getattr(kind, "__name__", "")) or "|".join(map(str, get_args(kind)))) + none


def _refuse_unknown(words: Sequence[str], flags: Mapping[str, FieldInfo]) -> None:
    lines = []
    for word in (word.partition("=")[0] for word in words if word.startswith("--")):
        hint = suggest(word.replace("_", "-"), list(flags))
        lines.append(f"unknown flag {word!r}; " + (hint if hint.startswith("did") else "--help lists every setting"))
    if words and not lines:
        lines.append(f"unexpected {' '.join(words)!r}; settings are given as --section.key value")
    if lines:
        raise RecipeError("\n".join(lines))


def _refuse_repeated(args: Sequence[str], flags: Mapping[str, FieldInfo]) -> None:
    named = Counter(word.partition("=")[0].replace("_", "-") for word in args if word.startswith("--"))
    if twice := [flag for flag, count in named.items() if count > 1 and flag in flags]:
        raise RecipeError(f"given more than once: {', '.join(twice)}; give each setting once")


def _values(typed: Mapping[str, Any], prefix: str, flags: Mapping[str, FieldInfo]) -> dict[str, Any]:
    """The words of each flag as values; tables in which nothing was typed are left out."""
    values: dict[str, Any] = {}
    for name, words in typed.items():
        flag = f"{prefix}{name}".replace("_", "-")
        if isinstance(words, Mapping):
            if inner := _values(words, f"{prefix}{name}.", flags):
                values[name] = inner
        else:
            values[name] = _value(words, flags[flag], flag)
    return values


def _value(words: list[str], field: FieldInfo, flag: str) -> Any:
    """Text as the field's type where it can be; where it cannot it stays text, which the schema then reports."""
    kind: Any = field.annotation
    if get_origin(kind) is list:
        return words
    if get_origin(kind) is dict:
        return _pairs(words, kind, flag)
    if kind is bool and not words:
        return True
    if len(words) != 1:
        raise RecipeError(f"{flag}: takes one value, got {len(words)}{': ' + ' '.join(words) if words else ''}")
    if allows_none(field) and words == ["None"]:
        return None
    return _converted(words[0], kind)


def _pairs(words: list[str], kind: Any, flag: str) -> dict[str, Any]:
    if not words or not all(word.partition("=")[0] and "=" in word for word in words):
        raise RecipeError(f"{flag}: got {' '.join(words)!r}, expected one or more key=value")
    value_kind = get_args(kind)[1]
    pairs = (word.partition("=") for word in words)
    return {key: _toml_value(text) if value_kind is Any else _converted(text, value_kind) for key, _, text in pairs}


def _converted(text: str, kind: Any) -> Any:
    try:
        return TypeAdapter(kind).validate_python(text)
    except ValidationError:
        return text


def _toml_value(text: str) -> Any:
    """A value as a recipe would hold it: 3, 0.5, true, [1, 2]; anything else is text."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return parsed["value"] if len(parsed) == 1 else text
