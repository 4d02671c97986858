"""Pins the fused norms and MLPs to the modules they stand for: values, gradients, adapters, nesting, what they keep."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from peerwise.models.fused import fused_blocks
from peerwise.models.lora import add_lora

Build = Callable[[str], PreTrainedModel]
FUSED = ["llama", "qwen2", "qwen3", "mistral"]
IDS = torch.tensor([[1, 5, 6, 7, 8, 9, 10]])


def loss_and_gradients(model: PreTrainedModel) -> tuple[Tensor, dict[str, Tensor]]:
    loss = model(input_ids=IDS, use_cache=False).logits.square().mean()
    loss.backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return loss.detach(), found


def assert_same(model: PreTrainedModel) -> None:
    expected, expected_gradients = loss_and_gradients(model)
    with fused_blocks(model):
        loss, gradients = loss_and_gradients(model)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    assert gradients.keys() == expected_gradients.keys()
    largest = max(float(g.abs().max()) for g in expected_gradients.values())
    for name, gradient in expected_gradients.items():
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-4, atol=1e-5 * largest)


@pytest.mark.parametrize("name", FUSED)
def test_fused_blocks_have_the_values_and_gradients_of_the_models_own(tiny: Build, name: str) -> None:
    assert_same(tiny(name))


def test_adapters_inside_a_fused_block_are_trained_alike(tiny: Build) -> None:
    model = tiny("llama")
    add_lora(model, rank=2, alpha=None, seed=0)
    for name, p in model.named_parameters():
        if "lora_B" in name:
            p.data += 0.1
    assert_same(model)


@pytest.mark.parametrize("name", FUSED)
def test_known_modules_are_replaced_within_the_block_and_only_there(tiny: Build, name: str) -> None:
    model = tiny(name)
    expected = [n for n, m in model.named_modules() if type(m).__name__.endswith(("RMSNorm", "MLP"))]

    def replaced() -> list[str]:
        return [n for n, m in model.named_modules() if "forward" in vars(m)]

    with fused_blocks(model):
        assert replaced() == expected
        with fused_blocks(model):
            assert replaced() == expected
        assert replaced() == expected
    assert not replaced()


def test_a_model_that_is_not_known_is_left_alone(tiny: Build) -> None:
    model = tiny("gemma2")
    with fused_blocks(model):
        assert not [n for n, m in model.named_modules() if "forward" in vars(m)]


def test_an_mlp_keeps_its_gate_and_up_and_no_product(tiny: Build) -> None:
    model = tiny("llama")
    mlp, x = model.model.layers[0].mlp, torch.randn(1, 7, 32, requires_grad=True)

    def kept() -> int:
        sizes: dict[int, int] = {}

        def keep(tensor: Tensor) -> Tensor:
            sizes[tensor.data_ptr()] = tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            mlp(x)
        weights = {p.data_ptr() for p in mlp.parameters()}
        return sum(size for at, size in sizes.items() if at not in weights)

    # 7 tokens: the input of 32, and 48 each of gate and up; unfused also silu(gate) and the product.
    assert kept() == 7 * (32 + 4 * 48)
    with fused_blocks(model):
        assert kept() == 7 * (32 + 2 * 48)
