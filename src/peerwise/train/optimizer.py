"""AdamW on float32 master weights, whatever the model computes in.

At a rate of 1e-5 most updates are smaller than bfloat16 can tell apart from nothing, so a bfloat16 model keeps a
float32 copy that the optimizer moves; the model gets the rounded value. Gradients of micro-batches are summed in
float32 as well. A float32 parameter is its own master.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from peerwise.metrics.value import Metrics
from peerwise.models.quantized import bitsandbytes
from peerwise.recipe.schema import Optimizer as Settings


class MasterWeights:
    """The trainable parameters of a model by name, each with a float32 master that the optimizer owns."""

    def __init__(self, model: nn.Module) -> None:
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.masters = {
            name: p if p.dtype == torch.float32 else nn.Parameter(p.detach().float())
            for name, p in self.parameters.items()
        }

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """A block for one gradient: what backward finds in it goes onto the masters at once, added up in float32.

        So the gradients of a bfloat16 model never exist all at once beside their float32 sums. These are one piece of
        memory, taken before the activations come: taken as these go, they would lie scattered among the holes, and the
        next activations would find no room there.
        """
        pairs = [(p, self.masters[name]) for name, p in self.parameters.items()]
        apart = [(p, master) for p, master in pairs if p is not master]
        self._make_room()
        hooks = [
            p.register_post_accumulate_grad_hook(partial(_move_gradient, master))  # type: ignore[no-untyped-call]
            for p, master in apart
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _make_room(self) -> None:
        missing = [master for master in self.masters.values() if master.grad is None]
        if missing:
            room = torch.zeros(sum(master.numel() for master in missing), device=missing[0].device)
            for master, piece in zip(missing, torch.split(room, [m.numel() for m in missing]), strict=True):
                master.grad = piece.view_as(master)

    @torch.no_grad()
    def publish(self) -> None:
        """Give the model the masters' values, rounded to its dtype."""
        for name, p in self.parameters.items():
            if self.masters[name] is not p:
                p.copy_(self.masters[name])

    @torch.no_grad()
    def load(self, values: dict[str, Tensor]) -> None:
        """Set masters and model from float32 values by name."""
        for name, master in self.masters.items():
            master.copy_(values[name])
        self.publish()


def _move_gradient(master: Tensor, p: Tensor) -> None:
    assert p.grad is not None
    if master.grad is None:
        master.grad = p.grad.float()
    else:
        master.grad += p.grad
    p.grad = None


LEVELS = {"qmap1": "dynamic", "qmap2": "udynamic"}
"""What the 256 values of an 8-bit moment stand for: the same for all parameters, so they are not saved. Key in the
state of bitsandbytes, and the name it has for the levels."""


class Optimizer:
    """AdamW over the masters, with clipping by global norm. Weight decay is for matrices only.

    Args:
        moments: "float32", or "8-bit" for those of bitsandbytes (https://arxiv.org/abs/2110.02861).
    """

    def __init__(
        self,
        weights: MasterWeights,
        *,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        max_norm: float,
        moments: str = "float32",
    ) -> None:
        self.weights, self.max_norm = weights, max_norm
        self.names = list(weights.masters)
        masters = list(weights.masters.values())
        groups = [
            {"params": [p for p in masters if p.dim() >= 2], "weight_decay": weight_decay},
            {"params": [p for p in masters if p.dim() < 2], "weight_decay": 0.0},
        ]
        self.moments = moments
        self.adam = _adamw(moments, [g for g in groups if g["params"]], lr=0.0, betas=betas, eps=eps)

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for p in (*self.weights.masters.values(), *self.weights.parameters.values()):
            p.grad = None

    def step(self, learning_rate: float) -> float:
        """Clip, move the masters, publish. Returns the gradient's norm before clipping.

        A norm that is not finite moves nothing: the caller sees it in the returned value.
        """
        # A parameter that no token reached still takes part: its moments must decay as in any other step.
        for master in self.weights.masters.values():
            if master.grad is None:
                master.grad = torch.zeros_like(master)
        norm = torch.nn.utils.clip_grad_norm_(list(self.weights.masters.values()), self.max_norm)
        if torch.isfinite(norm):
            for group in self.adam.param_groups:
                group["lr"] = learning_rate
            self.adam.step()
            self.weights.publish()
        self.zero_grad()
        return float(norm)

    def state(self) -> dict[str, Tensor]:
        """Moments and step counts by parameter name, for a checkpoint."""
        return {
            f"{name}/{key}": torch.as_tensor(value)
            for name in self.names
            for key, value in self.adam.state.get(self.weights.masters[name], {}).items()
            if key not in LEVELS
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Undo `state`. An empty state is that of an optimizer that has not moved yet.

        Raises:
            KeyError: the state lacks a parameter, or is one of other moments.
        """
        for name in self.names:
            prefix = f"{name}/"
            found = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
            if state and not found:
                raise KeyError(f"no moments for {name}")
            if found:
                self.adam.state[self.weights.masters[name]] = self._kept(found)

    def _kept(self, saved: dict[str, Tensor]) -> dict[str, Any]:
        """One parameter's saved state, as its optimizer keeps it."""
        if ("state1" in saved) != (self.moments == "8-bit"):
            raise KeyError(f"moments that are not {self.moments}")
        if self.moments == "float32":
            return dict(saved)
        kept = saved | {"step": int(saved["step"])}
        for key, levels in LEVELS.items() if "absmax1" in saved else ():
            kept[key] = self.adam.name2qmap[levels].to(saved["state1"].device)
        return kept


def make_optimizer(weights: MasterWeights, settings: Settings) -> Optimizer:
    """AdamW as a stage asks for it, with fresh moments."""
    return Optimizer(
        weights,
        betas=(settings.beta1, settings.beta2),
        eps=settings.eps,
        weight_decay=settings.weight_decay,
        max_norm=settings.max_grad_norm,
        moments=settings.moments,
    )


def _adamw(moments: str, groups: list[dict[str, Any]], **options: Any) -> Any:
    if moments == "8-bit":
        return bitsandbytes("optimizer.moments = '8-bit'").optim.AdamW8bit(groups, **options)
    return torch.optim.AdamW(groups, fused=True, **options)


def move(metrics: Metrics, optimizer: Optimizer, learning_rate: float) -> None:
    """One optimizer update; one that is left out because its gradient is not finite is counted."""
    norm = optimizer.step(learning_rate)
    metrics.add("grad_norm", norm)
    if not math.isfinite(norm):
        metrics.add("skipped/steps", 1)
