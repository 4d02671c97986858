"""Pins which checkpoint of a run is its best, and that it leaves the run as a plain Hugging Face folder with a card."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from peerwise.cli.main import main
from peerwise.errors import RunFolderError
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
    assert json.loads(capsys.readouterr().out)["checkpoint"].endswith("step-3")
