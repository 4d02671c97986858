"""Linear layers with weights in the layout that oneDNN multiplies fastest, for the time of a generation.

On a CPU each bfloat16 product would otherwise re-order its weight again, which at decode sizes costs about a third of
it. The packed copies live only within the block, so they can never be older than the weights they were made of.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn


@contextmanager
def packed_linears(model: nn.Module) -> Iterator[None]:
    """Within the block every plain bfloat16 CPU linear layer of the model multiplies with a packed weight.

    Inference only. Layers of other types (adapters), dtypes or devices stay as they are, and so do all of them where
    torch was built without oneDNN.
    """
    layers = [m for m in model.modules() if type(m) is nn.Linear and _packable(m.weight)]
    for layer in layers:
        weight = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), None)
        layer.forward = partial(_linear, weight, layer.bias)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def _packable(weight: Tensor) -> bool:
    on_cpu = weight.device.type == "cpu" and weight.dtype == torch.bfloat16
    return on_cpu and bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]


def _linear(weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return out
