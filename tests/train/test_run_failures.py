"""Pins what a run does when the disk is full, numbers are not finite or a reward raises."""

from __future__ import annotations

import errno
import json
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from tiny_runs import (
    assert_same_run,
    digests,
    go_on,
    rows,
    start,
)
from transformers import PreTrainedModel

from peerwise.cli.main import main
from peerwise.errors import CheckpointError, TrainingError
from peerwise.train import checkpoint as checkpoint_module


def full_disk(owner: Any, method: str, call: int, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the given call of a writer the disk is full."""
    calls = 0
    original = getattr(owner, method)

    def failing(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            raise error
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, method, failing)


NO_SPACE = OSError(errno.ENOSPC, "No space left on device")
WRITERS = {
    "model": (PreTrainedModel, "save_pretrained", NO_SPACE),
    "safetensors": (PreTrainedModel, "save_pretrained", SafetensorError("I/O error: No space left on device")),
    "moments": (checkpoint_module, "save_file", NO_SPACE),
}


# Within a stage moments are written too: their second time is step 5, the third time of the model.
@pytest.mark.parametrize(("writer", "call"), [("model", 3), ("safetensors", 3), ("moments", 2)])
def test_a_disk_that_is_full_for_a_while_costs_one_checkpoint_and_a_warning(
    files, straight, tmp_path, monkeypatch, writer, call
):
    owner, method, error = WRITERS[writer]
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        full_disk(owner, method, call, error, patch)
        said = start(files, folder)
    assert "warning: the checkpoint" in said
    assert "No space left on device" in said
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["step-2", "step-3", "step-7"]
    expected = digests(straight("full") / "checkpoints")
    assert digests(folder / "checkpoints").items() <= expected.items()


@pytest.mark.parametrize(("call", "good"), [(2, ["step-2"]), (4, ["step-2", "step-3", "step-5"])])
def test_the_last_save_of_a_stage_must_succeed_and_the_last_good_checkpoint_stays(
    files, straight, tmp_path, monkeypatch, call, good
):
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        full_disk(PreTrainedModel, "save_pretrained", call, NO_SPACE, patch)
        with pytest.raises(CheckpointError, match="No space left on device"):
            start(files, folder)
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == good
    assert digests(folder / "checkpoints").items() <= digests(straight("full") / "checkpoints").items()
    go_on(folder)
    assert_same_run(folder, straight("full"))


def bad_numbers(calls: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient's norm is not a number at these optimizer steps, counted from 1."""
    count = 0
    original = torch.nn.utils.get_total_norm

    def norm(*args: Any, **kwargs: Any) -> torch.Tensor:
        nonlocal count
        count += 1
        found = original(*args, **kwargs)
        return torch.full_like(found, torch.nan) if count in calls else found

    monkeypatch.setattr(torch.nn.utils, "get_total_norm", norm)


def test_steps_that_are_not_finite_in_a_row_end_the_run_with_their_batches_saved(files, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    # The last sft step is 3; steps 5, 6 and 7 are the second to fourth of grpo.
    bad_numbers({5, 6, 7}, monkeypatch)
    with pytest.raises(TrainingError, match=r"3 steps in a row .* not finite"):
        start(files, folder)
    assert sorted(path.name for path in (folder / "bad").iterdir()) == ["step-5.json", "step-6.json", "step-7.json"]
    groups = [row for row in rows(folder, "rollouts.jsonl") if row["global_step"] == 6]
    batch = json.loads((folder / "bad" / "step-6.json").read_text())
    assert [group["problem"]["id"] for group in batch] == [row["problem"] for row in groups]
    for group, row in zip(batch, groups, strict=True):
        assert [c["text"] for c in group["completions"]] == [c["text"] for c in row["completions"]]
        assert all(len(c["token_ids"]) == len(c["logprobs"]) for c in group["completions"])
        assert group["advantages"] == [c["advantage"] for c in row["completions"]]
    bad = [row for row in rows(folder, "metrics.jsonl") if row.get("skipped/steps")]
    assert [row["global_step"] for row in bad] == [5, 6, 7]
    assert all(row["grad_norm"] is None and "grad_norm" in row["non_finite"] for row in bad)


def test_a_bad_step_moves_nothing_and_a_good_one_forgives_it(files, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    bad_numbers({4, 5, 7}, monkeypatch)
    said = start(files, folder, "full", "--run.max-bad-steps", "3")
    assert "not finite" in said
    weights = {n: load_file(folder / "checkpoints" / f"step-{n}" / "model.safetensors") for n in (3, 5, 7)}
    assert all(torch.equal(weights[3][key], weights[5][key]) for key in weights[3])
    assert any(not torch.equal(weights[5][key], weights[7][key]) for key in weights[5])


def test_max_bad_steps_is_the_number_of_bad_steps_in_a_row(files, tmp_path, monkeypatch, capsys):
    bad_numbers({5}, monkeypatch)
    words = ["train", str(files / "recipe.toml"), "--run.out", str(tmp_path / "run"), "--run.max-bad-steps", "1"]
    assert main(words) == 1
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert [line for line in said.splitlines() if line.startswith("peerwise:")] != []
    assert [path.name for path in (tmp_path / "run" / "bad").iterdir()] == ["step-5.json"]


def test_the_batch_of_a_bad_imitation_step_is_saved_too(files, tmp_path, monkeypatch):
    bad_numbers({2}, monkeypatch)
    start(files, tmp_path / "run")
    (path,) = (tmp_path / "run" / "bad").iterdir()
    assert path.name == "step-2.json"
    assert "The answer is" in path.read_text()


def test_weights_that_have_run_away_end_the_run_by_name(files, tmp_path, capsys):
    words = ["train", str(files / "recipe.toml"), "--run.out", str(tmp_path / "run"), "--quiet"]
    assert main([*words, "--stage.sft.optimizer.learning-rate", "1e30"]) == 1
    said = capsys.readouterr().err
    assert "not finite" in said
    assert "internal error" not in said


def test_a_reward_that_raises_ends_the_run_with_its_name_and_the_problem(files, tmp_path, capsys):
    reward = tmp_path / "broken.py"
    reward.write_text("def broken(problem, completion):\n    return 1 / 0\n")
    words = ["train", str(files / "recipe.toml"), "--run.out", str(tmp_path / "run"), "--quiet"]
    assert main([*words, "--task.reward", f"{reward}:broken"]) == 1
    said = capsys.readouterr().err
    assert "ZeroDivisionError" in said
    assert "arithmetic[" in said
    # The traceback is the reward's own and shown once.
    assert said.count("Traceback") == 1 and "broken.py" in said


def test_a_reward_that_begins_to_raise_does_not_cost_the_steps_before_it(files, tmp_path, capsys):
    reward = tmp_path / "worn.py"
    reward.write_text(
        "calls = []\n"
        "def worn(problem, completion):\n"
        "    calls.append(1)\n"
        "    if len(calls) > 32:\n"
        "        raise ValueError('worn out')\n"
        "    return float(len(calls) % 2)\n"
    )
    folder = tmp_path / "run"
    words = ["train", str(files / "recipe.toml"), "--run.out", str(folder), "--quiet", "--run.checkpoint-every", "0"]
    assert main([*words, "--task.reward", f"{reward}:worn", "--evaluation.every", "0"]) == 1
    # 8 answers before training, 8 after sft, then 8 a step: two steps of grpo pass, the third raises.
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["step-3", "step-5"]
    assert "worn out" in capsys.readouterr().err
