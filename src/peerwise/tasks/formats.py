"""What stands in a data file: JSON lines and CSV in any encoding of text, and parquet, one row after the other.

A row that cannot be read is a Damage in its place, so that a reader can count it and go on. Memory is that of one row
(of parquet one batch), however long the file or its lines are. Knows nothing of what the columns mean.
"""

from __future__ import annotations

import codecs
import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peerwise.errors import DataError, RequestError

MISENCODED = "misencoded"
MALFORMED = "malformed"

LONGEST_LINE = 1 << 24
"""Characters; a longer line is malformed and never held in memory."""
_ESCAPED = re.compile("[\udc80-\udcff]")
"""What the error handler "surrogateescape" makes of bytes that are not in the encoding."""
_MARKS = {
    "utf-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE),
    "utf-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE),
}
"""Byte order marks; UTF-32 comes first, since its mark begins like one of UTF-16."""


@dataclass(frozen=True, slots=True)
class Damage:
    """Why a row cannot be read.

    Example:
        Damage("malformed", "a JSON list, expected an object")
    """

    reason: str
    detail: str


Rows = Iterator[tuple[int, dict[str, Any] | Damage]]
"""Line (of parquet: row), counted from 1, and the values by column."""


def check_encoding(name: str) -> None:
    """RequestError unless `name` is an encoding of text."""
    try:
        "\n".encode(name)
    except (LookupError, ValueError):
        raise RequestError(
            f"encoding {name!r} is not known; expected utf-8, gbk, gb18030, big5, utf-16, or another that Python reads"
        ) from None


def lines(path: Path, encoding: str) -> Iterator[tuple[int, str | Damage]]:
    """Decoded lines from 1 on, without a byte order mark; a Damage for one that is not text in this encoding."""
    number = 0
    with path.open(encoding=encoding, errors="surrogateescape", newline="\n") as file:
        try:
            while line := file.readline(LONGEST_LINE + 1):
                number += 1
                if len(line) > LONGEST_LINE:
                    while line and not line.endswith("\n"):
                        line = file.readline(LONGEST_LINE)
                    yield number, Damage(MALFORMED, f"longer than {LONGEST_LINE:,} characters")
                else:
                    yield number, _checked(line.removeprefix("\ufeff") if number == 1 else line, encoding)
        except UnicodeError as error:
            detail = f"from here on the file is no {_shown(encoding)} ({error}); {_way_out(encoding)}"
            yield number + 1, Damage(MISENCODED, detail)


def _checked(line: str, encoding: str) -> str | Damage:
    bad = None if line.isascii() else _ESCAPED.search(line)
    if bad:
        byte = len(line[: bad.start()].encode(encoding, "surrogateescape")) + 1
        return Damage(MISENCODED, f"its byte {byte} is no {_shown(encoding)}; {_way_out(encoding)}")
    if "\0" in line:
        return Damage(MALFORMED, "it holds a NUL character: the file is not text, or in another encoding")
    return line


def _refuse_other_mark(path: Path, encoding: str) -> None:
    """Every line of such a file would be damaged; the mark at its beginning says what to do about it."""
    with path.open("rb") as file:
        beginning = file.read(4)
    marked = next((name for name, marks in _MARKS.items() if beginning.startswith(marks)), None)
    if marked and not codecs.lookup(encoding).name.startswith(tuple(_MARKS)):
        raise DataError(
            f"{path}, line 1: its byte 1 is no {_shown(encoding)}: the file is marked as {marked.upper()}; give its "
            f"encoding as {marked}, or convert it: iconv -f {marked.upper()} -t UTF-8"
        )


def _shown(encoding: str) -> str:
    return "UTF-8" if codecs.lookup(encoding).name == "utf-8" else encoding


def _way_out(encoding: str) -> str:
    other = "GB18030" if _shown(encoding) == "UTF-8" else "UTF-8"
    return f"name the file's own encoding, or convert it, e.g. iconv -f {other} -t UTF-8"


def json_lines(path: Path, encoding: str) -> Rows:
    """One JSON object a line; blank lines are passed over, a key that stands twice is damage."""
    _refuse_other_mark(path, encoding)
    for number, line in lines(path, encoding):
        if isinstance(line, Damage):
            yield number, line
        elif line.strip():
            yield number, _json_row(line)


def _json_row(line: str) -> dict[str, Any] | Damage:
    try:
        values = json.loads(line, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        return Damage(MALFORMED, f"not JSON ({error}); expected one object a line")
    if not isinstance(values, dict):
        return Damage(MALFORMED, f"a JSON {type(values).__name__}, expected an object")
    return values


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"key {twice[:40]!r} stands twice in one object")
    return values


def table(path: Path, encoding: str) -> Rows:
    """CSV with a header. A record over several lines has the number of its last one.

    Raises DataError for a header that cannot be read or names a column twice.
    """
    _refuse_other_mark(path, encoding)
    source = _Lines(path, encoding)
    records = csv.reader(source, strict=True)
    header: list[str] | None = None
    while True:
        fields: list[str] = []
        first = source.at + 1
        try:
            fields = next(records)
        except StopIteration:
            return
        except csv.Error as error:
            source.damage = source.damage or Damage(MALFORMED, _not_csv(error, first, source.at))
        damage, source.damage = source.damage, None
        if header is None:
            header = _header(path, source.at, fields, damage)
        elif damage:
            yield source.at, damage
        elif fields and len(fields) != len(header):
            yield source.at, Damage(MALFORMED, f"not {len(header)} fields as in the header")
        elif fields:
            yield source.at, dict(zip(header, fields, strict=True))


def _not_csv(error: csv.Error, first: int, last: int) -> str:
    lost = f"; lines {first} to {last} are lost: is a quotation mark never closed?" if last > first else ""
    return f"not CSV ({error}){lost}"


class _Lines:
    """Lines for csv.reader, which takes text only: a damaged one is given as blank and remembered."""

    def __init__(self, path: Path, encoding: str) -> None:
        self._lines = lines(path, encoding)
        self.at = 0
        self.damage: Damage | None = None

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        self.at, line = next(self._lines)
        if isinstance(line, str):
            return line
        self.damage = line
        return "\n"


def _header(path: Path, line: int, fields: list[str], damage: Damage | None) -> list[str]:
    if damage:
        raise DataError(f"{path}, line {line}: {damage.detail}")
    return _different(f"{path}, line {line}", fields)


def _different(place: str, names: list[str]) -> list[str]:
    """The names of columns. Raises DataError when one stands twice, since a row would lose a value."""
    if len(set(names)) < len(names):
        raise DataError(f"{place}: a column stands twice in the header: {', '.join(names)[:200]}")
    return names


def parquet(path: Path, encoding: str) -> Rows:
    """Parquet, which has its own encoding. Raises DataError for a file that is none, or names a column twice."""
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            _different(str(path), file.schema_arrow.names)
            found = (row for batch in file.iter_batches(batch_size=1024) for row in _batch_rows(batch))
            yield from enumerate(found, 1)
    except pyarrow.ArrowException as error:
        raise DataError(f"{path}: not a parquet file ({error})") from None


def _batch_rows(batch: Any) -> list[dict[str, Any] | Damage]:
    try:
        return list(batch.to_pylist())
    except (ValueError, OverflowError):
        return [_batch_row(batch.slice(index, 1)) for index in range(batch.num_rows)]


def _batch_row(batch: Any) -> dict[str, Any] | Damage:
    try:
        return dict(batch.to_pylist()[0])
    except UnicodeDecodeError as error:
        return Damage(MISENCODED, f"its text is no UTF-8 ({error.reason})")
    except (ValueError, OverflowError) as error:
        return Damage(MALFORMED, f"it holds a value that cannot be read ({error})")


READERS: dict[str, Callable[[Path, str], Rows]] = {".jsonl": json_lines, ".csv": table, ".parquet": parquet}
