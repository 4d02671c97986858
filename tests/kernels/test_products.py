"""Pins the compiled product to float64 arithmetic, with all it may do to its sums, and what is left to torch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import silu

from peerwise.kernels import kernels_for
from peerwise.models.fused import fused_blocks
from peerwise.models.packed import Product

pytestmark = pytest.mark.skipif(
    kernels_for(torch.zeros(1, dtype=torch.bfloat16), 32) is None,
    reason="no C compiler, or a processor without AVX-512 BF16",
)
ROUNDING = 2**-8


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def _layer(columns: int, size: int, *, bias: bool = False, seed: int = 1) -> nn.Linear:
    layer = nn.Linear(size, columns, bias=bias).bfloat16()
    for p, s in zip(layer.parameters(), (seed, seed + 1), strict=False):
        p.data.copy_(_random(*p.shape, seed=s))
    return layer


def _exact(layer: nn.Linear, x: Tensor) -> Tensor:
    bias = 0.0 if layer.bias is None else layer.bias.detach().double()
    return x.double() @ layer.weight.detach().double().T + bias


def _assert_close(found: Tensor, exact: Tensor, size: int) -> None:
    # One rounding of the result, and float32 sums of `size` products of about 1.
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), exact, rtol=ROUNDING, atol=1e-6 * size)


@settings(deadline=None, max_examples=40)
@given(
    rows=st.sampled_from([1, 2, 5, 6, 7, 13, 64, 253, 510]),
    columns=st.sampled_from([16, 48, 64, 80, 272]),
    size=st.sampled_from([32, 96, 576]),
    bias=st.booleans(),
)
def test_a_product_is_that_of_the_definition(rows, columns, size, bias):
    layer, x = _layer(columns, size, bias=bias), _random(rows, size)
    product = Product(layer)
    assert product.kernels is not None
    _assert_close(product(x), _exact(layer, x), size)


@pytest.mark.parametrize("size", [2048, 2080, 4128])
def test_inputs_too_many_for_one_piece_of_a_panel_are_summed_over_all_pieces(size):
    layer, x = _layer(80, size, bias=True), _random(13, size)
    _assert_close(Product(layer)(x), _exact(layer, x), size)


def test_what_is_added_is_added_to_the_rounded_product():
    layer, x, added = _layer(80, 96), _random(9, 96), _random(9, 80, seed=5)
    product = Product(layer)
    assert torch.equal(product(x, added=added), product(x) + added)


def test_gates_open_the_values_that_stand_beside_them():
    gate, up, x = _layer(96, 64), _layer(96, 64, seed=7), _random(7, 64) * 0.2
    product = Product(gate, up, gated=True)
    assert product.kernels is not None
    exact = silu(_exact(gate, x)) * _exact(up, x)
    torch.testing.assert_close(product(x).double(), exact, rtol=4 * ROUNDING, atol=4 * ROUNDING * float(exact.std()))


def test_layers_that_read_the_same_stand_side_by_side_with_their_biases():
    layers, x = [_layer(n, 64, bias=True, seed=n) for n in (96, 16, 32)], _random(5, 64)
    product = Product(*layers)
    assert product.kernels is not None
    _assert_close(product(x), torch.cat([_exact(layer, x) for layer in layers], 1), 64)


def test_a_row_is_the_same_whatever_rows_stand_beside_it():
    product, x = Product(_layer(208, 2080)), _random(300, 2080)
    whole = product(x)
    for rows in (slice(0, 1), slice(3, 10), slice(17, 200), slice(299, 300)):
        assert torch.equal(product(x[rows]), whole[rows])


@pytest.mark.parametrize("columns", [32, 64, 160])
def test_a_weight_packed_turned_multiplies_from_the_right(columns):
    kernels, weight, x = kernels_for(_random(1), 96), _random(96, columns), _random(7, 96, seed=3)
    packed = kernels.packed_turned(weight)
    assert torch.equal(packed, kernels.packed([weight.T])) or columns % 64  # what a last panel has too many is not set
    found = kernels.product(x, packed, columns, bias=None, added=None, gated=False)
    _assert_close(found, x.double() @ weight.double(), 96)


@pytest.mark.parametrize("bias", [False, True])
def test_a_linear_layer_in_training_has_the_gradients_of_the_definition(bias):
    layer, x, grad = _layer(96, 64, bias=bias), _random(2, 9, 64).requires_grad_(), _random(2, 9, 96, seed=8)
    with fused_blocks(layer):
        assert "forward" in vars(layer)
        out = layer(x)
        out.backward(grad)
    _assert_close(out.detach(), _exact(layer, x.detach()), 64)
    rows, grads = (t.detach().double().flatten(0, 1) for t in (x, grad))
    _assert_close(x.grad.flatten(0, 1), grads @ layer.weight.detach().double(), 96)
    _assert_close(layer.weight.grad, grads.T @ rows, 64)
    if bias:
        _assert_close(layer.bias.grad, grads.sum(0), 64)


def test_a_frozen_linear_layer_keeps_no_input():
    layer, kept = _layer(96, 64), []
    layer.weight.requires_grad_(False)
    x = _random(7, 64).requires_grad_()
    pack = lambda saved: (kept.append(saved.shape), saved)[1]  # noqa: E731
    with fused_blocks(layer), torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        layer(x).backward(_random(7, 96, seed=3))
    assert kept == [layer.weight.shape]
    assert x.grad is not None


@pytest.mark.parametrize("layer", [_layer(40, 64), _layer(64, 24)], ids=["columns not by 16", "inputs not by 32"])
def test_other_sizes_are_left_to_torch(layer):
    x = _random(4, layer.in_features)
    product = Product(layer)
    assert product.kernels is None
    _assert_close(product(x), _exact(layer, x), layer.in_features)


def test_gates_with_biases_are_left_to_torch():
    gate, up, x = _layer(32, 64, bias=True), _layer(32, 64, bias=True, seed=9), _random(3, 64) * 0.2
    product = Product(gate, up, gated=True)
    assert product.kernels is None
    exact = silu(_exact(gate, x)) * _exact(up, x)
    torch.testing.assert_close(product(x).double(), exact, rtol=4 * ROUNDING, atol=4 * ROUNDING * float(exact.std()))
