"""MATH: competition problems whose answer is the last box of the worked solution.

From local files with `problem` and `solution` (and `level`, `type`), or from the hub (EleutherAI/hendrycks_math).
"""

from __future__ import annotations

import re

from peerwise.errors import RequestError
from peerwise.records import Problem
from peerwise.tasks import rows
from peerwise.tasks.source import Pool, ProblemSet, Request

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
    """Both splits; rows without a complete box are dropped and counted."""
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
    if request.path is None:
        named = {subject: rows.hub("EleutherAI/hendrycks_math", subject, split) for subject in SUBJECTS}
    else:
        named = {"": rows.read(rows.locate(request.path, split, request.split))}
    found = [
        _problem(row, request, "/".join(filter(None, ("math", split, subject, str(row.line)))))
        for subject, subject_rows in named.items()
        for row in subject_rows
    ]
    problems = tuple(problem for problem in found if problem)
    lost = len(found) - len(problems)
    return ProblemSet(problems=problems, dropped={NO_BOX: lost} if lost else {})


def _problem(row: rows.Row, request: Request, name: str) -> Problem | None:
    solution = row.text("solution")
    gold = last_box(solution)
    if gold is None:
        return None
    return Problem(
        id=name,
        task="math",
        messages=request.template.ask(row.text("problem")),
        answer=gold,
        solution=rows.with_statement(solution, gold, request.template),
        meta={"line": row.line, **{key: row.values[key] for key in ("level", "type") if key in row.values}},
    )
