"""Pins what completions are paid: the named rewards, a user's own function, and scores that never go missing."""

import math

import pytest

from peerwise.errors import RequestError, RewardError
from peerwise.records import Completion, Problem, Score
from peerwise.rewards import rubric, shape

PROBLEM = Problem(id="p/1", task="arithmetic", messages=({"role": "user", "content": "6 * 7 = ?"},), answer="42")


def completion(text):
    return Completion(token_ids=(1,), logprobs=(-0.1,), finish="stop", text=text)


def score(reward, text, weights=None):
    return rubric.build(reward, weights)(PROBLEM, completion(text))


@pytest.mark.parametrize(("text", "total"), [("\\boxed{42}", 1.0), ("\\boxed{41}", 0.0), ("", 0.0)])
def test_correctness_pays_one_or_nothing(text, total):
    assert score("correctness", text).total == total
    assert score("correctness", text).correct is (total == 1.0)


@pytest.mark.parametrize(
    ("text", "total"),
    [
        ("6 * 7 = 42\n\\boxed{42}", 1.0),
        ("42", 1.0),
        ("6 * 7 = 41\n\\boxed{41}", 0.2),
        ("首先，6 乘 7。\n### 答案: [41]", 0.2),
        ("Step 1: take six sevens.\nThen add them up", 0.1),
        ("6 * 7 = 41\nso \\boxed{", 0.1),
        ("\\boxed{41}", 0.0),
        ("The answer is 41.", 0.0),
        ("41", -0.5),
        ("no idea", -0.5),
        ("", -1.0),
        (" \n ", -1.0),
    ],
)
def test_graded_levels(text, total):
    assert score("graded", text).total == total


def test_parts_are_weighted_and_travel_unweighted():
    # One step of three: 1 * 1 + 0.2 * 1 + 0.3 / 3 = 1.3
    found = score("parts", "6 * 7 = 42\n\\boxed{42}", {"correct": 1.0, "format": 0.2, "steps": 0.3})
    assert found.total == pytest.approx(1.3)
    assert found.parts == {"correct": 1.0, "format": 1.0, "steps": pytest.approx(1 / 3)}
    assert found.extracted == "42"


@pytest.mark.parametrize(
    ("reward", "weights", "message"),
    [
        ("parts", None, "needs reward_weights"),
        ("parts", {"format": 1.0}, "`correct` above 0"),
        ("parts", {"correct": 1.0, "format": 0.6, "steps": 0.5}, "weigh 1.1, more than correct = 1"),
        ("parts", {"correct": 1.0, "formt": 0.1}, "did you mean 'format'"),
        ("parts", {"correct": math.nan}, "not a weight"),
        ("parts", {"correct": 1.0, "format": -0.1}, "not a weight"),
        ("correctness", {"correct": 1.0}, "go with reward = 'parts'"),
        ("corectness", None, "did you mean 'correctness'"),
        ("nowhere.py:f", None, "no file 'nowhere.py'"),
    ],
)
def test_a_reward_that_cannot_be_built_says_why(reward, weights, message):
    with pytest.raises(RequestError, match=message):
        rubric.build(reward, weights)


def own(tmp_path, body):
    path = tmp_path / "mine.py"
    path.write_text(body, encoding="utf-8")
    return f"{path}:f"


def test_an_own_function_may_return_a_number_parts_or_nothing(tmp_path):
    number = score(own(tmp_path, "def f(problem, completion): return len(completion.text)"), "\\boxed{42}")
    assert (number.total, number.correct, number.parts) == (10.0, True, {"f": 10.0})
    parts = score(own(tmp_path, "def f(p, c): return {'a': 1, 'b': 0.5, 'c': None}"), "\\boxed{41}")
    assert (parts.total, parts.correct, parts.parts) == (1.5, False, {"a": 1.0, "b": 0.5, "c": None})
    nothing = score(own(tmp_path, "def f(p, c): return None"), "\\boxed{42}")
    assert (nothing.total, nothing.correct, nothing.parts) == (0.0, True, {"f": None})


def test_an_own_part_called_correct_decides_correctness(tmp_path):
    reward = own(tmp_path, "def f(p, c): return {'correct': c.text == 'yes'}")
    assert score(reward, "yes").correct and not score(reward, "\\boxed{42}").correct


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("import no_such_thing", "No module named 'no_such_thing'"),
        ("def g(): pass", "has no function 'f'"),
        ("def f(:", "SyntaxError"),
    ],
)
def test_an_own_file_that_cannot_be_loaded_is_a_request_error(tmp_path, body, message):
    with pytest.raises(RequestError, match=message):
        rubric.build(own(tmp_path, body))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("def f(p, c): raise KeyError('level')", "KeyError on problem p/1: 'level'"),
        ("def f(p, c): return float('nan')", "returned nan for 'f' on problem p/1"),
        ("def f(p, c): return {'a': float('inf')}", "returned inf for 'a'"),
        ("def f(p, c): return 'good'", "returned 'good'"),
        ("def f(p, c): return [1.0]", r"returned \[1.0\]"),
    ],
)
def test_an_own_function_that_misbehaves_is_named_with_the_problem(tmp_path, body, message):
    scorer = rubric.build(own(tmp_path, body))
    with pytest.raises(RewardError, match=message) as caught:
        rubric.score_groups({"arithmetic": scorer}, [PROBLEM], [[completion("x")]])
    assert "mine.py:f" in str(caught.value)


def test_there_are_as_many_scores_as_completions_in_their_order():
    texts = [["\\boxed{42}", "{{{", "", "\\boxed{42}"], ["\\boxed{", "42"]]
    groups = [[completion(text) for text in group] for group in texts]
    found = rubric.score_groups({"arithmetic": rubric.build("correctness")}, [PROBLEM, PROBLEM], groups)
    assert [[s.total for s in group] for group in found] == [[1.0, 0.0, 0.0, 1.0], [0.0, 1.0]]


def test_each_task_is_judged_by_its_own_scorer():
    other = Problem(id="p/2", task="gsm8k", messages=(), answer="42")
    scorers = {"arithmetic": rubric.build("correctness"), "gsm8k": rubric.build("graded")}
    found = rubric.score_groups(scorers, [PROBLEM, other], [[completion("")], [completion("")]])
    assert [group[0].total for group in found] == [0.0, -1.0]


@pytest.mark.parametrize(
    "bad", [Score(total=math.nan, correct=False), Score(total=0.0, correct=False, parts={"a": math.inf}), 1.0]
)
def test_a_scorer_that_returns_no_score_is_refused(bad):
    with pytest.raises(RewardError, match="p/1"):
        rubric.score_groups({"arithmetic": lambda problem, completion: bad}, [PROBLEM], [[completion("x")]])


def test_form_and_steps_look_at_the_text_alone():
    assert shape.form("\\boxed{1}") == shape.form("#### 1") == shape.form("### 答案: [1]") == 1.0
    assert shape.form("it is 1") == shape.form("\\boxed{1") == 0.0
    assert shape.steps("\\boxed{1}") == 0.0
    assert shape.steps("1 + 1 = 2\n2 + 2 = 4\n4 + 4 = 8\n\\boxed{8}") == 1.0
    assert shape.steps("第一步：取三个。\n然后加四个。\n答案是7") == pytest.approx(2 / 3)
    assert shape.form(" ") is None and shape.steps(" ") is None


def test_repeating_one_step_earns_no_more_than_saying_it_once():
    assert shape.steps("1 + 1 = 2\n" * 50) == pytest.approx(1 / 3)


def test_a_gold_that_cannot_be_compared_is_not_verifiable():
    assert rubric.verifiable(PROBLEM)
    assert not rubric.verifiable(Problem(id="x", task="files", messages=(), answer=" "))


def test_importing_the_rewards_imports_no_torch_and_no_sympy():
    import subprocess
    import sys

    code = "import sys, peerwise.rewards.rubric; print({'torch', 'sympy', 'math_verify'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("reward", ["correctness", "graded"])
def test_the_last_number_counts_only_where_the_task_allows_it(reward):
    said = completion("6 * 7 = 42")
    assert rubric.build(reward)(PROBLEM, said).correct
    strict = rubric.build(reward, last_number=False)(PROBLEM, said)
    assert (strict.correct, strict.extracted) == (False, None)
