"""MATH: competition problems whose answer is the last box of the worked solution.

From local files with `problem` and `solution` (and `level`, `type`), or from the hub (EleutherAI/hendrycks_math).
"""

from __future__ import annotations

import re

from peerwise.errors import RequestError
from peerwise.records import Problem
from peerwise.tasks import rows
from peerwise.tasks.source import Pool, ProblemSet, Request, merged

SUBJECTS = (
    "algebra",
    "counting_and_probability",
    "geometry",
    "intermediate_algebra",
    "number_theory",
    "prealgebra",
    "precalculus",
)
NO_BOX = "no complete \\boxed in the solution"


def load(request: Request) -> Pool:
    """Both splits; rows that cannot be read or have no complete box are dropped and counted."""
    if request.params or request.columns:
        raise RequestError("task 'math' takes neither params nor columns; use task 'files' for data of another shape")
    own_test = "test" if request.path is None or rows.has_split(request.path, "test") else None
    return rows.pool(request, lambda split: _read(request, split), own_test)


def last_box(text: str) -> str | None:
    """Content of the last \\boxed{...} (or \\fbox, or \\boxed 5); None when there is none or it never closes."""
    start = max(text.rfind("\\boxed"), text.rfind("\\fbox"))
    if start < 0:
        return None
    rest = re.sub(r"^\\(?:boxed|fbox)\s*", "", text[start:], count=1)
    if not rest.startswith("{"):
        return rest[:1].strip("$") or None
    depth = 0
    for brace in re.finditer(r"\\.|[{}]", rest, re.DOTALL):
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)
        if depth == 0 and brace.group() == "}":
            return rest[1 : brace.start()].strip() or None
    return None


def _read(request: Request, split: str) -> ProblemSet:
    if request.path is not None:
        found = rows.scan(rows.locate(request.path, split, request.split), request.encoding)
        return rows.problems(found, lambda row: _problem(row, request, f"math/{split}/{row.line}"))
    return merged(_subject(request, split, subject) for subject in SUBJECTS)


def _subject(request: Request, split: str, subject: str) -> ProblemSet:
    found = rows.hub("EleutherAI/hendrycks_math", subject, split)
    return rows.problems(found, lambda row: _problem(row, request, f"math/{split}/{subject}/{row.line}"))


def _problem(row: rows.Row, request: Request, name: str) -> Problem:
    solution = row.text("solution")
    gold = last_box(solution)
    if gold is None:
        raise row.flaw(NO_BOX, "its solution has no complete \\boxed{...}")
    return Problem(
        id=name,
        task="math",
        messages=request.template.ask(row.filled("problem")),
        answer=gold,
        solution=rows.with_statement(solution, gold, request.template),
        meta={"line": row.line, **{key: row.values[key] for key in ("level", "type") if key in row.values}},
    )
