"""Pins what a report makes of a run's files: broken and missing parts are named, and the rest is used."""

from __future__ import annotations

import json

import pytest
from runs import LOG, answer, group, lines, metrics, write_run

from peerwise.errors import RunFolderError
from peerwise.metrics.diagnosis import NAMES, Trouble
from peerwise.report import build
from peerwise.report.curves import CHARTS, curves, gaps
from peerwise.report.folder import read_folder
from peerwise.report.journal import read_journal
from peerwise.report.samples import groups, index, reward_map


def test_a_folder_without_a_run_is_refused_with_its_name(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(RunFolderError, match="is not a run: expected a folder that `peerwise train` wrote"):
            read_folder(folder)


def test_a_cut_last_line_and_broken_lines_are_counted_by_reason_and_the_rest_is_read(tmp_path):
    broken = lines([metrics(1, "warm")]) + 'not json\n[1]\n{"loss": 1}\n{"global_step": true}\n' + '{"global_st'
    run = read_folder(write_run(tmp_path, metrics=broken))
    assert [row["global_step"] for row in run.metrics] == [1]
    assert run.missing == [
        "The last line of metrics.jsonl is cut off: it was being written, or the run was killed.",
        "metrics.jsonl: 1 lines are left out (not JSON).",
        "metrics.jsonl: 1 lines are left out (not a JSON object).",
        "metrics.jsonl: 2 lines are left out (no global_step).",
    ]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "null", '"text"', "true"])
def test_what_is_not_a_finite_number_is_a_gap_in_its_curve(tmp_path, number):
    rows = lines([metrics(1, "warm", loss=2.0)]) + f'{{"global_step": 2, "stage": "warm", "loss": {number}}}\n'
    run = read_folder(write_run(tmp_path, metrics=rows))
    assert curves(run.metrics, [])["series"]["loss"] == [2.0, None]


def test_metrics_that_were_not_finite_are_named_with_how_often():
    rows = [metrics(1, "warm", non_finite=["loss"]), metrics(2, "warm", non_finite=["loss", "grad_norm"])]
    assert gaps(rows) == [
        "loss was not a finite number at 2 steps; its curve has gaps there.",
        "grad_norm was not a finite number at 1 steps; its curve has gaps there.",
    ]


def test_steps_lie_over_tokens_and_seconds_added_up_and_trained_tokens_count_where_none_are_sampled():
    rows = [
        metrics(1, "warm", speed__trained_tokens_per_s=10.0, time__training=4.0),
        metrics(2, "grpo", tokens__sampled=100.0, speed__trained_tokens_per_s=10.0, time__training=4.0),
    ]
    steps = curves(rows, [])["steps"]
    assert (steps["tokens"], steps["seconds"]) == ([40.0, 140.0], [30.0, 60.0])


def test_only_charts_with_numbers_are_shown_and_a_metric_without_one_gets_its_own(tmp_path):
    run = read_folder(
        write_run(tmp_path, metrics=lines([metrics(1, "warm", loss=1.0, brand__new=3.0, entropy__mean=None)]))
    )
    shown = {chart["title"]: chart["keys"] for chart in curves(run.metrics, [])["charts"]}
    assert shown == {"Loss": ["loss"], "Seconds of a step": ["time/step"], "brand/new": ["brand/new"]}


def test_no_metric_is_in_two_charts():
    keys = [key for chart in CHARTS for key in chart.keys]
    assert len(keys) == len(set(keys))


def test_the_log_tells_machine_times_end_and_warnings_but_no_answer_passes_for_one():
    journal = read_journal(LOG)
    assert (journal.model, journal.machine) == ("tiny (3 M parameters, float32)", "cpu, 2 threads, x86_64")
    assert (journal.last - journal.began).total_seconds() == 125
    assert journal.finished
    assert [(w.times, w.chart) for w in journal.warnings] == [(3, "mismatch")]


def test_a_run_that_went_on_after_its_end_is_not_finished():
    assert read_journal(LOG + "2026-01-02 10:03:00 warning, 2 times: something\n").finished
    assert not read_journal(LOG + "2026-01-02 11:00:00 tiny on cpu; run folder /runs/tiny\n").finished


def test_answers_are_sorted_by_advantage_and_groups_are_counted_by_what_filters_ask(tmp_path):
    first, second = groups(read_folder(write_run(tmp_path)).rollouts, [])
    assert [shown["text"] for shown in first["answers"]] == ["two 2", "one 1", "six 6", "ten 0"]
    assert (first["id"], second["id"]) == ("3-1", "4-1")
    assert [second[name] for name in ("size", "right", "truncated", "unread", "failed", "longest")] == [
        4,
        3,
        1,
        1,
        0,
        4,
    ]
    assert "answers" not in index([first])[0]
    assert index([second])[0]["line"] == 2


def test_a_group_without_completions_is_left_out_and_counted():
    missing: list[str] = []
    rows = [group(3, []), group(3, [answer("x", 1.0, 0.0)]), group(3, "text"), group(3, ["text"])]
    assert [found["id"] for found in groups(rows, missing)] == ["3-1"]
    assert missing == ["rollouts.jsonl: 3 groups are left out (no completions in them)."]


def test_more_text_than_a_page_can_hold_is_cut_and_counted(monkeypatch):
    monkeypatch.setattr("peerwise.report.samples.CHARACTERS_KEPT", 2_000)
    missing: list[str] = []
    rows = [group(3, [answer("a" * 1_900, 1.0, 0.5), answer("b" * 300, 0.0, -0.5)])]
    assert [len(shown["text"]) for shown in groups(rows, missing)[0]["answers"]] == [1_000, 300]
    assert missing == ["1 answers are cut to 1,000 characters; rollouts.jsonl has all of them whole."]


def test_the_reward_map_is_the_share_of_answers_by_step_and_leaves_failed_rewards_out():
    rows = [
        group(3, [answer("a", 0.0, 0), answer("b", 1.0, 0), answer("c", 1.0, 0), answer("d", 1.0, 0)]),
        group(4, [answer("a", 0.5, 0), answer("b", 0.0, 0, failed="boom")]),
    ]
    assert reward_map(groups(rows, [])) == {
        "steps": [3, 4], "rewards": [0.0, 0.5, 1.0], "shares": [[0.25, 0.0], [0.0, 1.0], [0.75, 0.0]],
    }  # fmt: skip


def test_many_rewards_share_bins_and_many_steps_share_columns():
    rows = [group(step, [answer("a", step / 1000, 0)]) for step in range(1, 402)]
    shown = reward_map(groups(rows, []))
    assert len(shown["rewards"]) == 20
    assert shown["steps"] == list(range(1, 402, 3))
    assert all(sum(column) == pytest.approx(1) for column in zip(*shown["shares"], strict=True))


@pytest.mark.parametrize("name", ["recipe.toml", "metrics.jsonl", "rollouts.jsonl", "evals.jsonl", "run.log"])
@pytest.mark.parametrize("spoil", ["missing", "empty", "noise"])
def test_a_report_is_written_whatever_one_file_is_like(tmp_path, name, spoil):
    run = write_run(tmp_path / "run")
    if spoil == "missing":
        (run / name).unlink()
    else:
        (run / name).write_bytes(b"" if spoil == "empty" else b"\xff\x00{[\n\xfe" * 50)
    report = build(run)
    told = json.loads(report.twin.read_text())["missing"]
    assert any(name in sentence for sentence in told)
    assert report.html.read_text(encoding="utf-8").endswith("</html>")


def test_a_run_that_has_just_begun_says_what_is_not_there_yet(tmp_path):
    (tmp_path / "recipe.toml").write_text("[run]\nseed = 1\n")
    report = build(tmp_path)
    assert report.tree["verdict"]["headline"] == "Not measured on held-out problems"
    html = report.html.read_text()
    for sentence in (
        "No step has been recorded yet",
        "No evaluation has been recorded yet",
        "metrics.jsonl cannot be read",
    ):
        assert sentence in html


@pytest.mark.parametrize("name", NAMES)
def test_every_trouble_that_a_run_names_is_linked_to_a_chart(name):
    line = Trouble(name, "what it is about").line
    (warned,) = read_journal(f"2026-01-02 10:00:30 warning: {line}\n").warnings
    assert warned.chart in {chart.id for chart in CHARTS}
