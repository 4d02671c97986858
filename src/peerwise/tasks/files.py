"""Your own problems from a jsonl, csv or parquet file, or a folder with one such file a split.

A row has a prompt (text, which the template is applied to, or a list of chat messages, which are used as they are), an
answer and, if it likes, a worked solution; `columns` maps these three to the names the file uses.
"""

from __future__ import annotations

import json
from typing import Any

from peerwise.errors import RequestError, nearest
from peerwise.records import Message, Problem
from peerwise.tasks import rows
from peerwise.tasks.formats import MALFORMED
from peerwise.tasks.source import Pool, ProblemSet, Request

COLUMNS = ("prompt", "answer", "solution")
_WAY_OUT = "; map names with --task.columns ROLE=NAME (of eval and data: --columns)"


def load(request: Request) -> Pool:
    """The file's problems; rows that cannot be read, lack a column or leave it empty are counted by reason."""
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
    columns = {role: request.columns.get(role, role) for role in COLUMNS}
    name = f"files/{file.absolute().parent.name}/{file.stem}"
    found = rows.scan(file, request.encoding)
    return rows.problems(found, lambda row: _problem(row, request, columns, f"{name}/{row.line}"))


def _problem(row: rows.Row, request: Request, columns: dict[str, str], name: str) -> Problem:
    answer = row.filled(columns["answer"], _WAY_OUT)
    messages = chat(row, columns["prompt"])
    given = solution = _solution(row, request, columns["solution"])
    if given and not messages:
        solution = rows.with_statement(given, answer, request.template)
    taken = {*columns.values(), "line", rows.STATEMENT_ADDED}
    meta = {key: value for key, value in row.values.items() if key not in taken and _is_scalar(value)}
    # A column of the file that is called like one of ours must not say where the row stands.
    meta |= {"line": row.line} | ({rows.STATEMENT_ADDED: True} if solution != given else {})
    return Problem(
        id=name,
        task="files",
        messages=messages or request.template.ask(row.filled(columns["prompt"], _WAY_OUT)),
        answer=answer,
        solution=solution,
        meta=meta,
    )


def _solution(row: rows.Row, request: Request, column: str) -> str | None:
    named = "solution" in request.columns
    return row.text(column, _WAY_OUT) or None if named or column in row.values else None


def chat(row: rows.Row, column: str) -> tuple[Message, ...] | None:
    """The messages when the column is a list of them, None when it is text. Raises Flaw for any other list, and for
    messages that all are empty."""
    given = row.values.get(column)
    if not isinstance(given, list):
        return None
    if not given or not all(_is_message(message) for message in given):
        shown = json.dumps(given, ensure_ascii=False, default=str)[:80]
        detail = f'{column!r} is {shown}, expected [{{"role": "user", "content": "..."}}, ...]'
        raise row.flaw(MALFORMED, detail)
    if not any(message["content"].strip() for message in given):
        raise row.empty(column)
    return tuple(Message(role=message["role"], content=row.whole(column, message["content"])) for message in given)


def _is_message(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and all(isinstance(value.get(key), str) for key in ("role", "content"))
        and value["role"] != ""
    )


def _is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float | bool)
