"""Pins which checkpoint of a run is its best, and that it leaves the run as a plain Hugging Face folder with a card:
the whole model, or adapters that on their base are the same."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from peerwise.cli.main import main
from peerwise.errors import RequestError, RunFolderError
from peerwise.metrics.write import read_rows
from peerwise.models.load import load
from peerwise.train.export import best_checkpoint, export


@pytest.fixture
def run(straight, tmp_path: Path) -> Path:
    """A copy of a finished run with the accuracies 0.5, 0.75, 0.75 and 0.25 at the steps 0, 3, 5 and 7."""
    folder = tmp_path / "run"
    shutil.copytree(straight("full"), folder)
    accuracy = {0: 0.5, 2: 1.0, 3: 0.75, 5: 0.75, 7: 0.25}
    rows = [row | {"accuracy": accuracy[row["global_step"]]} for row in read_rows(folder / "evals.jsonl")]
    (folder / "evals.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shutil.rmtree(folder / "checkpoints" / "step-2", ignore_errors=True)
    return folder


def test_the_best_is_the_earliest_of_the_most_accurate_that_is_still_there(run: Path) -> None:
    # Step 2 was better, but its checkpoint is gone.
    assert best_checkpoint(run).name == "step-3"
    shutil.rmtree(run / "checkpoints" / "step-3")
    assert best_checkpoint(run).name == "step-5"


def test_without_an_evaluation_it_is_the_latest(run: Path) -> None:
    (run / "evals.jsonl").unlink()
    assert best_checkpoint(run).name == "step-7"


def test_the_folder_loads_anywhere_and_is_the_checkpoint(run: Path, tmp_path: Path) -> None:
    target = tmp_path / "new" / "model"
    assert export(run, target) == run / "checkpoints" / "step-3"
    assert not (target / "trainer").exists()
    model = AutoModelForCausalLM.from_pretrained(target)
    AutoTokenizer.from_pretrained(target)
    expected = load(str(run / "checkpoints" / "step-3"), dtype="float32").model.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in model.state_dict().items())
    card = (target / "README.md").read_text()
    assert "| arithmetic | 50.0% [" in card and "| 75.0% [" in card
    assert "step 3 of the run" in card and "run.seed = 3" in card
    assert [path.name for path in target.parent.iterdir()] == ["model"]


def test_the_card_has_results_data_recipe_and_licences(run: Path, tmp_path: Path) -> None:
    export(run, tmp_path / "model")
    card = (tmp_path / "model" / "README.md").read_text()
    head, _, text = card.removeprefix("---\n").partition("\n---\n")
    assert head.split("\n") == ["library_name: transformers", "pipeline_tag: text-generation", "tags: [grpo, peerwise]"]
    titles = [line for line in text.split("\n") if line.startswith("#")]
    assert titles == ["# run", "## Use", "## Results", "## Data", "## Recipe", "## Licence"]
    assert "    run.seed = 3\n" in text
    assert "- data arithmetic: none needed: the problems are generated" in text
    assert "/model`: not known to peerwise" in text  # the base model, a folder


@pytest.fixture
def lora_run(straight) -> Path:
    return straight("lora")


def logits(folder: Path, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(ids).logits


def test_a_run_with_adapters_gives_those_and_on_its_base_they_are_the_checkpoint(
    lora_run: Path, files: Path, tmp_path: Path
) -> None:
    target = tmp_path / "adapters"
    source = export(lora_run, target)
    assert {path.name for path in target.iterdir()} >= {"adapter_config.json", "adapter_model.safetensors", "README.md"}
    assert not (target / "model.safetensors").exists() and not (target / "config.json").exists()
    assert json.loads((target / "adapter_config.json").read_text())["base_model_name_or_path"] == str(files / "model")
    ids = torch.arange(5, 25).unsqueeze(0)
    # The adapters beside the base and the sum of both differ by the order of float32 additions alone.
    torch.testing.assert_close(logits(target, ids), logits(source, ids), atol=1e-5, rtol=1e-4)
    assert (logits(target, ids) - logits(files / "model", ids)).abs().max() > 1e-3
    AutoTokenizer.from_pretrained(target)
    card = (target / "README.md").read_text()
    assert "library_name: peft" in card and "--merge-lora" in card and "adapters only" in card


def test_merged_adapters_are_a_whole_model_that_needs_no_other(lora_run: Path, tmp_path: Path) -> None:
    target = tmp_path / "merged"
    source = export(lora_run, target, merge_lora=True)
    assert not (target / "adapter_config.json").exists()
    ids = torch.arange(5, 25).unsqueeze(0)
    assert torch.equal(logits(target, ids), logits(source, ids))
    assert "adapters folded in" in (target / "README.md").read_text()


def test_merging_without_adapters_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no adapters to merge; leave --merge-lora out"):
        export(run, tmp_path / "model", merge_lora=True)
    assert not (tmp_path / "model").exists()


def test_what_exists_is_not_overwritten_and_what_is_no_run_is_said(run: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(RunFolderError, match="is not overwritten"):
        export(run, tmp_path / "there")
    with pytest.raises(RunFolderError, match="is not a run"):
        export(tmp_path / "there", tmp_path / "other")
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(RunFolderError, match="has no checkpoint yet"):
        export(run, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_sample_and_eval_take_a_run_for_its_best_checkpoint(run: Path, tmp_path: Path, capsys) -> None:
    assert main(["sample", str(run), "--prompt", "1+1", "--max-new-tokens", "2", "--json"]) == 0
    said = capsys.readouterr()
    assert "its best checkpoint is" in said.err and "step-3" in said.err
    assert len(json.loads(said.out)["answers"]) == 1
    assert main(["export", str(run), "--to", str(tmp_path / "model"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["checkpoint"].endswith("step-3") and said["adapters_only"] is False


def test_the_command_says_when_only_adapters_were_written(lora_run: Path, tmp_path: Path, capsys) -> None:
    assert main(["export", str(lora_run), "--to", str(tmp_path / "adapters")]) == 0
    assert "need the base model" in capsys.readouterr().out
    assert main(["export", str(lora_run), "--to", str(tmp_path / "merged"), "--merge-lora"]) == 0
    assert "need the base model" not in capsys.readouterr().out
