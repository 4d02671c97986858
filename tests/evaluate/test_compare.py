"""Pins what a comparison of runs says: what was reached and at what cost, differences paired over the same problems,
not paired where they are others, several runs of a recipe together, and rows that miss something. Every expected number
is worked by hand."""

from __future__ import annotations

from typing import Any

import pytest

from peerwise.evaluate.compare import RunRows, between, common_goals, difference, summary, together
from peerwise.evaluate.estimate import newcombe_difference, sign_test


def evaluation(step: int, right: list[int], **other: Any) -> dict[str, Any]:
    return {
        "stage": "grpo", "step": step, "global_step": step, "task": "toy", "n": len(right), "samples": 1,
        "accuracy": sum(right) / len(right), "interval": [0.0, 1.0], "mean_tokens": 5.0, "right": right,
        "settings": {"name": "toy"}, "split": "test", "temperature": 0.0, "max_new_tokens": 8, "stop": [], "seed": 0,
    } | other  # fmt: skip


def run(name: str, *evaluations: dict[str, Any], steps: int = 4) -> RunRows:
    rows = [
        {"global_step": step, "time/step": 10.0 * step, "tokens/sampled": 100, "memory/peak": 1000 + step}
        for step in range(1, steps + 1)
    ]
    return RunRows(name=name, steps=rows, evaluations=evaluations)


def test_a_summary_tells_both_ends_and_the_cost():
    rows = run("a", evaluation(0, [0, 0, 0, 1]), evaluation(2, [1, 0, 0, 1]), evaluation(4, [1, 1, 0, 1]))
    found = summary(rows, {})
    assert found["tasks"]["toy"]["before"]["accuracy"] == 0.25
    assert (found["tasks"]["toy"]["last"]["accuracy"], found["tasks"]["toy"]["last"]["step"]) == (0.75, 4)
    assert (found["steps"], found["seconds"], found["sampled_tokens"], found["peak_bytes"]) == (4, 100.0, 400, 1004)
    assert "goal" not in found["tasks"]["toy"]


@pytest.mark.parametrize(
    ("goal", "expected"),
    # Steps cost 10, 20, 30 and 40 s and 100 tokens each; the start costs nothing.
    [(0.2, (0, 0.0, 0)), (0.5, (2, 30.0, 200)), (0.75, (4, 100.0, 400)), (0.9, None)],
)
def test_the_cost_of_a_goal_is_that_up_to_the_first_evaluation_that_reaches_it(goal, expected):
    rows = run("a", evaluation(0, [0, 0, 0, 1]), evaluation(2, [1, 0, 0, 1]), evaluation(4, [1, 1, 0, 1]))
    found = summary(rows, {"toy": goal})["tasks"]["toy"]["goal"]
    assert expected == (None if found is None else (found["steps"], found["seconds"], found["sampled_tokens"]))


def test_the_common_goal_is_the_highest_accuracy_that_every_run_reached_at_some_time():
    fell = run("a", evaluation(2, [1, 1, 1, 0]), evaluation(4, [1, 0, 0, 0]), evaluation(4, [1, 1], task="mine"))
    assert common_goals([fell, run("b", evaluation(4, [1, 1, 1, 1]))]) == {"toy": 0.75, "mine": 1.0}


def test_the_same_problems_are_compared_in_pairs():
    one = run("a", evaluation(4, [1, 1, 0, 0, 0, 0, 0, 0]))
    other = run("b", evaluation(4, [0, 1, 1, 1, 1, 1, 0, 0]))
    (found,) = difference(one, other)
    # Four gained, one lost: (4 - 1) / 8; by chance 5 or fewer of 5 as uneven: 2 * (1 + 5) / 32.
    assert found["difference"] == 3 / 8
    assert found["paired"]
    assert (found["gained"], found["lost"], found["sign_test"]) == (4, 1, 12 / 32)
    low, high = found["interval"]
    assert low < 3 / 8 < high
    # The other way round everything changes its sign.
    (back,) = difference(other, one)
    assert (back["difference"], back["gained"], back["lost"]) == (-3 / 8, 1, 4)


@pytest.mark.parametrize(
    "other", [{"seed": 1}, {"temperature": 0.5}, {"split": "train"}, {"settings": {"name": "toy", "template": "plain"}}]
)
def test_other_problems_or_another_way_of_measuring_are_not_paired(other):
    (found,) = difference(run("a", evaluation(4, [1, 0])), run("b", evaluation(4, [1, 1], **other)))
    assert not found["paired"]
    assert "sign_test" not in found
    assert found["difference"] == 0.5


def test_several_answers_a_problem_are_paired_by_their_shares():
    one, other = (run(name, evaluation(4, right, samples=4)) for name, right in (("a", [1, 4]), ("b", [3, 4])))
    (found,) = difference(one, other)
    assert (found["difference"], found["gained"], found["lost"]) == (0.25, 1, 0)


def test_another_number_of_answers_and_tasks_of_one_run_only_are_left_out():
    one = run("a", evaluation(4, [1, 0]), evaluation(4, [1, 0], task="mine"))
    assert difference(one, run("b", evaluation(4, [3, 1], samples=4))) == []


def test_runs_of_one_recipe_are_told_by_mean_lowest_and_highest():
    found = together([run("a", evaluation(0, [0, 0]), evaluation(4, [1, 0])), run("b", evaluation(4, [1, 1]))])
    assert found == {"toy": {"mean": 0.75, "lowest": 0.5, "highest": 1.0, "runs": 2}}


def test_recipes_with_several_seeds_are_compared_seed_by_seed():
    ones = [run("a0", evaluation(4, [0, 0])), run("a1", evaluation(4, [1, 0], seed=1))]
    others = [run("b0", evaluation(4, [1, 0])), run("b1", evaluation(4, [0, 0], seed=1)), run("b2")]
    # Seed 0 gains one problem of two, seed 1 loses one, and no run of the first recipe has the third.
    assert between(ones, others) == {"toy": {"mean": 0.0, "lowest": -0.5, "highest": 0.5, "pairs": 2}}
    assert between(ones, [run("b2", evaluation(4, [1, 1], seed=2))]) == {}


@pytest.mark.parametrize("spoilt", [{"accuracy": None}, {"accuracy": "0.5"}, {"task": None}, {"accuracy": True}])
def test_an_evaluation_that_does_not_tell_its_accuracy_is_passed_over(spoilt):
    rows = run("a", evaluation(2, [1, 0]), evaluation(4, [1, 1]) | spoilt)
    assert summary(rows, {})["tasks"]["toy"]["last"]["accuracy"] == 0.5


@pytest.mark.parametrize("right", [None, [], [2, 0], "ab"])
def test_without_the_answers_by_problem_there_is_no_difference(right):
    assert difference(run("a", evaluation(4, [1, 0])), run("b", evaluation(4, [1, 1]) | {"right": right})) == []


def test_a_run_that_has_done_nothing_yet_costs_nothing():
    found = summary(run("a", steps=0), {})
    assert (found["tasks"], found["steps"], found["seconds"], found["peak_bytes"]) == ({}, 0, 0, None)


def test_newcombes_own_example():
    # Newcombe 1998, table II, case (a): 56/70 - 48/80, method 10.
    difference_, low, high = newcombe_difference(48, 80, 56, 70)
    assert (round(difference_, 4), round(low, 4), round(high, 4)) == (0.2, 0.0524, 0.3339)


@pytest.mark.parametrize(
    ("gained", "lost", "p"), [(0, 0, 1.0), (5, 5, 1.0), (1, 0, 1.0), (6, 0, 2 / 64), (9, 1, 22 / 1024)]
)
def test_the_sign_test_is_exact_and_two_sided(gained, lost, p):
    assert sign_test(gained, lost) == p == sign_test(lost, gained)
