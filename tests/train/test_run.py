"""Pins a whole run on a tiny model: what its folder holds, that the same recipe makes the same run, that a checkpoint
is a model like any other, and which folders are refused."""

from __future__ import annotations

import io
import json
import shutil
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny_runs import (
    VARIANTS,
    assert_same_run,
    digests,
    rows,
    start,
)
from transformers import AutoModelForCausalLM, AutoTokenizer

from peerwise.cli.main import main
from peerwise.errors import RunFolderError
from peerwise.metrics.console import Console
from peerwise.metrics.write import ROW_FILES
from peerwise.models.load import load as load_policy
from peerwise.recipe.load import loads
from peerwise.rollout.base import Request, SamplingParams
from peerwise.rollout.native.engine import NativeEngine
from peerwise.train.stages import train
from tiny_models import tiny_policy


def test_the_run_folder_holds_what_it_should(straight):
    folder = straight("full")
    assert {"recipe.toml", "checkpoints", *ROW_FILES} <= {path.name for path in folder.iterdir()}
    metrics = rows(folder, "metrics.jsonl")
    assert [(row["stage"], row["step"], row["global_step"]) for row in metrics] == [
        ("sft", 1, 1), ("sft", 2, 2), ("sft", 3, 3), ("grpo", 1, 4), ("grpo", 2, 5), ("grpo", 3, 6), ("grpo", 4, 7)
    ]  # fmt: skip
    evals = rows(folder, "evals.jsonl")
    assert [(row["stage"], row["global_step"], row["at"]) for row in evals] == [
        ("sft", 0, "before"), ("sft", 2, "during"), ("sft", 3, "after"), ("grpo", 5, "during"), ("grpo", 7, "after")
    ]  # fmt: skip
    assert {row["n"] for row in evals} == {8}
    groups = rows(folder, "rollouts.jsonl")
    assert [row["global_step"] for row in groups] == [4, 4, 5, 5, 6, 6, 7, 7]
    assert all(len(row["completions"]) == 4 for row in groups)
    assert {answer["tokens"] for row in groups for answer in row["completions"]} <= set(range(1, 9))
    assert not {row["problem"] for row in groups} & {example["problem"] for row in evals for example in row["examples"]}
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["step-2", "step-3", "step-5", "step-7"]


def test_the_run_has_learned_in_both_stages(straight):
    # Otherwise the equalities below would hold for a run that does nothing.
    for variant in VARIANTS:
        folder = straight(variant)
        weights = {n: load_file(folder / "checkpoints" / f"step-{n}" / "model.safetensors") for n in (2, 3, 5, 7)}
        for earlier, later in ((2, 3), (3, 5), (5, 7)):
            assert any(not torch.equal(weights[earlier][key], weights[later][key]) for key in weights[earlier])
        advantages = [c["advantage"] for row in rows(folder, "rollouts.jsonl") for c in row["completions"]]
        assert any(advantages)


def test_the_same_recipe_makes_the_same_run(files, straight, tmp_path):
    start(files, tmp_path / "run")
    assert_same_run(tmp_path / "run", straight("full"))


def test_the_saved_recipe_alone_makes_the_same_run(straight, tmp_path):
    recipe = loads((straight("lora-kl") / "recipe.toml").read_text())
    train(recipe, tmp_path / "run", Console(file=io.StringIO()))
    assert_same_run(tmp_path / "run", straight("lora-kl"))


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_checkpoint_is_a_hugging_face_folder_that_answers_as_the_run_did(straight, variant):
    folder = straight(variant) / "checkpoints" / "step-7"
    model = AutoModelForCausalLM.from_pretrained(folder)
    original = tiny_policy("llama")
    assert set(model.state_dict()) == set(original.model.state_dict())
    text = "12 + 7\n\\boxed{19}"
    assert AutoTokenizer.from_pretrained(folder)(text)["input_ids"] == original.tokenizer(text)["input_ids"]
    if variant == "bfloat16":
        return  # the run answered with rounded weights, the checkpoint holds the masters
    policy = load_policy(str(folder), dtype="float32", device="cpu")
    engine = NativeEngine(policy.model, decode=policy.decode, end_ids=policy.end_ids)
    last = rows(straight(variant), "evals.jsonl")[-1]
    for example in last["examples"]:
        prompt = policy.prompt_ids([{"role": "user", "content": example["question"]}])
        params = SamplingParams(max_new_tokens=last["max_new_tokens"], temperature=0.0)
        ((answer,),) = engine.generate([Request(prompt_ids=prompt, keys=(0,))], params)
        assert answer.text == example["text"]


def test_a_folder_that_holds_a_run_is_refused_and_left_alone(files, straight, tmp_path, capsys):
    folder = tmp_path / "run"
    shutil.copytree(straight("full"), folder)
    before = digests(folder)
    assert main(["train", str(files / "recipe.toml"), "--run.out", str(folder)]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("peerwise:")]
    assert f"{folder} holds a run" in line
    assert f"--resume {folder}" in line
    assert digests(folder) == before


def test_a_folder_with_other_things_in_it_and_a_file_are_refused(files, tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "todo.txt").write_text("milk")
    (tmp_path / "file").write_text("x")
    for name in ("notes", "file"):
        with pytest.raises(RunFolderError, match="not overwritten"):
            start(files, tmp_path / name)
    assert [path.name for path in (tmp_path / "notes").iterdir()] == ["todo.txt"]


def test_an_empty_folder_may_be_written_to(files, straight, tmp_path):
    start(files, tmp_path)
    assert_same_run(tmp_path, straight("full"))


@pytest.mark.parametrize("keep", [1, 2])
def test_old_checkpoints_go_and_those_that_end_a_stage_stay(files, tmp_path, keep):
    start(files, tmp_path / "run", "full", "--run.checkpoint-every", "1", "--run.keep-checkpoints", str(keep))
    names = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert names == {1: ["step-3", "step-6", "step-7"], 2: ["step-3", "step-5", "step-6", "step-7"]}[keep]


def test_gradient_checkpointing_computes_blocks_again_and_changes_no_step(files, straight, tmp_path, monkeypatch):
    from transformers.models.llama.modeling_llama import LlamaAttention

    calls = 0
    original = LlamaAttention.forward

    def counted(self: Any, *args: Any, **named: Any) -> Any:
        nonlocal calls
        calls += torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
        return original(self, *args, **named)

    monkeypatch.setattr(LlamaAttention, "forward", counted)
    start(files, tmp_path / "without")
    plain, calls = calls, 0
    start(files, tmp_path / "with", "full", "--model.gradient-checkpointing", "True")
    assert plain > 0
    assert calls == 2 * plain
    expected = rows(straight("full"), "metrics.jsonl")
    for ours, theirs in zip(rows(tmp_path / "with", "metrics.jsonl"), expected, strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-5)
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-3)


def test_an_sft_stage_without_worked_solutions_is_refused_before_anything_is_written(files, tmp_path, capsys):
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"{i} + 1", "answer": str(i + 1)}) + "\n" for i in range(20)))
    recipe = (files / "recipe.toml").read_text().replace('name = "arithmetic"', f'name = "files"\npath = "{data}"')
    (tmp_path / "recipe.toml").write_text(recipe.replace("[task.params]\nsize = 60\nmax_ops = 2\n", ""))
    assert main(["train", str(tmp_path / "recipe.toml"), "--run.out", str(tmp_path / "run"), "--quiet"]) == 2
    assert "worked solutions" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
