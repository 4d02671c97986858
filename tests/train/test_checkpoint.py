"""Pins what a checkpoint holds where that is easy to get wrong: tied weights in bfloat16, adapters folded in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM

from peerwise.models.lora import add_lora
from peerwise.train.checkpoint import State, checkpoints, restore, save
from peerwise.train.masters import MasterWeights
from peerwise.train.optimizer import Optimizer

STATE = State(stage="grpo", step=1, stage_steps=2, global_step=1, position=4)


def moved(policy: Any) -> tuple[MasterWeights, Optimizer]:
    """Masters that have moved by less than bfloat16 can tell, with the optimizer's moments."""
    weights = MasterWeights(policy.model)
    optimizer = Optimizer(weights, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.0, max_norm=1.0)
    with weights.collecting():
        for p in weights.parameters.values():
            p.backward(torch.ones_like(p))
    optimizer.step(1e-6)
    return weights, optimizer


def test_a_tied_bfloat16_model_is_saved_once_in_float32_and_loads_tied(
    tiny_policy: Callable[[str], Any], tmp_path: Path
) -> None:
    policy = tiny_policy("gemma")
    policy.model.to(torch.bfloat16)
    assert policy.model.get_output_embeddings().weight is policy.model.get_input_embeddings().weight
    weights, optimizer = moved(policy)
    folder = save(tmp_path, STATE, policy, weights, optimizer)
    with safe_open(folder / "model.safetensors", "pt") as file:
        assert "lm_head.weight" not in file.keys()  # noqa: SIM118
        assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.float32}  # noqa: SIM118
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    assert loaded.dtype == torch.float32
    assert loaded.get_output_embeddings().weight is loaded.get_input_embeddings().weight
    for name, p in loaded.named_parameters():
        assert torch.equal(p, weights.values()[name]), name


def test_restoring_gives_masters_moments_and_model_back(tiny_policy: Callable[[str], Any], tmp_path: Path) -> None:
    policy = tiny_policy("gemma")
    policy.model.to(torch.bfloat16)
    weights, optimizer = moved(policy)
    save(tmp_path, STATE, policy, weights, optimizer)
    other = tiny_policy("gemma")
    other.model.to(torch.bfloat16)
    other_weights = MasterWeights(other.model)
    other_optimizer = Optimizer(other_weights, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.0, max_norm=1.0)
    ((folder, state),) = checkpoints(tmp_path)
    restore(folder, other, other_weights, other_optimizer)
    assert state == STATE
    found = other_weights.values()
    assert all(torch.equal(found[name], p) for name, p in weights.values().items())
    assert all(torch.equal(p, q) for p, q in zip(policy.model.parameters(), other.model.parameters(), strict=True))
    before, after = optimizer.state(), other_optimizer.state()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_adapters_are_folded_in_without_rounding(tiny_policy: Callable[[str], Any], tmp_path: Path) -> None:
    policy = tiny_policy("llama")
    policy.model.to(torch.bfloat16)
    plain = {name: p.detach().clone() for name, p in policy.model.named_parameters()}
    add_lora(policy.model, rank=2, alpha=None, seed=0)
    weights, optimizer = moved(policy)
    folder = save(tmp_path, STATE, policy, weights, optimizer)
    loaded = dict(AutoModelForCausalLM.from_pretrained(folder).named_parameters())
    changed = [name for name, p in loaded.items() if not torch.equal(p, plain[name].float())]
    assert changed
    for name in changed:
        # W + (alpha / rank) B A with alpha = 2 rank, from the adapters' own masters.
        adapter = name.removesuffix(".weight")
        a, b = (weights.values()[f"{adapter}.lora_{half}.default.weight"] for half in "AB")
        torch.testing.assert_close(loaded[name], plain[name].float() + 2 * b @ a, rtol=0, atol=1e-7)
