"""What every tracker is to us: the little protocol that TensorBoard, Weights & Biases and the others are put behind.

A tracker lives in a process of its own (`child`), is told plain data and knows nothing of recipes, models or rewards.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

Row = Mapping[str, str | float | bool | None]
"""One line of a table: a name for each cell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a tracker is told of a run when it begins.

    Example:
        Run(name="seed1", folder="runs/seed1", project="peerwise", settings={"run": {"seed": 1}})
    """

    name: str
    folder: str
    """Absolute path; a tracker that keeps files keeps them there."""
    project: str
    settings: dict[str, Any] = field(default_factory=dict)
    """The resolved recipe as nested plain values."""
    known_as: str | None = None
    """The tracker's own name for the run, where it goes on with one."""
    from_step: int = 0
    """Steps that are done; what was told of later ones before is told again."""


class Tracker(Protocol):
    """One run at one tracker. Steps rise and are counted over all stages. Whatever fails, raises."""

    known_as: str
    """How the tracker itself calls the run; given back when the run goes on."""

    def __init__(self, run: Run) -> None: ...

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Figures of a step."""

    def table(self, step: int, name: str, rows: Sequence[Row]) -> None:
        """Texts of a step, such as samples."""

    def mark(self, step: int, name: str, text: str) -> None:
        """Something that begins after a step, such as a stage."""

    def close(self, done: bool) -> None:
        """The end of the run, or with False of this process's part of it."""


def as_text(rows: Sequence[Row]) -> str:
    """A table for a tracker that has only texts: a line `name: value` for each cell, a blank line between rows."""
    return "\n\n".join("\n".join(f"{name}: {'' if v is None else v}" for name, v in row.items()) for row in rows)


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings with dotted names and their values as text.

    >>> flat({"run": {"seed": 1}, "model": {"path": None}})
    {'run.seed': '1', 'model.path': 'null'}
    """
    found: dict[str, str] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return found


def own_folder(run: Run, name: str) -> Path:
    """Where a tracker that keeps files of this run keeps them."""
    folder = Path(run.folder) / name
    folder.mkdir(exist_ok=True)
    return folder
