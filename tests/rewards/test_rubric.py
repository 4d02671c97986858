"""Pins what completions are paid: the named rewards, weights and their schedules, and scores that never go missing."""

import math
import sys
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peerwise.errors import RequestError, RewardError
from peerwise.records import Completion, Problem, Score
from peerwise.rewards import rubric, shape

PROBLEM = Problem(id="p/1", task="arithmetic", messages=({"role": "user", "content": "6 * 7 = ?"},), answer="42")


def completion(text):
    return Completion(token_ids=(1,), logprobs=(-0.1,), finish="stop", text=text)


def score(reward, text, weights=None):
    (found,) = rubric.build(reward, weights)([(PROBLEM, completion(text))])
    return found


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


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("\\boxed{42.0}", "box, number"),
        ("The answer is forty.", "statement, number"),
        ("so \\boxed{4", "cut off"),
        ("", "empty"),
    ],
)
def test_a_score_tells_the_rules_that_decided(text, rule):
    assert score("correctness", text).rule == rule


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
        ("parts", {"correct": 0.0, "format": 0}, "at step 0 they sum to 0"),
        ("parts", {"correct": {"0": 1.0, "9": 0.0}}, "at step 9 they sum to 0"),
        ("parts", {"correct": 1.0, "formt": 0.1}, "did you mean 'format'"),
        ("parts", {"correct": math.nan}, "not a weight"),
        ("parts", {"correct": 1.0, "format": {"0": math.inf}}, "format = inf is not a weight"),
        ("parts", {"correct": 1.0, "format": -0.1}, "not a weight"),
        ("parts", {"correct": {}}, "expected points"),
        ("parts", {"correct": {"soon": 1.0}}, "expected points"),
        ("parts", {"correct": {"9" * 5000: 1.0}}, "expected points"),
        ("parts", {"correct": "1"}, "correct = '1' is not a weight"),
        ("parts", {"correct": 1.0, "length": 0.1}, "length need `longest`"),
        ("correctness", {"correct": 1.0}, "go with reward = 'parts'"),
        ("corectness", None, "did you mean 'correctness'"),
        ("nowhere.py:f", None, "no file 'nowhere.py'"),
    ],
)
def test_a_reward_that_cannot_be_built_says_why(reward, weights, message):
    with pytest.raises(RequestError, match=message):
        rubric.build(reward, weights)


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
    ("bad", "message"),
    [
        ([Score(total=math.nan, correct=False)], "total = nan on problem p/1"),
        ([Score(total=0.0, correct=False, parts={"a": math.inf})], "a = inf on problem p/1"),
        ([], "0 scores for 1 samples"),
        ([Score(total=0.0, correct=False)] * 2, "2 scores for 1 samples"),
    ],
)
def test_a_scorer_that_does_not_give_one_finite_score_a_sample_is_refused(bad, message):
    with pytest.raises(RewardError, match=message):
        rubric.score_groups({"arithmetic": lambda samples, *, step: bad}, [PROBLEM], [[completion("x")]])


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
    assert rubric.build(reward)([(PROBLEM, said)])[0].correct
    (strict,) = rubric.build(reward, last_number=False)([(PROBLEM, said)])
    assert (strict.correct, strict.extracted) == (False, None)


# Weights


def test_a_part_of_weight_zero_is_measured_and_not_paid():
    found = score("graded", "6 * 7 = 41\n\\boxed{41}")
    assert found.parts == {"levels": 0.2, "correct": 0.0, "format": 1.0, "steps": pytest.approx(1 / 3)}
    assert found.total == 0.2


def test_weights_run_on_lines_between_their_points_and_stay_constant_outside():
    weight = {"10": 0.2, "20": 1.0, "40": 0.0}
    assert [rubric.weight_at(weight, step) for step in (0, 10, 15, 20, 30, 40, 99)] == pytest.approx(
        [0.2, 0.2, 0.6, 1.0, 0.5, 0.0, 0.0]
    )
    assert rubric.weight_at(0.3, 7) == rubric.weight_at({"5": 0.3}, 7) == 0.3


def test_a_progressive_reward_pays_steps_first_and_correctness_later():
    scorer = rubric.build("parts", {"correct": {"0": 0.2, "100": 1.0}, "steps": {"0": 0.9, "100": 0.0}})
    right_at_once, wrong_with_steps = completion("\\boxed{42}"), completion("6 * 7 = 41\n2 * 2 = 4\n1 + 1 = 2")
    totals = [
        [s.total for s in scorer([(PROBLEM, right_at_once), (PROBLEM, wrong_with_steps)], step=step)]
        for step in (0, 50, 100)
    ]
    assert totals == [pytest.approx([0.2, 0.9]), pytest.approx([0.6, 0.45]), pytest.approx([1.0, 0.0])]


@given(st.dictionaries(st.integers(0, 500).map(str), st.floats(0, 10), min_size=1, max_size=5), st.integers(0, 600))
def test_a_scheduled_weight_never_leaves_the_range_of_its_points(points, step):
    assert min(points.values()) <= rubric.weight_at(points, step) <= max(points.values())


def test_the_parts_of_a_rubric_know_which_of_them_are_paid_and_their_most():
    scorer = rubric.build("parts", {"correct": {"0": 0.0, "9": 1.0}, "format": 0.1, "steps": 0.1, "levels": 0.0})
    assert scorer.paid == {"correct", "format", "steps"}
    assert scorer.best == {"correct": 1.0, "format": 1.0}


# Batches


def test_each_tasks_samples_are_scored_in_one_call_and_come_back_in_their_places():
    calls = []

    def counting(samples, *, step):
        calls.append(([answer.text for _, answer in samples], step))
        return [Score(total=float(len(answer.text)), correct=False) for _, answer in samples]

    other = Problem(id="p/2", task="gsm8k", messages=(), answer="1")
    third = Problem(id="p/3", task="arithmetic", messages=(), answer="1")
    groups = [[completion("a"), completion("bb")], [completion("ccc")], [completion(""), completion("dddd")]]
    found = rubric.score_groups({"arithmetic": counting, "gsm8k": counting}, [PROBLEM, other, third], groups, step=5)
    assert [[s.total for s in group] for group in found] == [[1.0, 2.0], [3.0], [0.0, 4.0]]
    assert calls == [(["a", "bb", "", "dddd"], 5), (["ccc"], 5)]


def programs_of(monkeypatch, scores):
    """Puts a judge of programs that gives `scores` in the real one's place, and hands back what it was asked."""
    asked = []

    def programs(samples, *, all_or_nothing=False):
        asked.append((len(samples), all_or_nothing))
        return scores

    monkeypatch.setitem(sys.modules, "peerwise.rewards.programs", types.SimpleNamespace(programs=programs))
    return asked


def test_programs_decide_what_is_correct_and_their_parts_travel(monkeypatch):
    half = Score(total=0.5, correct=False, parts={"correct": 0.0, "tests": 0.5, "compiles": 1.0}, extracted="code")
    broken = Score(total=0.0, correct=False, failed="no sandbox")
    asked = programs_of(monkeypatch, [half, broken])
    samples = [(PROBLEM, completion("\\boxed{42}")), (PROBLEM, completion("x"))]
    first, second = rubric.build("programs", all_or_nothing=True)(samples)
    assert asked == [(2, True)]
    assert (first.total, first.correct, first.extracted) == (0.5, False, "code")
    assert first.parts == {"correct": 0.0, "tests": 0.5, "compiles": 1.0, "programs": 0.5}
    assert (second.total, second.failed) == (0.0, "no sandbox")


def test_programs_are_a_part_among_others(monkeypatch):
    half = Score(total=0.5, correct=False, parts={"tests": 0.5})
    programs_of(monkeypatch, [half])
    (found,) = rubric.build("parts", {"programs": 1.0, "format": 0.2})([(PROBLEM, completion("\\boxed{42}"))])
    assert found.total == pytest.approx(0.7)
    assert not found.correct
