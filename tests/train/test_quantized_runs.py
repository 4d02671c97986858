"""Pins runs beside a base in 4 bits and with moments in 8: that they learn step by step, survive a kill bit by bit,
leave as adapters or as a whole plain model, and are refused early where the library is missing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_runs import RECIPE, REWARD, assert_same_run, go_on, killed_at, rows, start
from transformers import AutoModelForCausalLM

from peerwise.errors import RequestError
from peerwise.metrics.write import RunFiles
from peerwise.models.load import load
from peerwise.models.lora import merged_state
from peerwise.recipe.load import loads
from peerwise.train.checkpoint import restore
from peerwise.train.export import export
from peerwise.train.masters import MasterWeights
from peerwise.train.session import load_policy
from tiny_models import tiny_tokenizer, tiny_wide

pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")

NF4 = ["--model.quantization", "nf4", "--model.lora-rank", "2", "--algorithm.kl-coefficient", "0.1"]
EIGHT = ["--optimizer.moments", "8-bit"]
IDS = torch.arange(5, 25).unsqueeze(0)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model that can be held in 4 bits, a reward and a recipe."""
    folder = tmp_path_factory.mktemp("wide")
    tiny_wide().save_pretrained(folder / "model")
    tiny_tokenizer().save_pretrained(folder / "model")
    (folder / "reward.py").write_text(REWARD)
    (folder / "recipe.toml").write_text(RECIPE.format(model=folder / "model", reward=folder / "reward.py"))
    return folder


@pytest.fixture(scope="module")
def rounded_run(wide: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run beside a base in 4 bits that nothing disturbed."""
    folder = tmp_path_factory.mktemp("runs") / "nf4"
    start(wide, folder, "full", *NF4)
    return folder


def logits(folder: Path) -> torch.Tensor:
    with torch.no_grad():
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(IDS).logits


def test_a_killed_run_beside_a_base_in_4_bits_ends_like_a_straight_one(
    wide: Path, rounded_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with killed_at(RunFiles, "metrics", 6, after=True, monkeypatch=monkeypatch):
        start(wide, tmp_path / "run", "full", *NF4)
    go_on(tmp_path / "run")
    assert_same_run(tmp_path / "run", rounded_run)


def test_a_killed_run_with_moments_in_8_bits_ends_like_a_straight_one(
    wide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(wide, tmp_path / "straight", "full", *EIGHT)
    with killed_at(RunFiles, "metrics", 6, after=True, monkeypatch=monkeypatch):
        start(wide, tmp_path / "run", "full", *EIGHT)
    saved = load_file(tmp_path / "run" / "checkpoints" / "step-5" / "trainer" / "optimizer.safetensors")
    assert {saved[f"model.embed_tokens.weight/codes{n}"].dtype for n in (1, 2)} == {torch.uint8}
    go_on(tmp_path / "run")
    assert_same_run(tmp_path / "run", tmp_path / "straight")


def test_the_first_step_compares_the_policy_with_itself_and_later_ones_have_moved(rounded_run: Path) -> None:
    found = [row["kl/mean"] for row in rows(rounded_run, "metrics.jsonl") if row["stage"] == "grpo"]
    assert found[0] == 0.0
    assert min(found[1:]) > 0.0


def test_a_checkpoint_is_the_plain_model_that_the_policy_computes_with(rounded_run: Path, wide: Path) -> None:
    folder = rounded_run / "checkpoints" / "step-7"
    policy = load_policy(loads((rounded_run / "recipe.toml").read_text()))
    restore(folder, policy, MasterWeights(policy.model))
    with torch.no_grad():
        expected = policy.model(input_ids=IDS).logits
    torch.testing.assert_close(logits(folder), expected, rtol=1e-4, atol=1e-4)
    # Not what it was loaded from: that was not rounded, and has no adapters.
    assert float((logits(folder) - logits(wide / "model")).abs().max()) > 0.1
    assert json.loads((folder / "config.json").read_text()) == json.loads((wide / "model" / "config.json").read_text())
    assert load(str(folder), dtype="float32").model.state_dict().keys() == merged_state(policy.model).keys()


def test_adapters_leave_for_the_base_and_merged_they_are_the_checkpoint(rounded_run: Path, tmp_path: Path) -> None:
    export(rounded_run, tmp_path / "adapters")
    assert "in 4 bits (`nf4`)" in (tmp_path / "adapters" / "README.md").read_text()
    assert json.loads((tmp_path / "adapters" / "adapter_config.json").read_text())["r"] == 2
    source = export(rounded_run, tmp_path / "merged", merge_lora=True)
    assert torch.equal(logits(tmp_path / "merged"), logits(source))
    assert "quantization_config" not in json.loads((tmp_path / "merged" / "config.json").read_text())


@pytest.mark.parametrize(("words", "setting"), [(NF4, "model.quantization"), (EIGHT, "optimizer.moments")])
def test_a_run_without_the_library_is_refused_before_anything_is_written(
    wide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], setting: str
) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(RequestError, match=f"{setting} = .* needs bitsandbytes"):
        start(wide, tmp_path / "run", "full", *words)
    assert not (tmp_path / "run").exists()
