"""Your own problems from a jsonl, csv or parquet file, or a folder with one such file a split.

A row has a prompt (text, which the template is applied to, or a list of chat messages, which are used as they are), an
answer and, if it likes, a worked solution; `columns` maps these three to the names the file uses.
"""

from __future__ import annotations

import json
from typing import Any

from peerwise.errors import DataError, RequestError, nearest
from peerwise.records import Message, Problem
from peerwise.tasks import rows
from peerwise.tasks.source import Pool, ProblemSet, Request

COLUMNS = ("prompt", "answer", "solution")
SHOWN_LINES = 5


def load(request: Request) -> Pool:
    """The file's problems. Raises DataError for a missing column, a malformed row or an empty prompt or answer."""
    if request.path is None:
        raise RequestError("task 'files' needs a file or folder; give --task.path")
    if request.params:
        raise RequestError(f"task 'files' takes no params, given {', '.join(request.params)}")
    for name in request.columns:
        if name not in COLUMNS:
            raise RequestError(f"task.columns: {name!r} is not a role; {nearest(name, COLUMNS)}")
    path = request.path
    own_test = "test" if rows.has_split(path, "test") else None
    return rows.pool(request, lambda split: _read(request, path, split), own_test)


def _read(request: Request, path: str, split: str) -> ProblemSet:
    file = rows.locate(path, split, request.split)
    found = rows.read(file)
    columns = {role: request.columns.get(role, role) for role in COLUMNS}
    empty = [row.line for row in found if not row.text(columns["answer"])]
    if empty:
        shown = ", ".join(map(str, empty[:SHOWN_LINES])) + (" ..." if len(empty) > SHOWN_LINES else "")
        raise DataError(
            f"{file}: {len(empty)} row(s) with an empty {columns['answer']!r}, line {shown}; fill or remove them"
        )
    name = f"files/{file.absolute().parent.name}/{file.stem}"
    return ProblemSet(problems=tuple(_problem(row, request, columns, f"{name}/{row.line}") for row in found))


def _problem(row: rows.Row, request: Request, columns: dict[str, str], name: str) -> Problem:
    answer = row.text(columns["answer"])
    chat = _chat(row, columns["prompt"])
    solution = None
    if "solution" in request.columns or columns["solution"] in row.values:
        solution = row.text(columns["solution"]) or None
    if solution and not chat:
        solution = rows.with_statement(solution, answer, request.template)
    rest = {key: value for key, value in row.values.items() if key not in columns.values() and _is_scalar(value)}
    return Problem(
        id=name,
        task="files",
        messages=chat or request.template.ask(_question(row, columns["prompt"])),
        answer=answer,
        solution=solution,
        meta={"line": row.line, **rest},
    )


def _question(row: rows.Row, column: str) -> str:
    question = row.text(column)
    if not question:
        raise DataError(f"{row.place}: {column!r} is empty; fill or remove the row")
    return question


def _chat(row: rows.Row, column: str) -> tuple[Message, ...] | None:
    """The messages when the prompt is a list of them, None when it is text."""
    given = row.values.get(column)
    if not isinstance(given, list):
        return None
    if not given or not all(_is_message(message) for message in given):
        shown = json.dumps(given, ensure_ascii=False, default=str)[:80]
        raise DataError(f'{row.place}: {column!r} is {shown}, expected [{{"role": "user", "content": "..."}}, ...]')
    return tuple(Message(role=message["role"], content=message["content"]) for message in given)


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(key), str) for key in ("role", "content"))


def _is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float | bool)
