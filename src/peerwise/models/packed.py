"""Linear layers with weights in the layout that oneDNN multiplies fastest, for the time of a generation.

On a CPU each bfloat16 product would otherwise re-order its weight again, which at decode sizes costs about a third of
it. Inference only: a packed weight is a copy, and is thrown away before the weights it was made of change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Product:
    """Linear layers that read the same input, as one product: [..., in] -> [..., the layers' outputs in order].

    All or none of the layers have a bias.
    """

    def __init__(self, *layers: nn.Linear) -> None:
        weight, biases = _joined([m.weight.detach() for m in layers]), [m.bias for m in layers if m.bias is not None]
        self.bias = _joined(biases) if biases else None
        self.packed = packable(layers[0])
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, None) if self.packed else weight

    def __call__(self, x: Tensor) -> Tensor:
        if not self.packed:
            return nn.functional.linear(x, self.weight, self.bias)
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return out


@contextmanager
def packed_linears(module: nn.Module) -> Iterator[None]:
    """Within the block every plain bfloat16 CPU linear layer in the module multiplies with a packed weight.

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
    """Whether oneDNN has a layout of its own for the layer's weight."""
    on_cpu = layer.weight.is_cpu and layer.weight.dtype == torch.bfloat16
    return on_cpu and bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))
