"""GSM8K: grade-school word problems whose answer stands after `####`.

From a folder with train.jsonl and test.jsonl, from one file, or from the hub (openai/gsm8k).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from peerwise.errors import RequestError
from peerwise.records import Problem
from peerwise.tasks import rows
from peerwise.tasks.source import Pool, ProblemSet, Request

_CALCULATOR_NOTE = re.compile(r"<<[^<>\n]*>>")
NO_GOLD = "no answer after ####"


def load(request: Request) -> Pool:
    """Both splits; rows that cannot be read or have no `####` are dropped and counted."""
    if request.params or request.columns:
        raise RequestError("task 'gsm8k' takes neither params nor columns; use task 'files' for data of another shape")
    own_test = "test" if request.path is None or rows.has_split(request.path, "test") else None
    return rows.pool(request, lambda split: _read(request, split), own_test)


def _read(request: Request, split: str) -> ProblemSet:
    if request.path is None:
        source: Iterable[rows.Row | rows.Flaw] = rows.hub("openai/gsm8k", "main", split)
    else:
        source = rows.scan(rows.locate(request.path, split, request.split), request.encoding)
    return rows.problems(source, lambda row: _problem(row, request, split))


def _problem(row: rows.Row, request: Request, split: str) -> Problem:
    worked, _, gold = row.text("answer").rpartition("####")
    gold = gold.replace(",", "").replace("$", "").strip()
    if not worked.strip() or not gold:
        raise row.flaw(NO_GOLD, "its answer does not end in worked steps, #### and the result")
    steps = _CALCULATOR_NOTE.sub("", worked).strip()
    return Problem(
        id=f"gsm8k/{split}/{row.line}",
        task="gsm8k",
        messages=request.template.ask(row.filled("question")),
        answer=gold,
        solution=f"{steps}\n{request.template.state(gold)}",
        meta={"line": row.line, rows.STATEMENT_ADDED: True},
    )
