"""Pins whether a run is said to have learned: hand-worked gains, their pairing, and the words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import evaluation, lines, metrics, write_run

from peerwise.evaluate.pairing import paired_gain
from peerwise.report import build
from peerwise.report.measured import evaluations, side_by_side, table
from peerwise.report.verdict import outcome, sentence


def test_the_gain_is_the_mean_difference_by_problem_with_its_bootstrap_interval():
    gain = paired_gain(evaluation("before", "a", 0, [0, 0, 0, 1]), evaluation("after", "a", 4, [1, 1, 0, 1]))
    # Differences 1, 1, 0, 0: a resample of four sums to 0 or to 4 in one case of 16 each, more than 2.5 %.
    assert (gain.difference, gain.gained, gain.lost) == (0.5, 2, 0)
    assert (gain.low, gain.high) == (0.0, 1.0)
    assert gain.p == 0.5
    assert not gain.beyond_chance


@pytest.mark.parametrize("right", [[1, 1], None, [1, "1", 1], {"a": 1}])
def test_counts_that_are_not_of_the_same_problems_are_not_paired(right):
    before, after = evaluation("before", "a", 0, [0, 0, 1]), evaluation("after", "a", 4, [1, 1, 1])
    assert paired_gain(before, after | {"right": right}) is None


def test_several_samples_count_as_shares_of_a_problem():
    before = evaluation("before", "a", 0, [0, 4], samples=4)
    gain = paired_gain(before, evaluation("after", "a", 4, [1, 3], samples=4))
    assert (gain.difference, gain.gained, gain.lost) == (0.0, 1, 1)


@pytest.mark.parametrize("other", [{"temperature": 1.0}, {"split": "train"}, {"seed": 3}, {"n": 2}, {"samples": 2}])
def test_evaluations_that_asked_otherwise_are_not_paired(other):
    before = evaluation("before", "a", 0, [0, 0, 1])
    assert paired_gain(before, evaluation("after", "a", 4, [1, 1, 1], **other)) is None


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=2, max_size=60))
def test_turning_before_and_after_round_turns_the_gain_round(pairs):
    rows = [evaluation("after", "a", 1, [int(pair[side]) for pair in pairs]) for side in (0, 1)]
    there, back = paired_gain(*rows), paired_gain(*reversed(rows))
    assert there.difference == pytest.approx(-back.difference)
    assert (there.gained, there.lost, there.p) == (back.lost, back.gained, back.p)


@pytest.mark.parametrize(
    ("after", "kind"),
    [([1] * 20, "better"), ([0] * 20, "worse"), ([1, 0] * 9 + [1, 1], "unchanged"), ([1] * 19, "unpaired")],
)
def test_the_run_is_judged_by_its_first_and_its_last_evaluation(after, kind):
    rows = [evaluation("before", "a", 0, [1, 0] * 10), evaluation("after", "a", 4, after)]
    assert outcome(rows)["kind"] == kind


def test_a_stage_stands_with_its_last_record_and_one_under_way_with_its_latest():
    rows = [
        evaluation("before", "a", 0, [0, 0, 0, 0]),
        evaluation("during", "a", 1, [1, 0, 0, 0]),
        evaluation("after", "a", 2, [1, 1, 0, 0]),
        evaluation("during", "b", 3, [1, 1, 1, 0]),
    ]
    told = outcome(rows)
    assert [stage["when"] for stage in told["stages"]] == ["before training", "after a", "at step 3 of b"]
    assert [stage["accuracy"] for stage in told["stages"]] == [0.0, 0.5, 0.75]
    assert told["gain"]["difference"] == 0.75
    assert told["stages"][2]["gain"]["difference"] == 0.25


def test_the_sentence_says_accuracies_intervals_and_the_paired_gain():
    rows = [evaluation("before", "a", 0, [0, 0, 0, 1]), evaluation("after", "a", 4, [1, 1, 0, 1])]
    assert sentence("sums", outcome(rows)) == (
        "sums: held-out accuracy 25.0 % [12.5, 62.5] before training, 75.0 % [37.5, 87.5] after a (4 problems, 95 % "
        "intervals). Paired by problem: +50.0 points [+0.0, +100.0], sign test p = 0.500; 2 problems gained, 0 lost."
    )


def test_the_table_has_a_row_an_evaluation_with_the_means_of_the_steps_since_the_one_before():
    steps = [metrics(step, "a", accuracy__sampled=step / 10, length__mean=step * 10.0) for step in (1, 2, 3)]
    rows = table(
        steps, [evaluation("before", "a", 0, [0]), evaluation("during", "a", 1, [0]), evaluation("after", "a", 3, [1])]
    )
    assert [row["sampled_length"] for row in rows] == [None, 10.0, 25.0]
    assert [row["sampled_accuracy"] for row in rows] == [None, 0.1, 0.25]


def test_the_answers_side_by_side_are_of_the_first_and_last_evaluation_and_some_between():
    rows = [evaluation("during", "a", step, [1]) for step in range(20)]
    (task,) = side_by_side(rows)
    assert [shown["when"] for shown in task["problems"][0]["answers"]] == [
        f"at step {step} of a" for step in (0, 3, 5, 8, 11, 14, 16, 19)
    ]
    assert task["left_out"] == 12


def test_pass_and_majority_come_with_their_intervals():
    row = evaluation("after", "a", 1, [1], pass_at_k={"2": {"value": 0.5, "interval": [0.25, 0.75]}, "4": "broken"})
    assert evaluations([row])[0]["pass_at_k"] == {"2": {"value": 0.5, "interval": [0.25, 0.75]}}


def test_the_report_of_a_run_that_learned_says_so(tmp_path):
    before, after = evaluation("before", "a", 0, [0] * 30), evaluation("after", "a", 4, [0] * 5 + [1] * 25)
    run = write_run(tmp_path, evals=lines([before, after]))
    tree = build(run).tree
    assert tree["verdict"]["headline"] == "It learned"
    facts = {fact["name"]: fact["value"] for fact in tree["facts"]}
    assert facts == {
        "State": "finished", "Steps done": "4", "Time in steps": "2 min 00 s",
        "From first to last log line": "2 min 05 s",
        "Tokens sampled": "150", "Groups recorded": "2", "Model": "tiny (3 M parameters, float32)",
        "Machine": "cpu, 2 threads, x86_64", "Seed": "7", "Version": "9.9.9",
    }  # fmt: skip


def test_tasks_that_went_different_ways_are_not_called_learned(tmp_path):
    rows = [
        evaluation(at, "a", step, right, task=task)
        for task, last in (("sums", 1), ("words", 0))
        for at, step, right in (("before", 0, [0, 1] * 15), ("after", 4, [last] * 30))
    ]
    run = write_run(tmp_path, evals=lines(rows))
    verdict = build(run).tree["verdict"]
    assert verdict["headline"] == "Different by task"
    assert len(verdict["sentences"]) == 2
