"""Pins the reward for programs: which text is taken for code, and what share, failure and absence are worth."""

from __future__ import annotations

import json
import time

import pytest

from peerwise.errors import RewardError
from peerwise.records import Completion, Problem
from peerwise.rewards.programs import code_of, has_tests, programs


def problem(answer=None, number=0):
    tests = ["assert double(2) == 4", "assert double(0) == 0", "assert double(-1) == -2", "assert double('a') == 'aa'"]
    answer = json.dumps({"prelude": "", "names": ["double"], "tests": tests}) if answer is None else answer
    return Problem(id=f"p/{number}", task="programs", messages=({"role": "user", "content": "?"},), answer=answer)


def completion(text):
    return Completion(token_ids=(), logprobs=(), finish="stop", text=text)


def fenced(code):
    return f"Here it is.\n```python\n{code}\n```\nDone.\n"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (fenced("x = 1"), "x = 1"),
        ("```\nx = 1\n```", "x = 1"),
        ("~~~py\nx = 1\n~~~", "x = 1"),
        ("```Python3 title=a.py\nx = 1\n```", "x = 1"),
        ("```python\r\nx = 1\r\n```\r\n", "x = 1"),
        # The last complete fence of Python, whatever comes after it.
        (fenced("x = 1") + fenced("x = 2"), "x = 2"),
        (fenced("x = 1") + "```python\nx = 2", "x = 1"),
        (fenced("x = 1") + "```text\n2\n```\n```bash\nls\n```", "x = 1"),
        ("```python\nx = 2", None),
        ("```text\nx = 1\n```", None),
        ("```python\n```", None),
        # A longer fence holds a shorter one; a list indents its fence.
        ("````python\nx = '''\n```\n'''\n````", "x = '''\n```\n'''"),
        ("- so:\n  ```python\n  def f():\n      pass\n  ```", "def f():\n    pass"),
        # Reasoning is not looked at.
        ("<think>```python\nx = 1\n```</think>```python\nx = 2\n```", "x = 2"),
        ("```python\nx = 1\n```</think>nothing", None),
        ("<think>```python\nx = 1\n```", None),
        # Without any fence.
        ("def f():\n    pass", "def f():\n    pass"),
        ("Sure:\nimport re\ndef f(): pass", "import re\ndef f(): pass"),
        ("I would import the module.", None),
        ("x = 1", None),
        ("", None),
    ],
)
def test_code_is_taken_by_the_documented_rules(text, code):
    assert code_of(text) == code


@pytest.mark.parametrize("piece", ["```", "```python\n", "~~~\n", "def ", "` ", "the ", "<think>", "\n", "``` ```\n"])
def test_code_is_found_in_linear_time(piece):
    begun = time.perf_counter()
    code_of(piece * 100_000)
    assert time.perf_counter() - begun < 5


def test_a_program_gets_the_share_of_tests_it_passes():
    texts = [
        fenced("def double(x): return x * 2"),
        fenced("def double(x): return int(x) * 2"),
        fenced("def double(x): return None"),
        fenced("def double(x) return x * 2"),
        "I cannot.",
    ]
    scores = programs([(problem(), completion(text)) for text in texts])
    assert [score.total for score in scores] == [1.0, 0.75, 0.0, -0.5, -0.5]
    assert [score.correct for score in scores] == [True, False, False, False, False]
    assert [dict(score.parts) for score in scores] == [
        {"correct": 1.0, "tests": 1.0, "compiles": 1.0},
        {"correct": 0.0, "tests": 0.75, "compiles": 1.0},
        {"correct": 0.0, "tests": 0.0, "compiles": 1.0},
        {"correct": 0.0, "tests": None, "compiles": 0.0},
        {"correct": 0.0, "tests": None, "compiles": 0.0},
    ]
    assert [score.extracted for score in scores[3:]] == ["def double(x) return x * 2", None]


def test_all_or_nothing_pays_for_all_tests_only():
    texts = [fenced("def double(x): return x * 2"), fenced("def double(x): return int(x) * 2"), "I cannot."]
    scores = programs([(problem(), completion(text)) for text in texts], all_or_nothing=True)
    assert [score.total for score in scores] == [1.0, 0.0, -0.5]
    assert scores[1].parts["tests"] == 0.75


def test_an_empty_batch_has_no_scores():
    assert programs([]) == []


@pytest.mark.parametrize(
    "answer",
    [
        *("42", "", "[" * 10**5, "[]", "{}", '{"prelude": "", "names": [], "tests": []}', '{"tests": ["assert 1"]}'),
        '{"prelude": "", "names": [], "tests": "assert 1"}',
        '{"prelude": "", "names": 3, "tests": ["assert 1"]}',
        '{"prelude": 5, "names": [], "tests": ["assert 1"]}',
    ],
)
def test_a_problem_without_tests_ends_the_run_and_names_itself(answer):
    assert not has_tests(problem(answer))
    with pytest.raises(RewardError, match=r"problem p/7 has no tests.*task = 'mbpp'"):
        programs([(problem(answer, number=7), completion(fenced("x = 1")))])


def test_a_problem_with_tests_has_them():
    assert has_tests(problem())
