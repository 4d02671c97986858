"""Float32 master weights of a model that may compute in bfloat16, and the float32 sums of its gradients.

At a rate of 1e-5 most updates are smaller than bfloat16 can tell apart from nothing, so a bfloat16 parameter is only
the rounded upper half of its master's 32 bits. The other half is kept beside it in 16 bits: a master so takes two
bytes, not four, and nothing is lost. A float32 parameter is its own master. Knows no optimizer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

HALF = 0x8000
"""Of the last place of the upper 16 bits."""


class MasterWeights:
    """The trainable parameters of a model by name, each with a float32 value and the sum of its gradients."""

    def __init__(self, model: nn.Module) -> None:
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._rests = {
            name: torch.zeros_like(p, dtype=torch.int16)
            for name, p in self.parameters.items()
            if p.dtype == torch.bfloat16
        }
        self._sums: dict[str, Tensor] = {}

    @torch.no_grad()
    def values(self) -> dict[str, Tensor]:
        """Masters by name: the parameter itself where that is float32, else a new float32 tensor."""
        return {
            name: joined(p, self._rests[name]) if name in self._rests else p.detach()
            for name, p in self.parameters.items()
        }

    @torch.no_grad()
    def load(self, values: dict[str, Tensor]) -> None:
        """Set masters, and with them the model, from float32 values by name."""
        for name, p in self.parameters.items():
            if name in self._rests:
                split(values[name].to(p.device, torch.float32), p, self._rests[name])
            else:
                p.copy_(values[name])

    @torch.no_grad()
    def pieces(self, name: str) -> Iterator[tuple[slice, Tensor]]:
        """A master piece by piece: its place in the flat parameter, and its float32 numbers, to be changed in place.

        What was changed is the parameter's when the next piece is asked for.
        """
        flat = self.parameters[name].detach().view(-1)
        size = _piece_size(flat.device)
        for start in range(0, len(flat), size):
            place = slice(start, min(len(flat), start + size))
            if name not in self._rests:
                yield place, flat[place]
                continue
            rest = self._rests[name].view(-1)[place]
            values = joined(flat[place], rest)
            yield place, values
            split(values, flat[place], rest)

    def gradients(self) -> dict[str, Tensor]:
        """The sums so far by name, float32; zeros for a parameter that nothing has reached."""
        self._make_room()
        return {name: self._sums[name] if name in self._rests else _grad(p) for name, p in self.parameters.items()}

    def forget_gradients(self) -> None:
        """Give the sums up."""
        self._sums.clear()
        for p in self.parameters.values():
            p.grad = None

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """A block for one gradient: what backward finds in it is added at once to the float32 sums.

        So the gradients of a bfloat16 model never exist all at once beside their sums. These are one piece of memory,
        taken before the activations come: taken as these go, they would lie scattered among the holes, and the next
        activations would find no room there.
        """
        self._make_room()
        hooks = [
            self.parameters[name].register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                partial(_move_gradient, self._sums[name])
            )
            for name in self._rests
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _make_room(self) -> None:
        missing = {
            name: p
            for name, p in self.parameters.items()
            if (name not in self._sums if name in self._rests else p.grad is None)
        }
        if not missing:
            return
        sizes = [p.numel() for p in missing.values()]
        room = torch.zeros(sum(sizes), device=next(iter(missing.values())).device)
        for (name, p), piece in zip(missing.items(), torch.split(room, sizes), strict=True):
            if name in self._rests:
                self._sums[name] = piece.view_as(p)
            else:
                p.grad = piece.view_as(p)


def joined(upper: Tensor, rest: Tensor) -> Tensor:
    """Float32 numbers from their bfloat16 rounding and the `rest` of `split`; all of one shape."""
    bits = upper.detach().view(torch.int16).to(torch.int32).bitwise_left_shift_(16)
    return bits.add_(rest).view(torch.float32)


def split(values: Tensor, upper: Tensor, rest: Tensor) -> None:
    """Write float32 numbers as bfloat16 and an int16 rest of their bits, without loss; all of one shape.

    A number halfway between two bfloat16 goes away from zero, where torch goes to the even one: only so all rests fit.
    """
    bits = values.view(torch.int32)
    high = (bits + HALF).bitwise_right_shift_(16)
    upper.detach().view(torch.int16).copy_(high)
    rest.copy_(bits - high.bitwise_left_shift_(16))


def _piece_size(device: torch.device) -> int:
    """Numbers: on a CPU what stays in its cache from one operation to the next; a multiple of 256."""
    return 2**18 if device.type == "cpu" else 2**26


def _grad(p: Tensor) -> Tensor:
    assert p.grad is not None
    return p.grad


def _move_gradient(total: Tensor, p: Tensor) -> None:
    total += _grad(p)
    p.grad = None
