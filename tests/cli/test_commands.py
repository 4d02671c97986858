"""Pins that right requests work from end to end on a tiny model: train, eval and sample, for people and as JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from small_recipe import RECIPE

from peerwise.cli.main import main


def test_training_runs_from_end_to_end(here, capsys):
    assert main(["train", "recipe.toml"]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "accuracy" in captured.err
    assert "finished; the model is in run/checkpoints/step-1" in captured.err
    assert (here / "run" / "checkpoints" / "step-1" / "model.safetensors").is_file()
    # A trained model is a model like any other.
    assert main(["sample", "run/checkpoints/step-1", "--prompt", "2 + 2", "--max-new-tokens", "3"]) == 0


def test_without_an_output_folder_the_run_is_named_after_the_recipe(here):
    (here / "small.toml").write_text(RECIPE.replace('out = "run"\n', ""))
    assert main(["train", "small.toml", "--quiet"]) == 0
    assert (here / "runs" / "small" / "recipe.toml").is_file()


def evaluated(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """The record that `peerwise eval --json` prints, as strict JSON."""

    def refuse(name: str) -> float:
        raise AssertionError(f"{name} is not JSON")

    assert main(["eval", "model", *words, "--dtype", "float32", "--json"]) == 0
    record: dict[str, Any] = json.loads(capsys.readouterr().out, parse_constant=refuse)
    return record


EVALUATE = ("--problems", "6", "--max-new-tokens", "6")


def test_eval_prints_one_record_as_json(here, capsys):
    record = evaluated(capsys, *EVALUATE, "--params", '{"max_ops": 2}')
    assert (record["model"], record["task"], record["n"], record["samples"]) == ("model", "arithmetic", 6, 1)
    assert (record["temperature"], record["max_new_tokens"], record["seed"]) == (0.0, 6, 0)
    low, high = record["interval"]
    assert low <= record["accuracy"] <= high
    assert len(record["right"]) == 6
    assert sorted(path.name for path in here.iterdir()) == ["data.jsonl", "model", "recipe.toml"]


def test_eval_says_the_same_again_and_by_either_engine(here, capsys):
    first = evaluated(capsys, *EVALUATE, "--samples", "3")
    assert first["temperature"] == 1.0
    assert list(first["pass_at_k"]) == ["1", "2", "3"]
    assert list(first["maj_at_k"]) == ["3"]
    assert evaluated(capsys, *EVALUATE, "--samples", "3") == first
    slow = evaluated(capsys, *EVALUATE, "--samples", "3", "--engine", "transformers")
    assert slow == {**first, "engine": "transformers"}
    assert evaluated(capsys, *EVALUATE, "--samples", "3", "--max-branches", "2") == first
    assert evaluated(capsys, *EVALUATE, "--samples", "3", "--seed", "1")["examples"] != first["examples"]


def test_eval_reads_your_own_file(here, capsys):
    words = ("--task", "files", "--path", "data.jsonl", "--template", "plain")
    assert evaluated(capsys, *EVALUATE, *words)["n"] == 6
    record = evaluated(capsys, "--max-new-tokens", "6", *words)
    assert (record["task"], record["n"]) == ("files", 12)  # a single file is measured on whole
    assert {example["question"] for example in record["examples"]} <= {f"{i} + 1 = ?" for i in range(12)}


def test_eval_prints_lines_for_people_without_json(here, capsys):
    assert main(["eval", "model", *EVALUATE, "--samples", "2", "--dtype", "float32"]) == 0
    out = capsys.readouterr().out
    assert "arithmetic, 6 problems: mean accuracy of 2 samples" in out
    assert "pass@2" in out
    assert "maj@2" in out


def sampled(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["sample", "model", *words, "--dtype", "float32", "--max-new-tokens", "7", "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_sample_answers_a_prompt_n_times(here, capsys):
    found = sampled(capsys, "--prompt", "what is 2 + 2?", "--n", "2")
    assert found["messages"] == [{"role": "user", "content": "what is 2 + 2?"}]
    assert found["gold"] is None
    assert len(found["answers"]) == 2
    assert all(1 <= answer["tokens"] <= 7 and answer["finish"] in ("stop", "length") for answer in found["answers"])
    assert sampled(capsys, "--prompt", "what is 2 + 2?", "--n", "2") == found
    assert sampled(capsys, "--prompt", "what is 2 + 2?", "--n", "2", "--seed", "1") != found


@pytest.mark.parametrize("temperature", ["0", "0.7"])
def test_a_streamed_answer_is_the_one_of_json(here, capsys, temperature):
    words = ("--prompt", "what is 2 + 2?", "--temperature", temperature)
    (answer,) = sampled(capsys, *words)["answers"]
    assert main(["sample", "model", *words, "--dtype", "float32", "--max-new-tokens", "7"]) == 0
    assert capsys.readouterr().out == answer["text"] + "\n"


def test_several_answers_are_told_apart(here, capsys):
    words = ("--prompt", "2 + 2", "--n", "2", "--max-new-tokens", "4", "--dtype", "float32")
    assert main(["sample", "model", *words]) == 0
    out = capsys.readouterr().out
    assert "--- 1 of 2 (" in out
    assert "--- 2 of 2 (" in out


def test_sample_asks_a_problem_of_a_task_and_tells_its_gold(here, capsys):
    found = sampled(capsys, "--task", "arithmetic", "--index", "3")
    assert "Put the final answer in" in found["messages"][0]["content"]
    assert found["gold"].lstrip("-").isdigit()
    assert main(["sample", "model", "--task", "arithmetic", "--index", "3", "--max-new-tokens", "3"]) == 0
    assert f"--- gold: {found['gold']}" in capsys.readouterr().out


def test_an_interrupt_while_an_answer_is_written_is_one_line_and_exit_code_130(here, capsys, monkeypatch):
    from peerwise.rollout.native.engine import NativeEngine

    def interrupted(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(NativeEngine, "generate", interrupted)
    assert main(["sample", "model", "--prompt", "x"]) == 130
    assert capsys.readouterr().err == "peerwise: interrupted\n"
