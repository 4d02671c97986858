"""Pins the page of several runs: lines and bands worked by hand, the same problems side by side, names that tell runs
apart, and hostile texts that stay texts."""

from __future__ import annotations

import json
from pathlib import Path

from runs import evaluation, lines, metrics, write_run
from test_report_page import MARKUP, REVERSED, Seen, unpacked

from peerwise.cli.main import main
from peerwise.report.comparison import short_names
from peerwise.report.folder import read_folder
from peerwise.report.overlay import overlay


def a_run(folder, rewards, *, evals=(), seconds=10.0):
    """A folder whose steps, from 1 on, have these mean rewards; None is a step without one."""
    rows = [
        metrics(step, "grpo", reward__mean=reward, time__step=seconds, tokens__sampled=100)
        for step, reward in enumerate(rewards, 1)
    ]
    return read_folder(write_run(folder, metrics=lines(rows), evals=lines(list(evals))))


def test_several_runs_are_their_mean_with_a_band_as_far_as_each_got(tmp_path):
    runs = [a_run(tmp_path / "a", [0.2, 0.4, 0.6]), a_run(tmp_path / "b", [0.4, None], seconds=30.0)]
    found = overlay([runs])
    assert found["lines"] == [
        {"global_step": [1, 2, 3], "stage": ["grpo"] * 3, "tokens": [100, 200, 300], "seconds": [20.0, 40.0, 30.0]}
    ]
    (line,) = found["series"]["reward/mean"]
    assert [round(value, 9) for value in line["mean"]] == [0.3, 0.4, 0.6]
    assert (line["low"], line["high"]) == ([0.2, 0.4, 0.6], [0.4, 0.4, 0.6])


def test_one_run_has_no_band_and_a_metric_it_lacks_no_line(tmp_path):
    one = a_run(tmp_path / "a", [0.2, 0.4])
    other = read_folder(write_run(tmp_path / "b", metrics=lines([metrics(1, "sft", loss=2.0)])))
    series = overlay([[one], [other]])["series"]
    assert series["reward/mean"] == [{"mean": [0.2, 0.4], "low": None, "high": None}, None]
    assert series["loss"] == [None, {"mean": [2.0], "low": None, "high": None}]


def test_held_out_points_have_the_interval_of_one_run_or_the_bounds_of_several(tmp_path):
    one = a_run(tmp_path / "a", [0.1], evals=[evaluation("before", "grpo", 0, [0, 1])])
    others = [
        a_run(tmp_path / name, [0.1], evals=[evaluation("before", "grpo", 0, right)])
        for name, right in (("b", [0, 0, 0, 1]), ("c", [1, 1, 1, 0]))
    ]
    assert overlay([[one], others])["held_out"] == {
        "sums/test": [
            [{"global_step": 0, "accuracy": 0.5, "bounds": [0.25, 0.75], "runs": 1}],
            [{"global_step": 0, "accuracy": 0.5, "bounds": [0.25, 0.75], "runs": 2}],
        ]
    }


def test_the_figures_that_matter_most_come_first(tmp_path):
    rows = [metrics(1, "grpo", skipped__steps=0, loss=1.0, reward__mean=0.5, accuracy__sampled=0.5)]
    found = overlay([[read_folder(write_run(tmp_path, metrics=lines(rows)))]])["charts"]
    assert [chart["key"] for chart in found if chart["headline"]] == ["accuracy/sampled", "reward/mean", "loss"]
    assert [chart["key"] for chart in found if not chart["headline"]] == ["time/step", "skipped/steps"]


def test_names_are_what_tells_the_runs_apart():
    paths = [Path("/runs/a/one"), Path("/runs/b/one")]
    assert short_names(paths) == ["a/one", "b/one"]
    assert short_names([Path("/runs/one"), Path("/runs/two")]) == ["one", "two"]
    assert short_names([Path("/runs/one")]) == ["one"]


def example(problem, text):
    return {"problem": problem, "question": "1 + 1", "gold": "2", "text": text, "correct": True, "extracted": "2"}


def test_the_same_problems_stand_side_by_side_those_of_several_runs_first(tmp_path):
    for name, problems in (("a", ["only a", "both"]), ("b", ["both"])):
        early = evaluation("before", "grpo", 0, [0, 1], examples=[example("both", "early")])
        last = evaluation("after", "grpo", 4, [1, 1], examples=[example(one, f"{name} says") for one in problems])
        write_run(tmp_path / name, evals=lines([early, last]))
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--out", str(tmp_path / "x.html")]) == 0
    (task,) = json.loads((tmp_path / "x.json").read_text())["side_by_side"]
    assert [
        (problem["problem"], [(of["when"], of["text"]) for of in problem["answers"]]) for problem in task["problems"]
    ] == [("both", [("a", "a says"), ("b", "b says")]), ("only a", [("a", "a says")])]


def page_of(*words) -> Seen:
    page = Seen()
    assert main(["compare", *map(str, words)]) == 0
    page.feed(Path(words[-1]).read_text(encoding="utf-8"))
    return page


def test_texts_of_a_run_add_no_element_and_no_attribute_to_the_comparison(tmp_path, capsys):
    text = MARKUP + REVERSED
    record = evaluation("after", text, 3, [1, 0], task=text, split=text, examples=[example(text, text)], interval=text)
    write_run(
        tmp_path / "bad",
        evals=lines([record]),
        metrics=lines([metrics(3, text, loss=1.0) | {text: 1.0, "reward/part/" + text: 1.0}]),
        recipe=f"[run]\nout = {json.dumps(MARKUP)}\n[model]\npath = {json.dumps(MARKUP)}\n",
        run=f"2026-01-02 10:00:00 warning: {MARKUP}\n",
    )
    clean = page_of(write_run(tmp_path / "a"), write_run(tmp_path / "b"), "--out", tmp_path / "clean.html")
    page = page_of(tmp_path / "bad", tmp_path / "a", tmp_path / "bad", "--out", tmp_path / "bad.html")
    known = {tag for tag, _ in clean.elements} | {"ul", "li", "details", "summary", "code", "span"}
    assert {tag for tag, _ in page.elements} <= known
    names = {name for _, attributes in page.elements for name in attributes}
    assert not [name for name in names if name.startswith("on")]
    assert "src" not in names
    assert all(attributes["href"].startswith("#") for _, attributes in page.elements if "href" in attributes)
    html = (tmp_path / "bad.html").read_text(encoding="utf-8")
    said = capsys.readouterr().out
    assert not [character for character in "\u202e\u2066\x00\x1b" if character in html or character in said]
    assert "\u202e" not in unpacked(page, "tree")


def test_every_label_and_link_of_the_comparison_points_at_something(tmp_path, capsys):
    page = page_of(write_run(tmp_path / "a"), write_run(tmp_path / "b"), "--out", tmp_path / "x.html")
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    pointed = [a[name].lstrip("#") for _, a in page.elements for name in ("href", "aria-labelledby") if name in a]
    assert [name for name in pointed if name not in ids] == []


def test_rows_of_any_shape_are_compared(tmp_path, capsys):
    odd = [
        {"global_step": 1},
        {"global_step": 2, "task": "sums", "accuracy": 0.5, "samples": "x", "right": [1, None], "examples": [1, {}]},
        {"global_step": 3, "task": ["sums"], "split": "test", "accuracy": "much", "interval": [1], "examples": {}},
    ]
    write_run(tmp_path / "odd", evals=lines(odd), metrics=lines([{"global_step": 1, "loss": "x", "time/step": []}]))
    assert main(["compare", str(tmp_path / "odd"), str(write_run(tmp_path / "b")), "--out", f"{tmp_path}/x.html"]) == 0
