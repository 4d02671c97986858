"""Problems whose answer is a program: MBPP, HumanEval, and your own from a file of prompts and tests.

`Problem.answer` is JSON with `tests` (Python, each a test that passes when it runs to its end), `names` (what the tests
use of the program) and `prelude` (what both begin with). Tests are read with `ast` and never run here.
"""

from __future__ import annotations

import ast
import builtins
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from peerwise.errors import RequestError, nearest
from peerwise.records import Problem
from peerwise.tasks import rows
from peerwise.tasks.formats import MALFORMED
from peerwise.tasks.source import Pool, ProblemSet, Request

NO_TESTS = "no tests"
_UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)
COLUMNS = ("prompt", "tests", "setup", "entry_point", "solution")
SHOWN_TESTS = 1
"""How many of MBPP's tests a prompt shows: one tells the function's name and shape, all of them could be learned."""

_Reader = Callable[[rows.Row, Request], tuple[str, str, str | None]]
"""A row's question, its tests as JSON, and its reference program. Raises Flaw for a row that cannot be used."""


def mbpp(request: Request) -> Pool:
    """MBPP from a folder, a file or the hub; `params.shown_tests` is how many tests a prompt shows."""
    unknown = sorted(request.params.keys() - {"shown_tests"})
    if unknown or request.columns:
        raise RequestError(f"task 'mbpp' takes no columns and only params.shown_tests, given {unknown or 'columns'}")
    shown = request.params.get("shown_tests", SHOWN_TESTS)
    if type(shown) is not int or shown < 0:
        raise RequestError(f"task 'mbpp': params.shown_tests = {shown!r}, expected a whole number of 0 or more")
    return _pool("mbpp", request, _mbpp, ("google-research-datasets/mbpp", "full"))


def humaneval(request: Request) -> Pool:
    """HumanEval from a folder, a file or the hub; its only split is "test"."""
    if request.params or request.columns:
        raise RequestError("task 'humaneval' takes neither params nor columns; use task 'programs' for other data")
    return _pool("humaneval", request, _humaneval, ("openai/openai_humaneval", "openai_humaneval"))


def load(request: Request) -> Pool:
    """Your own: rows with `prompt`, `tests` (a list or one text), perhaps `setup`, `entry_point`, `solution`."""
    if request.path is None:
        raise RequestError("task 'programs' needs a file or folder; give --task.path")
    if request.params:
        raise RequestError(f"task 'programs' takes no params, given {', '.join(request.params)}")
    for name in request.columns:
        if name not in COLUMNS:
            raise RequestError(f"task.columns: {name!r} is not a role; {nearest(name, COLUMNS)}")
    return _pool("programs", request, _own, None)


def _pool(name: str, request: Request, reader: _Reader, hub: tuple[str, str] | None) -> Pool:
    if "```" not in request.template.answer_form:
        raise RequestError(
            f"task {name!r} asks for a program; set template = 'code' or 'code-zh', given {request.template.name!r}"
        )
    own_test = "test" if request.path is None or rows.has_split(request.path, "test") else None
    return rows.pool(request, lambda split: _read(name, request, split, reader, hub), own_test)


def _read(name: str, request: Request, split: str, reader: _Reader, hub: tuple[str, str] | None) -> ProblemSet:
    if request.path is None:
        assert hub is not None
        source: Iterable[rows.Row | rows.Flaw] = rows.hub(*hub, split)
    else:
        source = rows.scan(rows.locate(request.path, split, request.split), request.encoding)

    def problem(row: rows.Row) -> Problem:
        question, tests, program = reader(row, request)
        return Problem(
            id=f"{name}/{split}/{row.line}",
            task=name,
            messages=request.template.ask(question),
            answer=tests,
            solution=request.template.state(program.strip("\n")) if program else None,
            meta={"line": row.line, **{key: row.values[key] for key in ("task_id",) if key in row.values}},
        )

    return rows.problems(source, problem)


def _mbpp(row: rows.Row, request: Request) -> tuple[str, str, str | None]:
    question = row.filled("text" if "text" in row.values else "prompt")
    program = _text(row, "code")
    tests = _listed(row, "test_list")
    setup = [*_listed(row, "test_imports", default=[]), _text(row, "test_setup_code", default="")]
    shown = "\n".join(tests[: request.params.get("shown_tests", SHOWN_TESTS)])
    question = f"{question}\nYour code should pass:\n{shown}" if shown else question
    written = _written(row, _items(row, tests), _parsed(row, "\n".join(setup)), reference=_lenient(program))
    return question, written, program


def _humaneval(row: rows.Row, request: Request) -> tuple[str, str, str | None]:
    prompt, entry_point = _text(row, "prompt"), row.filled("entry_point")
    prelude = [node for node in _lenient(prompt) if getattr(node, "name", None) != entry_point]
    tests = _split(_unfolded(_parsed(row, _text(row, "test")), entry_point))
    question = f"Complete this function:\n```python\n{prompt.strip()}\n```"
    written = _written(row, tests, [], prelude=prelude, entry_point=entry_point)
    return question, written, prompt + _text(row, "canonical_solution")


def _own(row: rows.Row, request: Request) -> tuple[str, str, str | None]:
    column = {role: request.columns.get(role, role) for role in COLUMNS}
    entry_point = _text(row, column["entry_point"], default="")
    program = _text(row, column["solution"], default="") or None
    if isinstance(row.values.get(column["tests"]), list):
        tests = _items(row, _listed(row, column["tests"]))
    else:
        tests = _split(_unfolded(_parsed(row, _text(row, column["tests"])), entry_point))
    setup = _parsed(row, _text(row, column["setup"], default=""))
    written = _written(row, tests, setup, reference=_lenient(program or ""), entry_point=entry_point)
    return row.filled(column["prompt"]), written, program


def _text(row: rows.Row, column: str, *, default: str | None = None) -> str:
    """The column as it stands, white space kept. Raises Flaw when it is missing, unless there is a default."""
    if default is not None and row.values.get(column) is None:
        return default
    row.text(column)
    return str(row.values[column] or "").replace("\r\n", "\n")


def _listed(row: rows.Row, column: str, *, default: list[str] | None = None) -> list[str]:
    """A column that holds a list of texts. Raises Flaw when it does not."""
    if column not in row.values and default is None:
        row.text(column)
    value = row.values.get(column, default)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise row.flaw(MALFORMED, f"column {column!r} is a {type(value).__name__}, expected a list of texts")
    return [item.replace("\r\n", "\n") for item in value]


def _parsed(row: rows.Row, source: str) -> list[ast.stmt]:
    try:
        return ast.parse(source).body
    except _UNREADABLE as error:
        raise row.flaw(MALFORMED, f"its tests are no Python ({error})") from None


def _lenient(source: str) -> list[ast.stmt]:
    """The statements of a reference program, none when it does not parse: that fault is its own."""
    try:
        return ast.parse(source).body
    except _UNREADABLE:
        return []


def _items(row: rows.Row, tests: Sequence[str]) -> list[list[ast.stmt]]:
    """Tests given one by one: each is a test as it stands."""
    return [statements for item in tests if (statements := _parsed(row, item))]


def _split(statements: Sequence[ast.stmt]) -> list[list[ast.stmt]]:
    """Tests given in one text: each statement that asserts something is a test, with what stands before it.

    A call of a function that the tests define and that asserts is one too; an assert that always holds is not.
    """
    checking = {node.name for node in statements if isinstance(node, ast.FunctionDef) and _asserts(node, set())}
    tests, before = list[list[ast.stmt]](), list[ast.stmt]()
    for node in statements:
        before.append(node)
        if not isinstance(node, ast.FunctionDef | ast.ClassDef) and _asserts(node, checking):
            tests.append(before)
            before = []
    if tests:
        tests[-1] += before
    return tests


def _asserts(statement: ast.stmt, checking: set[str]) -> bool:
    return any(
        (isinstance(node, ast.Assert) and not (isinstance(node.test, ast.Constant) and node.test.value))
        or (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in checking)
        for node in ast.walk(statement)
    )


def _unfolded(statements: list[ast.stmt], entry_point: str) -> list[ast.stmt]:
    """`def check(candidate)` as the statements of its body, so that each of its asserts is a test of its own."""
    checks = [node for node in statements if isinstance(node, ast.FunctionDef) and node.name == "check"]
    if not entry_point.isidentifier() or len(checks) != 1 or len(checks[0].args.args) != 1:
        return statements
    if any(isinstance(node, ast.Return) for node in ast.walk(checks[0])):
        return [*statements, *_lenient(f"check({entry_point})")]
    argument = checks[0].args.args[0].arg
    others = [node for node in statements if node is not checks[0]]
    return [*others, *_lenient(f"{argument} = {entry_point}"), *checks[0].body]


def _written(
    row: rows.Row,
    tests: list[list[ast.stmt]],
    setup: list[ast.stmt],
    *,
    reference: Sequence[ast.stmt] = (),
    prelude: Sequence[ast.stmt] = (),
    entry_point: str = "",
) -> str:
    """The tests as JSON. `setup` runs before the first; the modules that the reference imports and the tests use are
    imported there as well, not asked of the program. Raises Flaw when there is no test."""
    if not tests:
        raise row.flaw(NO_TESTS, "it has no test: nothing asserts anything about the program")
    everything = [*setup, *(node for test in tests for node in test)]
    used = {node.id for node in _names(everything) if isinstance(node.ctx, ast.Load)}
    own = {name for node in (*everything, *prelude) for name in _bound(node)}
    imports = [n for n in reference if isinstance(n, ast.Import | ast.ImportFrom) and used & {*_bound(n)} - own]
    imported = {name for node in imports for name in _bound(node)}
    given = {name for node in reference for name in _bound(node)}
    names = {name for name in used - own - imported if name in given or not hasattr(builtins, name)}
    first = [*imports, *setup, *tests[0]]
    try:
        sources = _source(prelude), [_source(test) for test in (first, *tests[1:])]
    except _UNREADABLE as error:
        raise row.flaw(MALFORMED, f"its tests are nested too deeply or hold too long a number ({error})") from None
    shown = sorted(names | ({entry_point} if entry_point else set()))
    return json.dumps({"prelude": sources[0], "names": shown, "tests": sources[1]})


def _source(statements: Sequence[ast.stmt]) -> str:
    return "\n".join(map(ast.unparse, statements))


def _names(statements: Sequence[ast.stmt]) -> Iterator[ast.Name]:
    for statement in statements:
        yield from (node for node in ast.walk(statement) if isinstance(node, ast.Name))


def _bound(statement: ast.stmt) -> set[str]:
    """Every name that the statement gives a value somewhere: by assignment, definition, import or as an argument."""
    found = set[str]()
    for node in ast.walk(statement):
        given: Any = None
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            given = node.id
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            given = node.name
        elif isinstance(node, ast.arg):
            given = node.arg
        elif isinstance(node, ast.alias):
            given = node.asname or node.name.partition(".")[0]
        elif isinstance(node, ast.ExceptHandler):
            given = node.name
        if given:
            found.add(given)
    return found
