"""Linear layers with weights in the layout that is multiplied fastest, for the time of a generation.

On a CPU each product would otherwise re-order its weight again, which at decode sizes costs a good part of it.
Inference only: a packed weight is a copy, and is thrown away before the weights it was made of change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from peerwise.kernels import LANES, product_kernels


class Product:
    """Linear layers that read the same input, as one product: [..., in] -> [..., the layers' outputs in order].

    All or none of the layers have a bias. With `gated` the first gives gates for the second: silu(first) * second.
    """

    def __init__(self, *layers: nn.Linear, gated: bool = False) -> None:
        weights, biases = [m.weight.detach() for m in layers], [m.bias for m in layers if m.bias is not None]
        self.bias = _joined(biases) if biases else None
        self.columns, self.gated = sum(map(len, weights)), gated
        self.kernels = product_kernels(*weights)
        if gated and (biases or any(len(weight) % (2 * LANES) for weight in weights)):
            self.kernels = None
        self.packed = self.kernels is None and packable(layers[0])
        if self.kernels is not None:
            self.weight = self.kernels.packed(weights, gated=gated)
        elif self.packed:
            self.weight = torch.ops.mkldnn._reorder_linear_weight(_joined(weights), None)
        else:
            self.weight = _joined(weights)

    def __call__(self, x: Tensor, added: Tensor | None = None) -> Tensor:
        """`added`, of the result's shape, is added to it."""
        if self.kernels is not None:
            rows = x.reshape(-1, x.shape[-1]).contiguous()
            more = None if added is None else added.reshape(-1, self.columns).contiguous()
            found = self.kernels.product(rows, self.weight, self.columns, bias=self.bias, added=more, gated=self.gated)
            return found.view(*x.shape[:-1], -1)
        out: Tensor
        if self.packed:
            out = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        else:
            out = nn.functional.linear(x, self.weight, self.bias)
        if self.gated:
            gates, values = out.chunk(2, dim=-1)
            out = silu(gates) * values
        return out if added is None else added + out


@contextmanager
def packed_linears(module: nn.Module) -> Iterator[None]:
    """Within the block every plain linear layer in the module that is packable multiplies with a packed weight.

    Layers of other types (adapters), dtypes or devices stay as they are, and so do all of them where torch was built
    without oneDNN.
    """
    layers = [m for m in module.modules() if type(m) is nn.Linear and packable(m)]
    for layer in layers:
        layer.forward = Product(layer)  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def packable(layer: nn.Linear) -> bool:
    """Whether a layout of the weight's own is multiplied faster: bfloat16 on a CPU, and float32 where there is AVX-512,
    which the library that torch multiplies plain float32 with does not use on every processor that has it.
    """
    if not layer.weight.is_cpu or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    dtype = layer.weight.dtype
    return dtype == torch.bfloat16 or (dtype == torch.float32 and torch.cpu._is_avx512_supported())


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))
