"""The files of a run folder, read so that whatever is broken or missing is named and the rest is used.

Unlike `metrics.write.read_rows`, which stops at a broken line, because a resumed run must not build on one. Knows
nothing of what the numbers mean. Raises only for a folder in which there is nothing of a run.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

from peerwise.errors import RunFolderError
from peerwise.evaluate.pairing import number
from peerwise.metrics.write import EVALS_FILE, METRICS_FILE, RECIPE_FILE, ROLLOUTS_FILE

LOG_FILE, CHECKPOINTS = "run.log", "checkpoints"
FILES = (RECIPE_FILE, METRICS_FILE, ROLLOUTS_FILE, EVALS_FILE, LOG_FILE)

Row = dict[str, Any]


@dataclass(slots=True)
class RunFolder:
    """What could be read of a run. Rows carry their `line` (from 1) beside what the file holds."""

    path: Path
    recipe: str = ""
    log: str = ""
    metrics: list[Row] = field(default_factory=list)
    rollouts: list[Row] = field(default_factory=list)
    evals: list[Row] = field(default_factory=list)
    checkpoints: list[int] = field(default_factory=list)
    """Global steps of the checkpoints that are still there."""
    missing: list[str] = field(default_factory=list)
    """What could not be read, a sentence each."""


def read_folder(path: Path, files: Collection[str] = FILES) -> RunFolder:
    """Read a run folder, or only some of its files. Numbers that are not finite come back as None, but for
    those of rollouts that overflow.

    Raises RunFolderError when the folder is not there or holds none of a run's files.
    """
    if not any((path / name).is_file() for name in FILES):
        raise RunFolderError(f"{path} is not a run: expected a folder that `peerwise train` wrote, with {METRICS_FILE}")
    run = RunFolder(path)
    run.recipe, run.log = (_text(run, name) if name in files else "" for name in (RECIPE_FILE, LOG_FILE))
    run.metrics, run.rollouts, run.evals = (
        _rows(run, name) if name in files else [] for name in (METRICS_FILE, ROLLOUTS_FILE, EVALS_FILE)
    )
    run.checkpoints = sorted(
        int(number)
        for found in path.glob(f"{CHECKPOINTS}/step-*")
        if (number := found.name.removeprefix("step-")).isascii() and number.isdigit()
    )
    return run


def step_of(row: Row) -> int:
    """The row's step counted over all stages; every row that was read has one."""
    step: int = row["global_step"]
    return step


def _text(run: RunFolder, name: str) -> str:
    content = _bytes(run, name)
    return "" if content is None else content.decode("utf-8", errors="replace")


def _bytes(run: RunFolder, name: str) -> bytes | None:
    try:
        content = (run.path / name).read_bytes()
    except OSError as error:
        run.missing.append(f"{name} cannot be read ({error.strerror}), so nothing here comes from it.")
        return None
    if not content:
        run.missing.append(f"{name} is empty.")
    return content


def _rows(run: RunFolder, name: str) -> list[Row]:
    content = _bytes(run, name)
    if content is None:
        return []
    rows: list[Row] = []
    broken: Counter[str] = Counter()
    for line_number, line in enumerate(BytesIO(content), 1):
        # The figures of rollouts are checked where they are used: there are millions, and few are ever looked at.
        row = _row(line, checked=name != ROLLOUTS_FILE)
        if isinstance(row, str):
            broken["cut off" if not line.endswith(b"\n") else row] += 1
        else:
            rows.append(row | {"line": line_number})
    if broken.pop("cut off", 0):
        run.missing.append(f"The last line of {name} is cut off: it was being written, or the run was killed.")
    run.missing += [f"{name}: {count} lines are left out ({reason})." for reason, count in broken.items()]
    return rows


def _row(line: bytes, *, checked: bool) -> Row | str:
    """The object of one line, or why there is none. `checked`: floats that overflow become None."""
    try:
        row = json.loads(line.decode("utf-8"), parse_constant=_nothing, parse_float=_finite if checked else None)
    except (ValueError, RecursionError):
        return "not JSON"
    if not isinstance(row, dict):
        return "not a JSON object"
    step = row.get("global_step")
    if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < 2**53:
        return "no global_step"
    return row


def _nothing(name: str) -> None:
    return None


def _finite(text: str) -> float | None:
    return number(float(text))
