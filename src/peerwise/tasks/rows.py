"""Rows of data files and hub data sets, with the line each came from, and problems made of them.

A row that cannot be read is a Flaw among the rows, so that whoever reads can count it and go on. Knows nothing of what
the columns mean. Libraries are imported when needed.
"""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peerwise.errors import DataError
from peerwise.records import Problem
from peerwise.tasks.formats import MALFORMED, READERS, Damage, check_encoding
from peerwise.tasks.prompts import Template
from peerwise.tasks.source import EXAMPLES, Example, Pool, ProblemSet, Request

MISSING = "missing"

STATEMENT_ADDED = "statement_added"
"""Key of `Problem.meta`: the last line of the solution is not the source's own."""


class Flaw(DataError):
    """Why one row cannot be used: where it is, the `reason` in one word, and a sentence for people.

    `scan` yields it, what makes problems of rows raises it, `problems` counts it.
    """

    def __init__(self, line: int, place: str, reason: str, detail: str) -> None:
        super().__init__(f"{place}: {detail}")
        self.line, self.reason = line, reason


@dataclass(frozen=True, slots=True)
class Row:
    """One row and where it stands, for messages and ids."""

    line: int
    """Line of the file, counted from 1; of parquet and hub data the row."""
    place: str
    """ "path, line 3"."""
    values: dict[str, Any]

    def flaw(self, reason: str, detail: str) -> Flaw:
        """What is wrong with this row, to be raised."""
        return Flaw(self.line, self.place, reason, detail)

    def text(self, column: str, way_out: str = "") -> str:
        """The column as text, numbers written out and whole ones without a decimal point; "" for null.

        Raises Flaw when the column is missing, listing those that are there and adding the `way_out`, or when it is
        neither text nor a number.
        """
        if column not in self.values:
            found = ", ".join(map(str, self.values))[:200] or "none"
            raise self.flaw(MISSING, f"no column {column!r}; found: {found}{way_out}")
        value = self.values[column]
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, list | dict | bytes):
            kind = type(value).__name__
            raise self.flaw(MALFORMED, f"column {column!r} is a {kind}, expected text or a number")
        return self.whole(column, "" if value is None else str(value).strip())

    def whole(self, column: str, text: str) -> str:
        """`text`. Raises Flaw when it holds half of a surrogate pair, which no file and no tokenizer takes."""
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise self.flaw(MALFORMED, f"column {column!r} holds half a character ({error.reason})") from None
        return text

    def filled(self, column: str, way_out: str = "") -> str:
        """`text`, which must not be empty."""
        text = self.text(column, way_out)
        if not text:
            raise self.empty(column)
        return text

    def empty(self, column: str) -> Flaw:
        """That the column has nothing in it, to be raised."""
        return self.flaw(MISSING, f"{column!r} is empty; fill or remove the row")


def problems(source: Iterable[Row | Flaw], make: Callable[[Row], Problem]) -> ProblemSet:
    """A problem of each row; rows that cannot be read, or of which `make` raises a Flaw, are counted by reason."""
    made: list[Problem] = []
    dropped: Counter[str] = Counter()
    examples: dict[str, list[Example]] = defaultdict(list)
    for item in source:
        try:
            if isinstance(item, Flaw):
                raise item
            made.append(make(item))
        except Flaw as flaw:
            dropped[flaw.reason] += 1
            if len(examples[flaw.reason]) < EXAMPLES:
                examples[flaw.reason].append(Example(flaw.line, str(flaw)))
    shown = {reason: tuple(found) for reason, found in examples.items()}
    return ProblemSet(problems=tuple(made), dropped=dict(dropped), examples=shown)


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
    try:
        return _located(Path(path).expanduser(), path, split, trained)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None


def _located(given: Path, path: str, split: str, trained: str) -> Path:
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
    with contextlib.suppress(OSError):  # `locate` says what is wrong
        return any((Path(path).expanduser() / f"{split}{suffix}").is_file() for suffix in READERS)
    return False


def scan(path: Path, encoding: str = "utf-8") -> Iterator[Row | Flaw]:
    """The rows of a file one by one, a Flaw in place of each that cannot be read.

    Raises:
        RequestError: there is no such encoding.
        DataError: a file that cannot be opened, is of another format as a whole, or is empty.
    """
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise DataError(f"{path}: cannot read {path.suffix or 'a file without suffix'}; expected {', '.join(READERS)}")
    check_encoding(encoding)
    empty = True
    try:
        for line, values in reader(path, encoding):
            empty = False
            place = f"{path}, line {line}"
            yield (
                Flaw(line, place, values.reason, values.detail)
                if isinstance(values, Damage)
                else Row(line, place, values)
            )
    except OSError as error:
        reason = error.strerror or " ".join(str(error).split())
        raise DataError(f"{path}: cannot be read ({reason})") from None
    if empty:
        raise DataError(f"{path}: the file has no rows")


def read(path: Path, encoding: str = "utf-8") -> list[Row]:
    """Every row of a file; its first flaw is raised."""
    found: list[Row] = []
    for item in scan(path, encoding):
        if isinstance(item, Flaw):
            raise item
        found.append(item)
    return found


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
