"""Activations in main memory between the forward and the backward pass, for GPUs that cannot hold them.

Knows tensors that autograd saves; what they are, it does not know.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

SMALLEST = 2**14
"""Numbers a tensor must have to be worth the way."""

Kept = Tensor | tuple[torch.device, Tensor]


@contextmanager
def offloaded_activations(model: nn.Module) -> Iterator[None]:
    """What autograd saves within the block waits in main memory; the weights stay where they are.

    On a GPU the copies are pinned. On a CPU there is nowhere else to go: the block then only costs copies.
    """
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def pack(tensor: Tensor) -> Kept:
        if tensor.numel() < SMALLEST or tensor.untyped_storage().data_ptr() in weights:
            return tensor
        place = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        return tensor.device, place.copy_(tensor, non_blocking=tensor.is_cuda)

    def unpack(kept: Kept) -> Tensor:
        return kept if isinstance(kept, Tensor) else kept[1].to(kept[0], non_blocking=True)

    with saved_tensors_hooks(pack, unpack):
        yield
