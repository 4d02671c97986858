"""Pins that a run killed anywhere and resumed ends bit-equal to one that never was, and what Ctrl-C does."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys

import pytest
from tiny_runs import (
    EVALUATION_CALLS,
    VARIANTS,
    assert_same_run,
    digests,
    go_on,
    killed_at,
    rows,
    start,
)
from transformers import PreTrainedModel

from peerwise.cli.main import main
from peerwise.errors import CheckpointError, RunFolderError
from peerwise.metrics.console import Console
from peerwise.metrics.write import ROW_FILES, RunFiles
from peerwise.recipe.load import loads
from peerwise.rollout.native.engine import NativeEngine
from peerwise.train.optimizer import Optimizer
from peerwise.train.stages import train

POINTS = {
    "optimizer step": (Optimizer, "step"),
    "checkpoint": (PreTrainedModel, "save_pretrained"),
    "evaluation row": (RunFiles, "evaluation"),
    "metrics row": (RunFiles, "metrics"),
    "rollout row": (RunFiles, "group"),
    "sampling": (NativeEngine, "generate"),
}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    ("point", "call"),
    [
        # In sft, at its end, at the beginning of grpo, between two of its checkpoints.
        *[("optimizer step", n) for n in (2, 3, 4, 6)],
        *[("checkpoint", n) for n in (1, 2, 3, 4)],
        *[("evaluation row", n) for n in (1, 3, 4)],
        ("metrics row", 4),
        ("rollout row", 3),
        ("sampling", 6),
    ],
)
def test_a_run_killed_anywhere_and_resumed_equals_a_straight_one(
    files, straight, tmp_path, monkeypatch, point, call, after
):
    folder = tmp_path / "run"
    with killed_at(*POINTS[point], call, after=after, monkeypatch=monkeypatch):
        start(files, folder)
    go_on(folder)
    assert_same_run(folder, straight("full"))


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name != "full"])
@pytest.mark.parametrize(("point", "call"), [("optimizer step", 3), ("metrics row", 4), ("metrics row", 6)])
def test_adapters_reference_and_precision_survive_a_kill(
    files, straight, tmp_path, monkeypatch, variant, point, call
):  # fmt: skip
    folder = tmp_path / "run"
    with killed_at(*POINTS[point], call, after=True, monkeypatch=monkeypatch):
        start(files, folder, variant)
    go_on(folder)
    assert_same_run(folder, straight(variant))


def test_a_run_killed_again_and_again_still_arrives(files, straight, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    with killed_at(Optimizer, "step", 3, after=True, monkeypatch=monkeypatch):
        start(files, folder, "lora-kl")
    for call in (1, 2, 2, 2, 1):
        with killed_at(Optimizer, "step", call, after=True, monkeypatch=monkeypatch):
            go_on(folder)
    go_on(folder)
    assert_same_run(folder, straight("lora-kl"))


def test_a_process_killed_by_the_system_is_resumed_to_the_same_end(files, straight, tmp_path):
    folder = tmp_path / "run"
    # Three evaluations, one step, and the middle of the second step's scoring.
    at = 3 * EVALUATION_CALLS + EVALUATION_CALLS + 4
    done = subprocess.run(
        [sys.executable, "-m", "peerwise", "train", str(files / "recipe.toml"), "--run.out", str(folder)],
        env={**os.environ, "TEST_SIGNAL": f"SIGKILL@{at}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    # Four whole steps, and the fifth was never written.
    assert len(rows(folder, "metrics.jsonl")) == 4
    assert main(["train", "--resume", str(folder), "--quiet"]) == 0
    assert_same_run(folder, straight("full"))


def test_a_line_cut_off_by_a_kill_is_removed_and_written_again(files, straight, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    with killed_at(RunFiles, "metrics", 6, after=True, monkeypatch=monkeypatch):
        start(files, folder)
    for name in ROW_FILES:
        with (folder / name).open("a") as file:
            file.write('{"stage": "grpo", "global_st')
    go_on(folder)
    assert_same_run(folder, straight("full"))


def test_a_kill_between_the_evaluations_of_two_tasks_loses_neither(files, tmp_path, monkeypatch):
    more = ['[[more_tasks]]', 'name = "arithmetic"', 'template = "lines"', f'reward = "{files / "reward.py"}:odd"',
            'params = {size = 50, min_ops = 1, max_ops = 1}']  # fmt: skip
    recipe = loads((files / "recipe.toml").read_text() + "\n".join(more))
    train(recipe, tmp_path / "straight", Console(file=io.StringIO()))
    assert [row["task"] for row in rows(tmp_path / "straight", "evals.jsonl")][:2] == ["arithmetic", "arithmetic-2"]
    for call in (1, 2, 3, 5):
        folder = tmp_path / f"run-{call}"
        with killed_at(RunFiles, "evaluation", call, after=True, monkeypatch=monkeypatch):
            train(recipe, folder, Console(file=io.StringIO()))
        go_on(folder)
        assert_same_run(folder, tmp_path / "straight")


def test_resuming_a_finished_run_changes_nothing(straight, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(straight("full"), folder)
    before = digests(folder)
    said = go_on(folder)
    after = digests(folder)
    assert {name for name in after if after[name] != before.get(name)} <= {"run.log"}
    assert set(after) - {"run.log"} == set(before) - {"run.log"}
    assert "finished" in said


@pytest.mark.parametrize(
    ("at", "saved"),
    [
        # In the evaluation before training: there is nothing to save, so it stops at once.
        (3, 0),
        # In the second evaluation, that of sft step 2, and in the first step of grpo.
        (EVALUATION_CALLS + 2, 2),
        (3 * EVALUATION_CALLS + 5, 4),
    ],
)
def test_the_first_interrupt_saves_and_says_how_to_go_on(
    files, straight, tmp_path, monkeypatch, capsys, at, saved
):  # fmt: skip
    folder = tmp_path / "run"
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    monkeypatch.setenv("TEST_SIGNAL", f"SIGINT@{at}")
    assert main(["train", str(files / "recipe.toml"), "--run.out", str(folder)]) == 130
    said = capsys.readouterr().err
    assert f"peerwise train --resume {folder}" in said
    assert "Traceback" not in said
    assert (f"saved at step {saved}" if saved else "no step was done") in said
    assert (folder / "checkpoints" / f"step-{saved}" / "trainer" / "state.json").is_file() == bool(saved)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    monkeypatch.delenv("TEST_SIGNAL")
    assert main(["train", "--resume", str(folder), "--quiet"]) == 0
    for name in ROW_FILES:
        assert rows(folder, name) == rows(straight("full"), name)
    last = "checkpoints/step-7/model.safetensors"
    assert (folder / last).read_bytes() == (straight("full") / last).read_bytes()


def test_a_second_interrupt_stops_at_once_without_saving(files, straight, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "run"
    monkeypatch.setenv("TEST_SIGNAL", f"SIGINT+@{3 * EVALUATION_CALLS + 5}")
    assert main(["train", str(files / "recipe.toml"), "--run.out", str(folder)]) == 130
    assert "Traceback" not in capsys.readouterr().err
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["step-2", "step-3"]
    monkeypatch.delenv("TEST_SIGNAL")
    go_on(folder)
    assert_same_run(folder, straight("full"))


def test_a_folder_that_is_no_run_cannot_be_resumed(tmp_path):
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(RunFolderError, match=r"is not a run: it has no recipe\.toml"):
            go_on(folder)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["model.safetensors", "trainer/optimizer.safetensors", "trainer/state.json"])
def test_a_last_checkpoint_that_was_damaged_is_named(files, tmp_path, monkeypatch, name):
    folder = tmp_path / "run"
    with killed_at(RunFiles, "metrics", 6, after=True, monkeypatch=monkeypatch):
        start(files, folder)
    path = folder / "checkpoints" / "step-5" / name
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(CheckpointError, match="step-5"):
        go_on(folder)
