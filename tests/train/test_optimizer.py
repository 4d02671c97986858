"""Pins the optimizer: float32 masters that add up what bfloat16 would lose, clipping, decay, numbers that are not
finite, and a saved state that goes on bit by bit.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from peerwise.errors import RequestError
from peerwise.train import masters
from peerwise.train.masters import MasterWeights
from peerwise.train.optimizer import Optimizer


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
    assert optimizer.weights.values()["v"].tolist() == pytest.approx([0.99, 0.99], abs=1e-5)


def test_gradients_of_a_bfloat16_model_are_summed_in_float32() -> None:
    # 256 + 1 is 256 in bfloat16.
    optimizer = optimizer_of(Vector(torch.bfloat16))
    for value in (256.0, 1.0, 1.0):
        give(optimizer, {"v": torch.full((2,), value)})
    found = optimizer.weights.gradients()["v"]
    assert (found.dtype, found.tolist()) == (torch.float32, [258.0, 258.0])
    assert optimizer.weights.parameters["v"].grad is None


def test_a_float32_parameter_is_its_own_master() -> None:
    model = Vector()
    weights = MasterWeights(model)
    assert weights.values()["v"].data_ptr() == model.v.data_ptr()
    give(optimizer := optimizer_of(model), {"v": torch.tensor([1.0, 2.0])})
    give(optimizer, {"v": torch.tensor([1.0, 2.0])})
    assert model.v.grad is not None
    assert model.v.grad.tolist() == [2.0, 4.0]


def test_a_frozen_parameter_has_no_master() -> None:
    model = Vector()
    model.m.requires_grad_(False)
    assert list(MasterWeights(model).values()) == ["v"]


def test_loading_masters_sets_the_rounded_model_too() -> None:
    model = Vector(torch.bfloat16)
    weights = MasterWeights(model)
    weights.load({"v": torch.tensor([0.99, 2.0]), "m": torch.zeros(2, 2)})
    assert weights.values()["v"].tolist() == torch.tensor([0.99, 2.0]).tolist()
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
    assert torch.equal(optimizer.weights.values()["m"], other.weights.values()["m"])


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
    again.weights.load({name: value.clone() for name, value in optimizer.weights.values().items()})
    again.load_state({name: value.clone() for name, value in optimizer.state().items()})
    for each in (optimizer, again):
        for number in range(3, 6):
            give(each, gradients(number))
            each.step(1e-3)
    for name, value in optimizer.weights.values().items():
        assert torch.equal(value, again.weights.values()[name])
    assert optimizer.state().keys() == again.state().keys()
    assert all(torch.equal(value, again.state()[name]) for name, value in optimizer.state().items())


# Moments in 8 bits


class Layers(nn.Module):
    """A matrix of 16 blocks of 256 numbers, the smallest that is rounded, and one that is not."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(7)
        self.large = nn.Parameter(torch.randn(64, 64, generator=generator))
        self.small = nn.Parameter(torch.randn(63, 64, generator=generator))


def in_8_bits(model: nn.Module, **settings: Any) -> Optimizer:
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    return optimizer_of(model, moments="8-bit", **settings)


def follow(optimizer: Optimizer, steps: range, rate: float = 1e-2) -> None:
    """Gradients with a direction and noise; every third is 0, as of a batch that teaches nothing."""
    weights = optimizer.weights
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        shapes = {name: p.shape for name, p in weights.parameters.items()}
        noise = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
        give(optimizer, {name: (step % 3 != 2) * (0.5 + one) for name, one in noise.items()})
        optimizer.step(rate)


def test_moments_in_8_bits_take_a_quarter_of_the_memory() -> None:
    found = {}
    for moments in ("float32", "8-bit"):
        model = Layers()
        optimizer = optimizer_of(model, moments=moments) if moments == "float32" else in_8_bits(model)
        follow(optimizer, range(1))
        state = optimizer.state()
        found[moments] = {
            name: sum(v.nbytes for key, v in state.items() if key.startswith(f"{name}/") and not key.endswith("step"))
            for name in ("large", "small")
        }
    # 4096 numbers: twice 4 bytes each, or twice a byte each and 4 for each of 16 blocks.
    assert found["float32"] == {"large": 32_768, "small": 32_256}
    assert found["8-bit"] == {"large": 8_320, "small": 32_256}


def test_weights_under_moments_in_8_bits_stay_near_those_under_float32() -> None:
    exact, rounded = Layers(), Layers()
    start = exact.large.detach().clone()
    follow(optimizer_of(exact, weight_decay=0.1), range(20))
    follow(in_8_bits(rounded, weight_decay=0.1), range(20))
    moved = float((exact.large.detach() - start).square().mean().sqrt())
    apart = float((exact.large - rounded.large).detach().square().mean().sqrt())
    assert 0 < apart < 0.05 * moved
    assert float((exact.large - rounded.large).detach().abs().max()) < 0.5 * moved
    torch.testing.assert_close(rounded.small, exact.small, rtol=1e-5, atol=1e-6)


def test_a_saved_optimizer_with_moments_in_8_bits_goes_on_bit_by_bit() -> None:
    straight, resumed = Layers(), Layers()
    optimizer = in_8_bits(straight)
    follow(optimizer, range(3))
    again = in_8_bits(resumed)
    again.weights.load({name: value.clone() for name, value in optimizer.weights.values().items()})
    again.load_state({name: value.clone() for name, value in optimizer.state().items()})
    for each in (optimizer, again):
        follow(each, range(3, 6))
    assert torch.equal(straight.large, resumed.large)
    assert torch.equal(straight.small, resumed.small)
    assert {value.dtype for key, value in optimizer.state().items() if "large/codes" in key} == {torch.uint8}
    assert optimizer.state().keys() == again.state().keys()
    assert all(torch.equal(value, again.state()[name]) for name, value in optimizer.state().items())


@pytest.mark.parametrize("moments", ["float32", "8-bit"])
def test_weights_that_move_in_pieces_move_as_a_whole(moments: str, monkeypatch) -> None:
    found = []
    for size in (2**18, 768):  # all 4,096 numbers at once; five pieces of three blocks and one of one
        monkeypatch.setattr(masters, "_piece_size", lambda device, size=size: size)
        model = Layers()
        optimizer = optimizer_of(model) if moments == "float32" else in_8_bits(model)
        follow(optimizer, range(3))
        found.append({"large": model.large.detach(), "small": model.small.detach(), **optimizer.state()})
    whole, pieces = found
    assert whole.keys() == pieces.keys()
    assert all(torch.equal(value, pieces[name]) for name, value in whole.items())


@pytest.mark.parametrize("saved", ["float32", "8-bit"])
def test_moments_of_another_kind_are_refused(saved: str) -> None:
    kinds = [optimizer_of(Layers()), in_8_bits(Layers())]
    one, other = kinds if saved == "float32" else reversed(kinds)
    follow(one, range(1))
    with pytest.raises(KeyError, match=r"moments of .* are not"):
        other.load_state(one.state())


def test_moments_in_8_bits_without_the_library_are_refused_with_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(RequestError, match=r"8-bit' needs bitsandbytes.*pip install 'peerwise\[bitsandbytes\]'"):
        optimizer_of(Layers(), moments="8-bit")
