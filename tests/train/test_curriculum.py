"""Pins which problems a curriculum lets through: the easiest first by a column, the sometimes right by measured pass
rate; that those passed over are counted and come again; that a run with one resumes exactly.
"""

from __future__ import annotations

import io
import json
import math
import reprlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_runs import assert_same_run, go_on, killed_at, opened, rows, start

from peerwise.errors import DataError
from peerwise.metrics.console import Console
from peerwise.metrics.write import RunFiles
from peerwise.recipe.load import loads
from peerwise.recipe.schema import Curriculum as Settings
from peerwise.records import Completion, Group, Problem, Score
from peerwise.train.checkpoint import checkpoints
from peerwise.train.curriculum import ByPassRate, Curriculum, curriculum
from peerwise.train.stages import train


def problems_of(values: Sequence[Any], column: str = "level") -> list[Problem]:
    return [
        Problem(id=f"p{i}", task="t", messages=(), answer="", meta={"line": i, column: value})
        for i, value in enumerate(values)
    ]


def made(values: Sequence[Any], *, steps: int = 10, **settings: Any) -> tuple[Curriculum, list[Problem]]:
    problems = problems_of(values)
    found = curriculum(Settings(by="level", **settings), problems, steps=steps, seed=0)
    assert found is not None
    return found, problems


def admitted(found: Curriculum, problems: Sequence[Problem], step: int) -> list[Any]:
    """The levels that are met at a step; a column looks at no place."""
    met = [p.meta["level"] for p in problems if found.admits(p, 0, step)]
    assert met == [p.meta["level"] for p in problems if found.admits(p, 12345, step)]
    return met


# By a column


def test_without_a_column_there_is_no_curriculum():
    assert curriculum(Settings(), problems_of([1, 2]), steps=10, seed=0) is None


def test_the_share_of_easy_problems_grows_on_a_line_until_all_are_met():
    found, problems = made([7, 2, 10, 5, 1, 9, 4, 8, 3, 6])  # start 0.3, until 0.5 of 10 steps
    # Of 10: 3, then 0.7 * 10 / 5 = 1.4 more with each step, rounded up: 4.4, 5.8, 7.2, 8.6, 10.
    counts = [3, 5, 6, 8, 9, 10, 10, 10, 10, 10]
    for step, count in enumerate(counts):
        assert sorted(admitted(found, problems, step)) == list(range(1, count + 1))


def test_high_numbers_are_easy_where_the_column_is_a_pass_rate():
    found, problems = made([0.7, 0.2, 1.0, 0.5, 0.1, 0.9, 0.4, 0.8, 0.3, 0.6], easy="high")
    assert sorted(admitted(found, problems, 0)) == [0.8, 0.9, 1.0]
    assert sorted(admitted(found, problems, 2)) == [0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
    assert len(admitted(found, problems, 5)) == 10


def test_a_level_is_never_cut_in_two():
    # The third easiest of 10 is of level 2, so all of level 2 are met.
    found, problems = made([3, 2, 1, 3, 2, 2, 3, 1, 2, 3])
    assert sorted(admitted(found, problems, 0)) == [1, 1, 2, 2, 2, 2]
    assert len(admitted(found, problems, 2)) == 6  # 5.8 of 10
    assert len(admitted(found, problems, 3)) == 10  # 7.2 of 10 is of level 3


def test_a_share_that_is_a_whole_number_of_problems_is_that_number():
    # In floats 0.07 * 100 is a little more than 7.
    assert 0.07 * 100 > 7
    found, problems = made(range(100), start=0.07)
    assert admitted(found, problems, 0) == list(range(7))


def test_the_easiest_level_is_met_however_small_the_share():
    found, problems = made([5, 4, 4, 9], start=0.01)
    assert admitted(found, problems, 0) == [4, 4]


def test_all_are_met_from_the_start_where_that_is_the_share():
    found, problems = made([5, 4, 4, 9], start=1.0)
    assert admitted(found, problems, 0) == [5, 4, 4, 9]


def test_with_until_1_the_last_problems_open_with_the_end_of_the_stage():
    found, problems = made(range(100), start=0.5, until=1.0, steps=50)
    assert [len(admitted(found, problems, step)) for step in (0, 1, 25, 49)] == [50, 51, 75, 99]


@given(
    levels=st.lists(st.integers(-3, 6), min_size=1, max_size=30),
    start=st.floats(0.01, 1),
    until=st.floats(0.01, 1),
    steps=st.integers(1, 20),
    easy=st.sampled_from(["low", "high"]),
)
def test_what_is_met_only_grows_holds_its_share_and_is_easier_than_the_rest(levels, start, until, steps, easy):
    found, problems = made(levels, start=start, until=until, steps=steps, easy=easy)
    before: set[str] = set()
    for step in range(steps + 1):
        met = {p.id for p in problems if found.admits(p, 0, step)}
        assert before <= met
        share = min(1.0, start + (1 - start) * step / (until * steps))
        assert len(met) >= share * len(levels) - 1e-6
        sign = 1 if easy == "low" else -1
        inside = [sign * p.meta["level"] for p in problems if p.id in met]
        outside = [sign * p.meta["level"] for p in problems if p.id not in met]
        assert not outside or max(inside) < min(outside)
        if step >= until * steps:
            assert not outside
        before = met


@pytest.mark.parametrize(
    ("value", "number"),
    [
        ("Level 3", 3),
        ("level3", 3),
        ("3", 3),
        (3, 3),
        (3.0, 3),
        ("3.25 points", 3.25),
        (-3, -3),
        ("-3", -3),
        ("+3", 3),
        (-0.5, -0.5),
        ("3.", 3),
        (".5", 0.5),
    ],
)
def test_a_number_or_a_text_with_one_in_it_says_how_hard_a_problem_is(value, number):
    # Met as the easier of two next to a slightly harder one, and not next to a slightly easier one.
    for other, expected in ((number + 0.125, [True, False]), (number - 0.125, [False, True])):
        found, problems = made([value, other], start=0.5)
        assert [found.admits(problem, 0, 0) for problem in problems] == expected


@pytest.mark.parametrize("value", [1e-05, 2.5e-07, 1e22])
def test_a_number_that_python_writes_with_an_exponent_is_one_number(value):
    # A pass rate of 1 in 100 000 is as good as any other.
    found, problems = made([value, value * 2], start=0.5)
    assert [found.admits(problem, 0, 0) for problem in problems] == [True, False]


def test_a_hyphen_between_a_word_and_its_number_is_no_minus_sign():
    found, problems = made(["Level-1", "Level-2", "Level-3"])
    assert admitted(found, problems, 0) == ["Level-1"]


@pytest.mark.parametrize(
    "value",
    [
        None,
        "hard",
        "",
        "3 of 5",
        "1,234",
        "2-3",
        True,
        "nan",
        math.inf,
        [1, 2],
        "9" * 400,
        pytest.param(10**400, id="1000..."),
    ],
)
def test_a_column_without_exactly_one_number_is_an_error_that_names_column_problem_and_columns(value):
    with pytest.raises(DataError) as caught:
        made([1, 2, value])
    said = str(caught.value)
    assert said.startswith(f"curriculum.by = 'level': problem p2 says {reprlib.repr(value)} there, expected one number")
    assert "(columns of this problem: line, level)" in said
    assert "name another column or set curriculum.by = 'measured'" in said


def test_a_column_that_is_missing_is_an_error_that_lists_those_there_are():
    with pytest.raises(
        DataError, match=r"curriculum\.by = 'hardness': problem p0 .*columns of this problem: line, level"
    ):
        curriculum(Settings(by="hardness"), problems_of([1, 2]), steps=10, seed=0)


def test_a_column_carries_nothing_from_step_to_step():
    found, problems = made([2, 1], start=0.5)
    found.observe([])
    assert found.state() == {}
    found.load({"t:p0": 1.0})
    assert admitted(found, problems, 0) == [1]


# By measured pass rate


def group(problem: Problem, right: Sequence[bool]) -> Group:
    return Group(
        problem=problem,
        prompt_ids=(1,),
        completions=tuple(Completion(token_ids=(2,), logprobs=(-1.0,), finish="stop", text="") for _ in right),
        scores=tuple(Score(total=0.7, correct=r) for r in right),
    )


PLACES = 4000


def times_met(right: int, of: int, *, floor: float, seed: int = 0) -> int:
    """At how many of the first places of the stream a problem that was right so often would be met."""
    (problem,) = problems_of([0])
    found = ByPassRate(floor, seed=seed)
    found.observe([group(problem, [True] * right + [False] * (of - right))])
    return sum(found.admits(problem, place, 3) for place in range(PLACES))


def test_measured_is_by_pass_rate_and_needs_no_column():
    problems = problems_of(["x", None])
    found = curriculum(Settings(by="measured", floor=1e-9), problems, steps=10, seed=5)
    assert isinstance(found, ByPassRate)
    found.observe([group(problems[0], [True, True])])
    assert [found.admits(problem, 0, 0) for problem in problems] == [False, True]


def test_a_problem_that_was_not_sampled_yet_is_always_met():
    (problem,) = problems_of([0])
    assert all(ByPassRate(0.1, seed=0).admits(problem, place, 0) for place in range(PLACES))


def test_a_problem_that_is_right_half_of_the_time_is_always_met():
    assert times_met(2, 4, floor=0.01) == PLACES


@pytest.mark.parametrize(
    ("right", "of", "floor", "chance"),
    [
        (0, 4, 0.1, 0.1),
        (4, 4, 0.1, 0.1),
        (0, 4, 0.3, 0.3),
        (1, 4, 0.1, 0.75),  # 4 * 1/4 * 3/4
        (3, 4, 0.1, 0.75),
        (1, 10, 0.1, 0.36),  # 4 * 0.1 * 0.9
        (9, 10, 0.1, 0.36),
        (1, 10, 0.6, 0.6),  # below the floor
        (0, 4, 1.0, 1.0),
    ],
)
def test_a_problem_is_met_with_four_times_the_variance_of_its_reward_and_at_least_the_floor(right, of, floor, chance):
    # Five deviations of a count of independent draws.
    allowed = 5 * math.sqrt(PLACES * chance * (1 - chance))
    assert abs(times_met(right, of, floor=floor) - PLACES * chance) <= allowed


def test_a_problem_that_is_never_right_comes_by_the_floor_alone():
    assert times_met(0, 4, floor=1e-9) == times_met(4, 4, floor=1e-9) == 0


def test_the_last_pass_rate_counts_and_the_total_reward_does_not():
    (problem,) = problems_of([0])
    found = ByPassRate(1e-9, seed=0)
    found.observe([group(problem, [True, False]), group(problem, [True, True])])
    assert not any(found.admits(problem, place, 0) for place in range(50))
    found.observe([group(problem, [True, False])])
    assert all(found.admits(problem, place, 0) for place in range(50))


def test_seed_and_place_decide_and_the_step_does_not():
    (problem,) = problems_of([0])

    def met(seed: int, step: int) -> list[bool]:
        found = ByPassRate(0.5, seed=seed)
        found.observe([group(problem, [False])])
        return [found.admits(problem, place, step) for place in range(40)]

    assert met(0, 1) == met(0, 9)
    assert len({tuple(met(seed, 1)) for seed in range(5)}) == 5


def test_pass_rates_go_through_json():
    problems = problems_of([0, 0, 0])
    found = ByPassRate(0.1, seed=4)
    found.observe([group(problems[0], [True, False, False]), group(problems[1], [False])])
    other = ByPassRate(0.1, seed=4)
    other.load(json.loads(json.dumps(found.state())))
    assert other.state() == found.state() == {"t:p0": 1 / 3, "t:p1": 0.0}
    for place in range(200):
        assert [other.admits(p, place, 0) for p in problems] == [found.admits(p, place, 0) for p in problems]


def test_what_was_saved_does_not_change_when_the_run_goes_on():
    (problem,) = problems_of([0])
    found = ByPassRate(0.1, seed=4)
    found.observe([group(problem, [True])])
    saved = found.state()
    other = ByPassRate(0.1, seed=4)
    other.load(saved)
    found.observe([group(problem, [False])])
    other.observe([group(problem, [True, False])])
    assert saved == {"t:p0": 1.0}


def test_problems_of_one_id_in_two_tasks_are_two_problems():
    first, second = (Problem(id="1", task=task, messages=(), answer="") for task in ("a", "b"))
    found = ByPassRate(1e-9, seed=0)
    found.observe([group(first, [False])])
    assert [found.admits(p, 0, 0) for p in (first, second)] == [False, True]


# The stage


def test_a_stage_by_a_column_meets_the_problems_that_are_open_in_the_order_of_the_stream(files, tmp_path):
    words = ["--curriculum.by", "operations", "--task.params", "size=60", "max_ops=4", "--rollout.problems", "3"]
    stage = opened(files, tmp_path / "run", *words)  # 4 steps: all are open from the third on
    problems = [problem for members in stage.session.problems.train.values() for problem in members]
    levels = sorted(problem.meta["operations"] for problem in problems)
    stream = stage.session.problems.order(stage.session.stage_seed("grpo")).take(0, 200)
    position, skipped = 0, []
    for step, share in enumerate([0.3, 0.65, 1.0, 1.0]):
        hardest = levels[math.ceil(share * len(levels)) - 1]
        expected: list[Problem] = []
        passed = 0
        while len(expected) < 3:
            problem = stream[position]
            position += 1
            if problem.meta["operations"] <= hardest:
                expected.append(problem)
            else:
                passed += 1
        metrics = stage.step(step).resolve()
        assert [group.problem.id for group in stage.groups] == [problem.id for problem in expected]
        assert (stage.position, metrics["curriculum/passed_over"]) == (position, passed)
        assert metrics["epoch"] == pytest.approx(position / len(problems))
        skipped.append(passed)
    assert skipped[0] > 0
    assert skipped[2:] == [0, 0]


def test_a_problem_that_comes_later_for_the_curriculum_is_sampled_by_its_place(files, tmp_path):
    # Keys come from the place in the stream, so the answers of a problem do not depend on who was passed over.
    words = ["--task.params", "size=60", "max_ops=4", "--rollout.problems"]
    plain = opened(files, tmp_path / "plain", *words, "12")
    some = opened(files, tmp_path / "some", *words, "3", "--curriculum.by", "operations")
    plain.step(0)
    metrics = some.step(0).resolve()
    assert metrics["curriculum/passed_over"] > 0
    answers = {group.problem.id: [c.token_ids for c in group.completions] for group in plain.groups}
    for met in some.groups:
        assert [c.token_ids for c in met.completions] == answers[met.problem.id]


def test_without_a_curriculum_nothing_is_passed_over_or_said(files, tmp_path):
    stage = opened(files, tmp_path / "run")
    assert not any(name.startswith("curriculum/") for name in stage.step(0).resolve())
    assert stage.position == 2
    assert "curriculum" not in stage.carried()


def test_a_column_that_the_data_lacks_is_refused_before_anything_is_written(files, tmp_path):
    recipe = loads((files / "recipe.toml").read_text(), ["--curriculum.by", "hardness"])
    with pytest.raises(DataError, match=r"curriculum\.by = 'hardness'.*columns of this problem: operations"):
        train(recipe, tmp_path / "run", Console(file=io.StringIO()))
    assert not (tmp_path / "run").exists()


MEASURED = "--curriculum.by measured --curriculum.floor 0.2 --task.limit 5 --rollout.group-size 2 --stage.grpo.steps 6"
"""Five problems, two a step: met again from the third step on. Checkpoints within grpo after its steps 2 and 4."""


@pytest.fixture(scope="module")
def whole(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("measured") / "run"
    start(files, folder, "full", *MEASURED.split())
    return folder


def test_a_run_by_pass_rate_counts_whom_it_passes_over(whole):
    steps = [row for row in rows(whole, "metrics.jsonl") if row["stage"] == "grpo"]
    passed = [row["curriculum/passed_over"] for row in steps]
    assert passed[:2] == [0, 0]
    assert sum(passed) > 0
    by_step = {state.global_step: state for _, state in checkpoints(whole)}
    for done in (2, 4):
        assert by_step[3 + done].position == 2 * done + sum(passed[:done])
    assert [row["epoch"] for row in steps] == pytest.approx(
        [(2 * done + sum(passed[:done])) / 5 for done in range(1, 7)]
    )


def test_the_pass_rates_in_a_checkpoint_are_those_last_sampled(whole):
    for _, state in checkpoints(whole):
        if state.stage != "grpo":
            continue
        expected = {}
        for row in rows(whole, "rollouts.jsonl"):
            if row["global_step"] <= state.global_step:
                right = [answer["correct"] for answer in row["completions"]]
                expected[f"{row['task']}:{row['problem']}"] = sum(right) / len(right)
        assert state.carried["curriculum"] == expected


@pytest.mark.parametrize("call", [6, 8], ids=["after one checkpoint", "after two"])
def test_a_run_by_pass_rate_is_resumed_to_the_same_end(files, whole, tmp_path, monkeypatch, call):
    folder = tmp_path / "run"
    with killed_at(RunFiles, "metrics", call, after=True, monkeypatch=monkeypatch):
        start(files, folder, "full", *MEASURED.split())
    go_on(folder)
    assert_same_run(folder, whole)


def test_a_run_by_a_column_is_resumed_to_the_same_end(files, tmp_path, monkeypatch):
    words = ["--curriculum.by", "operations", "--curriculum.until", "1", "--task.params", "size=60", "max_ops=4"]
    start(files, tmp_path / "whole", "full", *words)
    passed = [row.get("curriculum/passed_over", 0) for row in rows(tmp_path / "whole", "metrics.jsonl")]
    assert sum(passed[:5]) > 0
    with killed_at(RunFiles, "metrics", 6, after=True, monkeypatch=monkeypatch):
        start(files, tmp_path / "run", "full", *words)
    go_on(tmp_path / "run")
    assert_same_run(tmp_path / "run", tmp_path / "whole")
