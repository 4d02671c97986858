"""The row files of a run folder: metrics.jsonl, rollouts.jsonl, evals.jsonl. One strict JSON object a line.

Every line is on its way to disk before the call returns, so that a killed run loses at most the line it was writing.
Every row carries `global_step`, the step it belongs to counted from 1 over all stages (0: before the first), so that
`rewind` can take a folder back to a checkpoint. It computes no number and knows no model.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeGuard

from peerwise.errors import DataError, PeerwiseError
from peerwise.metrics.names import lookup
from peerwise.records import Completion, Group, Score

RECIPE_FILE = "recipe.toml"
"""What makes a folder a run."""
METRICS_FILE = "metrics.jsonl"
ROLLOUTS_FILE = "rollouts.jsonl"
EVALS_FILE = "evals.jsonl"
ROW_FILES = (METRICS_FILE, ROLLOUTS_FILE, EVALS_FILE)

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class RunFiles:
    """Appends rows to the files of one run folder, which is made when it is not there.

    A resumed run calls `rewind` before it writes anything: it also removes a line that a kill cut off.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _cannot_write(folder, error) from error

    def metrics(self, stage: str, step: int, values: Mapping[str, float], *, global_step: int) -> None:
        """One line of metrics.jsonl. Raises KeyError for a key that the table of names does not have."""
        for key in values:
            lookup(key)
        self._append(METRICS_FILE, {"stage": stage, "step": step, "global_step": global_step, **values})

    def group(
        self,
        stage: str,
        step: int,
        group: Group,
        advantages: Sequence[float],
        *,
        global_step: int,
        traces: Sequence[Mapping[str, Sequence[float]]] | None = None,
        policy_version: int | None = None,
    ) -> None:
        """One line of rollouts.jsonl: a sampled group with its scores and advantages [G].

        `traces` [G] are figures by token, by the names that `train.trace` gives them; {} where an answer has none.
        `policy_version`: steps that had been done when the answers were drawn.
        """
        problem = group.problem
        row = {
            "stage": stage,
            "step": step,
            "global_step": global_step,
            **({} if policy_version is None else {"policy_version": policy_version}),
            "problem": problem.id,
            "task": problem.task,
            "messages": list(problem.messages),
            "gold": problem.answer,
            "completions": [
                _completion_row(completion, score, float(advantage)) | dict(trace)
                for completion, score, advantage, trace in zip(
                    group.completions, group.scores, advantages, traces or [{}] * len(group.scores), strict=True
                )
            ],
        }
        self._append(ROLLOUTS_FILE, row)

    def evaluation(self, record: Mapping[str, Any]) -> None:
        """One line of evals.jsonl; the record carries `global_step` and may carry `at`: before, during, after."""
        if not _is_step(record.get("global_step")):
            raise ValueError(f"an evaluation needs an integer global_step to be found on resume; got {dict(record)}")
        self._append(EVALS_FILE, record)

    def rewind(self, global_step: int) -> dict[str, int]:
        """Remove every row after `global_step` and a cut-off last line; how many lines went, by file.

        Each file is replaced whole or not at all, and doing it again changes nothing.
        Raises DataError for a row that is broken or has no global_step.
        """
        return {name: _rewind(self.folder / name, global_step) for name in ROW_FILES}

    def _append(self, name: str, row: Mapping[str, Any]) -> None:
        path = self.folder / name
        line = _encode(row)
        try:
            with path.open("ab") as file:
                file.write(line)
        except OSError as error:
            raise _cannot_write(path, error) from error


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a file, one at a time; a last line that was cut off by a kill is passed over.

    Raises DataError when the file cannot be read, or with the line number when any other line is not a JSON object.
    """
    return (row for _, _, row in _lines(path) if row is not None)


def _completion_row(completion: Completion, score: Score, advantage: float) -> dict[str, Any]:
    return {
        "text": completion.text,
        "tokens": len(completion.token_ids),
        "finish": completion.finish,
        "reward": score.total,
        "parts": dict(score.parts),
        "correct": score.correct,
        "extracted": score.extracted,
        **({} if score.rule is None else {"rule": score.rule}),
        **({} if score.failed is None else {"failed": score.failed}),
        "advantage": advantage,
    }


def _encode(row: Mapping[str, Any]) -> bytes:
    """One line. Numbers that are not finite become null and are named; half a surrogate pair becomes U+FFFD."""
    non_finite: list[str] = []
    finite = _finite(row, "", non_finite)
    if non_finite:
        finite["non_finite"] = non_finite
    line = json.dumps(finite, ensure_ascii=False, allow_nan=False)
    return (_LONE_SURROGATE.sub("\ufffd", line) + "\n").encode("utf-8")


def _finite(value: Any, path: str, non_finite: list[str]) -> Any:
    """A copy of `value` with null for each number that is not finite; their dotted paths go to `non_finite`."""
    if isinstance(value, Mapping):
        return {key: _finite(item, f"{path}.{key}" if path else str(key), non_finite) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item, f"{path}.{index}", non_finite) for index, item in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        non_finite.append(path)
        return None
    return value


def _lines(path: Path) -> Iterator[tuple[int, bytes, dict[str, Any] | None]]:
    """(line number, line, its object); the object of a cut-off last line is None."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                yield number, line, _decode(path, number, line)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error


def _decode(path: Path, number: int, line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        # Rows are written with their newline, so only a last line without one can have been cut off.
        if not line.endswith(b"\n"):
            return None
        raise DataError(f"{path}, line {number}: not a JSON object ({error}); remove or repair that line") from error
    if not isinstance(row, dict):
        raise DataError(f"{path}, line {number}: expected a JSON object, got {type(row).__name__}")
    return row


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _rewind(path: Path, global_step: int) -> int:
    if not path.exists():
        return 0
    beside = path.with_name(path.name + ".rewind")
    removed = 0
    try:
        with beside.open("wb") as file:
            for number, line, row in _lines(path):
                if row is not None and _step_of(path, number, row) <= global_step:
                    file.write(line if line.endswith(b"\n") else line + b"\n")
                else:
                    removed += 1
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        raise _cannot_write(path, error) from error
    finally:
        beside.unlink(missing_ok=True)
    return removed


def _step_of(path: Path, number: int, row: Mapping[str, Any]) -> int:
    step = row.get("global_step")
    if not _is_step(step):
        raise DataError(f"{path}, line {number}: expected an integer global_step, got {step!r}; remove that line")
    return step


def _is_step(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _cannot_write(path: Path, error: OSError) -> PeerwiseError:
    return PeerwiseError(
        f"cannot write {path}: {error.strerror}; make room or give write access, then go on with "
        "`peerwise train --resume RUN`"
    )
