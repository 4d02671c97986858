"""Rows of data files and hub data sets, with the line each came from.

Reads UTF-8 JSON lines, CSV and parquet. Knows nothing of what the columns mean. Libraries are imported when needed.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peerwise.errors import DataError
from peerwise.tasks.prompts import Template
from peerwise.tasks.source import Pool, ProblemSet, Request

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Row:
    """One row and where it stands, for messages and ids."""

    line: int
    """Line of the file, counted from 1; of parquet and hub data the row."""
    place: str
    """ "path, line 3"."""
    values: dict[str, Any]

    def text(self, column: str) -> str:
        """The column as text, numbers written out and whole ones without a decimal point; "" for null.

        Raises DataError when the column is missing, listing those that are there, or holds a list or object.
        """
        if column not in self.values:
            found = ", ".join(map(str, self.values)) or "none"
            raise DataError(f"{self.place}: no column {column!r}; found: {found}; map names with --task.columns")
        value = self.values[column]
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, list | dict):
            raise DataError(f"{self.place}: column {column!r} is a {type(value).__name__}, expected text or a number")
        text = "" if value is None else str(value).strip()
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise DataError(f"{self.place}: column {column!r} holds half a character ({error.reason})") from None
        return text


def pool(request: Request, read_split: Callable[[str], ProblemSet], own_test: str | None) -> Pool:
    """The split to train on and, where there is another one to evaluate on, that one too."""
    evaluation = request.eval_split or own_test
    return Pool(
        train=read_split(request.split),
        test=None if evaluation in (None, request.split) else read_split(str(evaluation)),
    )


def with_statement(solution: str, answer: str, template: Template) -> str:
    """`solution` ending in the answer in the template's form, which is added unless it is there."""
    stated = template.state(answer)
    return solution if stated in solution else f"{solution.rstrip()}\n{stated}"


def locate(path: str, split: str, trained: str) -> Path:
    """The file that holds `split`: `path` itself for the split that is trained on, else a sibling or a folder's file.

    Raises DataError naming what was looked for.
    """
    given = Path(path).expanduser()
    if given.is_file() and split == trained:
        return given
    folder = given if given.is_dir() else given.parent
    candidates = [folder / f"{split}{suffix}" for suffix in READERS]
    for candidate in candidates:
        if candidate.is_file() and given.exists():
            return candidate
    if not given.exists():
        raise DataError(f"there is no file or folder {path!r}; check --task.path")
    names = ", ".join(candidate.name for candidate in candidates)
    raise DataError(f"{folder}: no file for split {split!r}; expected one of {names}")


def has_split(path: str, split: str) -> bool:
    """Whether `path` is a folder with a file for `split`."""
    return any((Path(path).expanduser() / f"{split}{suffix}").is_file() for suffix in READERS)


def read(path: Path) -> list[Row]:
    """Every row of a file. Raises DataError for one that is unreadable, malformed (with its line) or empty."""
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise DataError(f"{path}: cannot read {path.suffix or 'a file without suffix'}; expected {', '.join(READERS)}")
    try:
        rows = [Row(line, f"{path}, line {line}", values) for line, values in reader(path)]
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None
    if not rows:
        raise DataError(f"{path}: the file has no rows")
    return rows


def hub(name: str, config: str, split: str) -> list[Row]:
    """Every row of a hub data set's split. Raises DataError, with the way out, when it cannot be loaded."""
    from datasets import load_dataset

    try:
        data: Iterable[dict[str, Any]] = load_dataset(name, config, split=split)
    except Exception as error:
        raise DataError(
            f"{name} ({config}, split {split!r}) could not be loaded from the hub: {error}; "
            "give a local copy with --task.path"
        ) from error
    return [Row(i, f"{name}, row {i}", dict(values)) for i, values in enumerate(data, 1)]


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Decoded lines from 1 on; a line that is not UTF-8 is an error that names it."""
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            try:
                yield number, raw.removeprefix(_BOM if number == 1 else b"").decode("utf-8")
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{path}, line {number}: its byte {error.start + 1} is no UTF-8; "
                    "convert the file, e.g. iconv -f GB18030 -t UTF-8"
                ) from None


def _json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in _lines(path):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}, line {number}: not JSON ({error}); expected one object a line") from None
        if not isinstance(values, dict):
            raise DataError(f"{path}, line {number}: a JSON {type(values).__name__}, expected an object")
        yield number, values


def _csv(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    at = 0

    def lines() -> Iterator[str]:
        nonlocal at
        for number, line in _lines(path):
            at = number
            yield line

    reader = csv.DictReader(lines(), strict=True)
    try:
        for values in reader:
            if None in values or None in values.values():
                columns = len(reader.fieldnames or ())
                raise DataError(f"{path}, line {at}: not {columns} fields as in the header")
            yield at, values
    except csv.Error as error:
        raise DataError(f"{path}, line {at}: not CSV ({error})") from None


def _parquet(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    import pyarrow
    import pyarrow.parquet

    try:
        rows: list[dict[str, Any]] = pyarrow.parquet.read_table(path).to_pylist()
    except pyarrow.ArrowException as error:
        raise DataError(f"{path}: not a parquet file ({error})") from None
    yield from enumerate(rows, 1)


READERS: dict[str, Callable[[Path], Iterator[tuple[int, dict[str, Any]]]]] = {
    ".jsonl": _json_lines,
    ".csv": _csv,
    ".parquet": _parquet,
}
