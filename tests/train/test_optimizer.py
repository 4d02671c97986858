"""Pins the optimizer: float32 masters that add up what bfloat16 would lose, clipping, decay, numbers that are not
finite, and a saved state that goes on bit by bit.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from peerwise.train.optimizer import MasterWeights, Optimizer


class Vector(nn.Module):
    """Two numbers and a matrix, to follow by hand."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.v = nn.Parameter(torch.ones(2, dtype=dtype))
        self.m = nn.Parameter(torch.ones(2, 2, dtype=dtype))


def optimizer_of(model: nn.Module, **settings: Any) -> Optimizer:
    defaults: dict[str, Any] = {"betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.0, "max_norm": 1e9}
    return Optimizer(MasterWeights(model), **(defaults | settings))


def give(optimizer: Optimizer, gradients: dict[str, Tensor]) -> None:
    """By a backward pass whose gradients these are."""
    weights = optimizer.weights
    with weights.collecting():
        for name, gradient in gradients.items():
            weights.parameters[name].backward(gradient.to(weights.parameters[name].dtype))


def test_moves_smaller_than_bfloat16_can_tell_add_up_in_the_master() -> None:
    # A constant gradient makes Adam move by the rate, 0.001. Below 1 a bfloat16 has steps of 1/256 = 0.0039, so a
    # single move rounds away; ten make 0.99, whose nearest bfloat16 is 253/256 = 0.98828125.
    model = Vector(torch.bfloat16)
    optimizer = optimizer_of(model)
    seen = []
    for _ in range(10):
        give(optimizer, {"v": torch.ones(2)})
        optimizer.step(1e-3)
        seen.append(model.v[0].item())
    assert seen[0] == 1.0
    assert seen[-1] == 253 / 256
    assert optimizer.weights.masters["v"].tolist() == pytest.approx([0.99, 0.99], abs=1e-5)


def test_gradients_of_a_bfloat16_model_are_summed_in_float32() -> None:
    # 256 + 1 is 256 in bfloat16.
    optimizer = optimizer_of(Vector(torch.bfloat16))
    for value in (256.0, 1.0, 1.0):
        give(optimizer, {"v": torch.full((2,), value)})
    master = optimizer.weights.masters["v"]
    assert master.grad is not None
    assert (master.dtype, master.grad.tolist()) == (torch.float32, [258.0, 258.0])
    assert optimizer.weights.parameters["v"].grad is None


def test_a_float32_parameter_is_its_own_master() -> None:
    model = Vector()
    weights = MasterWeights(model)
    assert weights.masters["v"] is model.v
    give(optimizer := optimizer_of(model), {"v": torch.tensor([1.0, 2.0])})
    give(optimizer, {"v": torch.tensor([1.0, 2.0])})
    assert model.v.grad is not None
    assert model.v.grad.tolist() == [2.0, 4.0]


def test_a_frozen_parameter_has_no_master() -> None:
    model = Vector()
    model.m.requires_grad_(False)
    assert list(MasterWeights(model).masters) == ["v"]


def test_loading_masters_sets_the_rounded_model_too() -> None:
    model = Vector(torch.bfloat16)
    weights = MasterWeights(model)
    weights.load({"v": torch.tensor([0.99, 2.0]), "m": torch.zeros(2, 2)})
    assert weights.masters["v"].tolist() == pytest.approx([0.99, 2.0])
    assert model.v.tolist() == [253 / 256, 2.0]


# The optimizer


def test_the_norm_is_that_before_clipping_and_the_move_that_after() -> None:
    # Gradient (3, 4): norm 5, clipped to 1 it is (0.6, 0.8). With eps = 1 Adam's first move is
    # rate * g / (|g| + 1): 0.6 / 1.6 = 0.375 and 0.8 / 1.8 = 0.444444, times 0.1.
    model = Vector()
    optimizer = optimizer_of(model, eps=1.0, max_norm=1.0)
    give(optimizer, {"v": torch.tensor([3.0, 4.0])})
    assert optimizer.step(0.1) == pytest.approx(5.0)
    assert model.v.tolist() == pytest.approx([1 - 0.0375, 1 - 0.0444444], abs=1e-5)
    assert model.v.grad is None


def test_weight_decay_shrinks_matrices_only() -> None:
    # 1 - 0.1 * 0.5 = 0.95
    model = Vector()
    optimizer_of(model, weight_decay=0.5).step(0.1)
    assert model.m.tolist() == [[pytest.approx(0.95)] * 2] * 2
    assert model.v.tolist() == [1.0, 1.0]


def test_a_parameter_without_gradient_is_treated_as_one_with_gradient_zero() -> None:
    found = []
    for second in ({}, {"v": torch.zeros(2)}):
        model = Vector()
        optimizer = optimizer_of(model)
        give(optimizer, {"v": torch.ones(2), "m": torch.ones(2, 2)})
        optimizer.step(0.1)
        give(optimizer, {"m": torch.ones(2, 2), **second})
        optimizer.step(0.1)
        found.append(model.v.detach())
    assert torch.equal(found[0], found[1])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gradient_that_is_not_finite_moves_nothing_and_is_forgotten(bad: float, dtype: torch.dtype) -> None:
    model, healthy = Vector(dtype), Vector(dtype)
    optimizer, other = optimizer_of(model), optimizer_of(healthy)
    for each in (optimizer, other):
        give(each, {"v": torch.ones(2), "m": torch.ones(2, 2)})
        each.step(0.1)
    give(optimizer, {"v": torch.tensor([1.0, bad]), "m": torch.ones(2, 2)})
    assert not math.isfinite(optimizer.step(0.1))
    assert torch.equal(model.v, healthy.v)
    # Nor do moments and step count remember it: the next step is the same as without.
    for each in (optimizer, other):
        give(each, {"v": torch.full((2,), -0.5), "m": torch.ones(2, 2)})
        each.step(0.1)
    assert torch.equal(model.v, healthy.v)
    assert torch.equal(optimizer.weights.masters["m"], other.weights.masters["m"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_saved_optimizer_goes_on_bit_by_bit(dtype: torch.dtype) -> None:
    def gradients(number: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(number)
        return {"v": torch.randn(2, generator=generator), "m": torch.randn(2, 2, generator=generator)}

    straight, resumed = Vector(dtype), Vector(dtype)
    optimizer = optimizer_of(straight)
    for number in range(3):
        give(optimizer, gradients(number))
        optimizer.step(1e-3)
    again = optimizer_of(resumed)
    again.weights.load({name: p.detach().clone() for name, p in optimizer.weights.masters.items()})
    again.load_state({name: value.clone() for name, value in optimizer.state().items()})
    for each in (optimizer, again):
        for number in range(3, 6):
            give(each, gradients(number))
            each.step(1e-3)
    for name, master in optimizer.weights.masters.items():
        assert torch.equal(master, again.weights.masters[name])
    assert optimizer.state().keys() == again.state().keys()
    assert all(torch.equal(value, again.state()[name]) for name, value in optimizer.state().items())
