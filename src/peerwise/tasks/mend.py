"""Writes the clean part of a data file beside it: the same rows in the same order, in UTF-8, without those left out.

The source is read a second time, row by row, and never written to; a file that exists is never overwritten.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Set
from pathlib import Path
from typing import Any

from peerwise.errors import DataError, RequestError
from peerwise.tasks import formats, rows


def check_target(source: Path, out: Path) -> None:
    """RequestError unless `out` can be made: new, in a folder that exists, of the source's format or jsonl."""
    suffixes = sorted({source.suffix.lower(), ".jsonl"})
    if out.suffix.lower() not in suffixes:
        raise RequestError(f"--fix {out}: expected a name that ends in {' or '.join(suffixes)}")
    try:
        taken = next((path for path in (out, report_path(out)) if path.exists() or path.is_symlink()), None)
        has_folder = out.absolute().parent.is_dir()
    except OSError as error:
        raise RequestError(f"--fix {out}: cannot be written ({error.strerror or error})") from None
    if taken:
        raise RequestError(f"--fix {out}: {taken} exists and is not overwritten; give another name")
    if not has_folder:
        raise RequestError(f"--fix {out}: there is no folder {out.absolute().parent}; make it first")


def report_path(out: Path) -> Path:
    """Where the report on a clean file goes."""
    return out.with_name(out.name + ".report.json")


def write(source: Path, out: Path, kept: Set[int], encoding: str, report: dict[str, Any]) -> None:
    """Write the rows at the lines `kept` to `out`, and `report` beside it.

    Raises DataError when a file cannot be written; what was begun is removed.
    """
    copy = _COPIES.get((source.suffix.lower(), out.suffix.lower()), _as_json_lines)
    try:
        try:
            copy(source, out, kept, encoding)
            with report_path(out).open("x", encoding="utf-8") as file:
                json.dump(report, file, ensure_ascii=False, indent=2)
        except FileExistsError:
            raise
        except BaseException:
            out.unlink(missing_ok=True)
            report_path(out).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise DataError(f"--fix {out}: cannot be written ({error.strerror or error})") from None


def _chosen(source: Path, kept: Set[int], encoding: str) -> Iterator[dict[str, Any]]:
    for row in rows.scan(source, encoding):
        if isinstance(row, rows.Row) and row.line in kept:
            yield row.values


def _as_json_lines(source: Path, out: Path, kept: Set[int], encoding: str) -> None:
    with out.open("x", encoding="utf-8") as file:
        for values in _chosen(source, kept, encoding):
            file.write(json.dumps(values, ensure_ascii=False, default=str) + "\n")


def _copy_lines(source: Path, out: Path, kept: Set[int], encoding: str) -> None:
    """Rows of JSON lines as they were written, key order and number formats included."""
    with out.open("x", encoding="utf-8", newline="\n") as file:
        for number, line in formats.lines(source, encoding):
            if number in kept and isinstance(line, str):
                file.write(line.rstrip("\r\n") + "\n")


def _copy_table(source: Path, out: Path, kept: Set[int], encoding: str) -> None:
    with out.open("x", encoding="utf-8", newline="") as file:
        writer: csv.DictWriter[str] | None = None
        for values in _chosen(source, kept, encoding):
            if writer is None:
                writer = csv.DictWriter(file, list(values))
                writer.writeheader()
            writer.writerow(values)


def _copy_parquet(source: Path, out: Path, kept: Set[int], encoding: str) -> None:
    import pyarrow
    import pyarrow.parquet

    with (
        out.open("xb") as sink,
        pyarrow.parquet.ParquetFile(source) as file,
        pyarrow.parquet.ParquetWriter(sink, file.schema_arrow) as writer,
    ):
        before = 0
        for batch in file.iter_batches(batch_size=1024):
            places = [i for i in range(batch.num_rows) if before + i + 1 in kept]
            writer.write_batch(batch.take(pyarrow.array(places, pyarrow.int64())))
            before += batch.num_rows


_COPIES: dict[tuple[str, str], Callable[[Path, Path, Set[int], str], None]] = {
    (".jsonl", ".jsonl"): _copy_lines,
    (".csv", ".csv"): _copy_table,
    (".parquet", ".parquet"): _copy_parquet,
}
