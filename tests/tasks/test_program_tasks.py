"""Pins how tasks of programs write down their tests, and that reference programs pass them while wrong ones do not."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from peerwise.errors import DataError, RequestError
from peerwise.records import Completion
from peerwise.rewards.programs import programs
from peerwise.tasks.base import load_evaluation

DATA = Path(__file__).parents[2] / ".." / "shared" / "data"


def load(tmp_path, name, *rows, template="code", **options):
    path = tmp_path / "test.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return load_evaluation(name, path=str(path), template=template, **options)


def written(problem):
    return json.loads(problem.answer)


def own(tests, **more):
    return {"prompt": "Double it.", "tests": tests, **more}


MBPP = {
    "text": "Add two numbers.",
    "code": "import sys\r\ndef sum(a, b):\r\n    return a + b",
    "task_id": 7,
    "test_setup_code": "",
    "test_list": ["assert sum(1, 2) == 3", "assert sum(2, 2) <= sys.maxsize"],
}
HUMANEVAL = {
    "task_id": "HumanEval/0",
    "prompt": 'import math\n\ndef helper(x):\n    return x\n\ndef half(x):\n    """Half of x"""\n',
    "entry_point": "half",
    "canonical_solution": "    return helper(x) / 2\n",
    "test": "def check(candidate):\n    assert True, 'always'\n    n = 4\n    assert candidate(n) == 2\n"
    "    for x in range(3):\n        assert math.isclose(candidate(x), x / 2)\n",
}


def test_mbpp_shows_the_first_test_and_keeps_the_others_back(tmp_path):
    (problem,) = load(tmp_path, "mbpp", MBPP).problems
    content = problem.messages[0]["content"]
    assert "Add two numbers." in content
    assert "assert sum(1, 2) == 3" in content
    assert "maxsize" not in content
    assert (problem.id, problem.meta["task_id"]) == ("mbpp/test/1", 7)
    assert problem.solution == "```python\nimport sys\ndef sum(a, b):\n    return a + b\n```"
    (shown,) = load(tmp_path, "mbpp", MBPP, params={"shown_tests": 2}).problems
    assert "maxsize" in shown.messages[0]["content"]


def test_mbpp_asks_the_program_for_its_function_though_python_has_one_of_that_name(tmp_path):
    (problem,) = load(tmp_path, "mbpp", MBPP).problems
    assert written(problem) == {
        "prelude": "",
        "names": ["sum"],
        "tests": ["import sys\nassert sum(1, 2) == 3", "assert sum(2, 2) <= sys.maxsize"],
    }


def test_humaneval_makes_each_assert_of_check_a_test_and_keeps_helpers_for_the_tests(tmp_path):
    (problem,) = load(tmp_path, "humaneval", HUMANEVAL).problems
    assert written(problem) == {
        "prelude": "import math\ndef helper(x):\n    return x",
        "names": ["half"],
        "tests": [
            "candidate = half\nassert True, 'always'\nn = 4\nassert candidate(n) == 2",
            "for x in range(3):\n    assert math.isclose(candidate(x), x / 2)",
        ],
    }
    assert problem.solution.endswith("    return helper(x) / 2\n```")


@pytest.mark.parametrize(
    ("tests", "expected"),
    [
        (["assert f(1) == 2", "x = f(2)\nassert x"], ["assert f(1) == 2", "x = f(2)\nassert x"]),
        (
            "x = 1\nassert f(x) == 2\ny = 2\nassert f(y)\nz = 3",
            ["x = 1\nassert f(x) == 2", "y = 2\nassert f(y)\nz = 3"],
        ),
        (
            "def same(a):\n    assert f(a) == a\nsame(1)\nsame(2)",
            ["def same(a):\n    assert f(a) == a\nsame(1)", "same(2)"],
        ),
        ("try:\n    f(1)\n    assert False\nexcept ValueError:\n    pass", None),
    ],
)
def test_your_own_tests_are_a_list_or_one_text(tmp_path, tests, expected):
    (problem,) = load(tmp_path, "programs", own(tests)).problems
    assert written(problem)["names"] == ["f"]
    assert written(problem)["tests"] == (expected or [tests])


def test_columns_setup_and_entry_point_of_your_own_file(tmp_path):
    row = {"q": "Count.", "t": "assert bag.total() == 1", "setup": "bag = Bag([1])", "solution": "class Bag: ..."}
    (problem,) = load(tmp_path, "programs", row, columns={"prompt": "q", "tests": "t"}).problems
    assert written(problem) == {"prelude": "", "names": ["Bag"], "tests": ["bag = Bag([1])\nassert bag.total() == 1"]}
    row = own("def check(g):\n    assert g(1)\n    return None", entry_point="f")
    (problem,) = load(tmp_path, "programs", row).problems
    assert written(problem)["names"] == ["f"]
    assert written(problem)["tests"][0].endswith("check(f)")


def test_rows_that_cannot_be_used_are_counted_by_reason(tmp_path):
    good = [own(["assert f(1)"], prompt=f"Task {n}") for n in range(60)]
    long = own(["assert f(1) == 0x" + "f" * 5000]), own(["assert f(1) == " + "1 + " * 600 + "1"])
    loaded = load(tmp_path, "programs", *good, own("x = 1"), own(["assert f("]), own([]), *long)
    assert len(loaded.problems) == 60
    assert loaded.dropped == {"no tests": 2, "malformed": 3}


@pytest.mark.parametrize(
    ("name", "rows", "options", "message"),
    [
        ("mbpp", [MBPP], {"template": "boxed"}, "set template = 'code' or 'code-zh', given 'boxed'"),
        ("mbpp", [MBPP], {"params": {"show": 1}}, "only params.shown_tests"),
        ("mbpp", [MBPP], {"params": {"shown_tests": -1}}, "expected a whole number"),
        ("humaneval", [HUMANEVAL], {"columns": {"prompt": "x"}}, "use task 'programs'"),
        ("programs", [own(["assert f(1)"])], {"columns": {"test": "x"}}, "did you mean 'tests'"),
        ("programs", [own(["assert f(1)"])], {"params": {"x": 1}}, "takes no params"),
    ],
)
def test_a_request_that_cannot_be_served_says_what_to_do(tmp_path, name, rows, options, message):
    with pytest.raises(RequestError, match=message.replace(".", r"\.")):
        load(tmp_path, name, *rows, **options)


def test_a_file_without_tests_is_refused(tmp_path):
    with pytest.raises(DataError):
        load(tmp_path, "programs", {"prompt": "x"})


def completion(text):
    return Completion(token_ids=(), logprobs=(), finish="stop", text=text)


def emptied(solution, body):
    """The fenced program with the body of each of its functions and methods replaced."""
    tree = ast.parse(solution.removeprefix("```python\n").removesuffix("\n```"))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.body = ast.parse(body).body
    return f"```python\n{ast.unparse(tree)}\n```"


@pytest.mark.parametrize("name", ["humaneval", "mbpp"])
def test_reference_programs_pass_and_wrong_bodies_do_not(name):
    if not (DATA / name).is_dir():
        pytest.skip(f"shared/data/{name} is not here")
    problems = load_evaluation(name, path=str(DATA / name), split="test", template="code", held_out=40).problems
    right = programs([(p, completion(p.solution)) for p in problems])
    wrong = programs([(p, completion(emptied(p.solution, "raise ValueError"))) for p in problems[:20]])
    assert [p.id for p, score in zip(problems, right, strict=True) if not score.correct] == []
    assert [p.id for p, score in zip(problems, wrong, strict=False) if score.correct] == []


def test_helpers_of_two_special_problems_come_from_the_prompt():
    if not (DATA / "humaneval").is_dir():
        pytest.skip("shared/data/humaneval is not here")
    problems = load_evaluation("humaneval", path=str(DATA / "humaneval"), split="test", template="code").problems
    chosen = [p for p in problems if p.meta["task_id"] in ("HumanEval/32", "HumanEval/38", "HumanEval/50")]
    assert len(chosen) == 3
    assert [score.total for score in programs([(p, completion(p.solution)) for p in chosen])] == [1.0, 1.0, 1.0]
    # Redefining the helper that the tests call, so that anything passes, changes nothing for the tests.
    cheat = "```python\ndef poly(*a): return 0\ndef find_zero(xs): return 0\n```"
    (special,) = (p for p in chosen if p.meta["task_id"] == "HumanEval/32")
    assert not programs([(special, completion(cheat))])[0].correct
