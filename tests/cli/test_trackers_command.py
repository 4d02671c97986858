"""Pins that `peerwise train` tells its trackers of the run, refuses those that are not installed before anything is
written, and comes to its end whatever they do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from peerwise.cli.main import main
from peerwise.trackers.known import KNOWN

TRACKIO = """
import os
from pathlib import Path

class Table:
    def __init__(self, columns, data):
        pass

class Run:
    def log(self, values, step):
        if os.environ.get("FAKE_TROUBLE"):
            raise ValueError("no room left")
        with open(Path(os.environ["FAKE_FOLDER"]) / "calls.txt", "a") as file:
            print(step, *values, file=file)
    def finish(self):
        pass

def init(**settings):
    return Run()
"""


@pytest.fixture
def calls(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a stand-in for trackio is told goes here."""
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "trackio.py").write_text(TRACKIO)
    monkeypatch.syspath_prepend(str(modules))
    monkeypatch.setenv("PYTHONPATH", str(modules))
    monkeypatch.setenv("FAKE_FOLDER", str(tmp_path))
    return tmp_path / "calls.txt"


def test_a_run_tells_its_tracker_of_stages_steps_samples_and_evaluations(calls: Path, capsys) -> None:
    words = ["recipe.toml", "--run.trackers", "trackio", "--run.samples-every", "1", "--json"]
    assert main(["train", *words]) == 0
    said = [line.split() for line in calls.read_text().splitlines()]
    # Before training an evaluation, then the stage and its one step, its samples, and the evaluation after it.
    assert [line[0] for line in said] == ["0", "0", "0", "0", "1", "1", "1", "1"]
    kinds = ("evaluation/files/accuracy", "evaluation/files/answers", "stage/grpo", "stage_number", "reward/mean")
    assert all(kind in line for kind, line in zip(kinds, said, strict=False))
    assert {"loss", "grad_norm", "time/step"} <= set(said[4])
    assert said[5] == ["1", "samples"] and said[7] == ["1", "evaluation/files/answers"]
    assert json.loads(capsys.readouterr().out)["run"] == "run"


def test_a_tracker_that_fails_costs_the_run_a_warning(calls: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("FAKE_TROUBLE", "1")
    assert main(["train", "recipe.toml", "--run.trackers", "trackio", "--quiet"]) == 0
    said = capsys.readouterr().err
    assert said.count("tracker trackio failed and is off, the run goes on: ValueError: no room left") == 1
    assert Path("run/metrics.jsonl").read_text().count("\n") == 1


def test_a_tracker_that_is_not_installed_is_refused_before_anything_is_written(here: Path, monkeypatch, capsys) -> None:
    monkeypatch.setitem(KNOWN, "wandb", KNOWN["wandb"]._replace(package="no_such_package"))
    assert main(["train", "recipe.toml", "--run.trackers", "wandb"]) == 2
    assert "pip install 'peerwise[wandb]'" in capsys.readouterr().err
    assert not Path("run").exists()


def test_an_unknown_tracker_is_named(here: Path, capsys) -> None:
    assert main(["train", "recipe.toml", "--run.trackers", "wandv"]) == 2
    assert "trackers" in capsys.readouterr().err
