"""Pins `peerwise report`: where it writes, what it tells, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from peerwise.cli import report as command
from peerwise.cli.main import main

ROW = '{"stage": "grpo", "step": 1, "global_step": 1, "reward/mean": 0.5}\n'


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "recipe.toml").write_text("[run]\nseed = 5\n")
    (folder / "metrics.jsonl").write_text(ROW)
    return folder


def test_the_page_and_its_twin_are_written_into_the_run(run, capsys):
    assert main(["report", str(run)]) == 0
    assert capsys.readouterr().out.startswith(f"{run}/report.html: not measured on held-out problems\n")
    changes = json.loads((run / "report.json").read_text())["changes"]
    assert {"key": "run.seed", "default": "0", "value": "5"} in changes
    assert (run / "report.html").is_file()


def test_json_is_one_object_and_the_page_goes_where_it_is_told(run, tmp_path, capsys):
    assert main(["report", str(run), "--json", "--out", str(tmp_path / "x" / "page.html")]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["json"] == str(tmp_path / "x" / "page.json")
    assert told["verdict"]["kind"] == "none"
    assert any(sentence.startswith("evals.jsonl cannot be read") for sentence in told["missing"])
    assert sorted(path.name for path in run.iterdir()) == ["metrics.jsonl", "recipe.toml"]


def test_a_recipe_of_another_version_is_shown_without_its_differences(run, capsys):
    (run / "recipe.toml").write_text("[run]\nseed = 5\nnever_heard_of = 1\n")
    assert main(["report", str(run)]) == 0
    assert "warning: the recipe is shown without its differences" in capsys.readouterr().err
    assert json.loads((run / "report.json").read_text())["changes"] is None


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "the following arguments are required: RUN"),
        (["no-such-run"], "no-such-run is not a run"),
        (["RUN", "--out", "page.json"], "--out page.json should end in .html"),
    ],
)
def test_a_wrong_request_exits_2_with_one_message(run, capsys, words, expected):
    assert main(["report", *(str(run) if word == "RUN" else word for word in words)]) == 2
    error = capsys.readouterr().err
    assert expected in error
    assert error.count("\n") == 1


def test_watching_writes_again_when_the_run_goes_on_and_ends_with_it(run, capsys, monkeypatch):
    def the_run_goes_on(seconds):
        looks.append(seconds)
        if len(looks) == 2:
            with (run / "metrics.jsonl").open("a") as file:
                file.write(ROW)
        if len(looks) == 3:
            (run / "run.log").write_text("2026-01-02 10:00:00 finished; the model is in x\n")

    looks = []
    monkeypatch.setattr(command.time, "sleep", the_run_goes_on)
    assert main(["report", str(run), "--watch"]) == 0
    assert len(looks) == 3
    assert capsys.readouterr().err.count("written again, 2 steps") == 2


def test_a_report_needs_no_torch(run):
    code = f"import sys, peerwise.cli.main as m; m.main(['report', {str(run)!r}]); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"
