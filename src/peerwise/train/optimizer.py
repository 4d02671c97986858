"""One update of all trainable weights: AdamW over float32 masters, gradients clipped by their global norm.

What a master is made of is known to `masters`, what a moment is to `moments`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from peerwise.metrics.value import Metrics
from peerwise.recipe.schema import Optimizer as Settings
from peerwise.train.masters import MasterWeights
from peerwise.train.moments import Kind, Moments, Rule


class Optimizer:
    """AdamW over the masters, with clipping by global norm. Weight decay is for matrices only.

    Args:
        moments: "float32", or "8-bit" for those of https://arxiv.org/abs/2110.02861.
    Raises:
        RequestError: moments in 8 bits without bitsandbytes.
    """

    def __init__(
        self,
        weights: MasterWeights,
        *,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        max_norm: float,
        moments: Kind = "float32",
    ) -> None:
        self.weights, self.max_norm = weights, max_norm
        self.betas, self.eps, self.weight_decay = betas, eps, weight_decay
        self.moments = Moments(moments)
        self.steps = 0

    def zero_grad(self) -> None:
        """Forget all gradients."""
        self.weights.forget_gradients()

    @torch.no_grad()
    def step(self, learning_rate: float) -> float:
        """Clip, and move masters and model. Returns the gradient's norm before clipping.

        A norm that is not finite moves nothing: the caller sees it in the returned value.
        """
        # A parameter that no token reached still takes part: its moments must decay as in any other step.
        gradients = self.weights.gradients()
        norm = float(torch.nn.utils.get_total_norm(list(gradients.values())))
        if math.isfinite(norm):
            self.steps += 1
            # The constant is torch's, in `clip_grad_norm_`.
            shrink = min(1.0, self.max_norm / (norm + 1e-6))
            for name, gradient in gradients.items():
                self._move(name, gradient.view(-1), shrink, learning_rate)
        self.zero_grad()
        return norm

    def state(self) -> dict[str, Tensor]:
        """The number of steps, and moments by parameter name, for a checkpoint; empty before the first step."""
        moments = {f"{name}/{key}": tensor for name, key, tensor in self.moments.state()}
        return {"step": torch.tensor(self.steps), **moments} if self.steps else {}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Undo `state`.

        Raises:
            KeyError: the state lacks a parameter, or is one of other moments.
            RuntimeError: the state is one of parameters of another size.
        """
        if not state:
            return
        self.steps = int(state["step"])
        for name, p in self.weights.parameters.items():
            prefix = f"{name}/"
            found = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
            if not found:
                raise KeyError(f"no moments for {name}")
            self.moments.load(name, p, found)

    def _move(self, name: str, gradient: Tensor, shrink: float, learning_rate: float) -> None:
        p = self.weights.parameters[name]
        decay = self.weight_decay if p.dim() >= 2 else 0.0
        rule = Rule(step=self.steps, rate=learning_rate, betas=self.betas, eps=self.eps, decay=decay)
        for place, values in self.weights.pieces(name):
            self.moments.move(name, p, place, values, gradient[place].mul_(shrink), rule)


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


def move(metrics: Metrics, optimizer: Optimizer, learning_rate: float) -> None:
    """One optimizer update; one that is left out because its gradient is not finite is counted."""
    norm = optimizer.step(learning_rate)
    metrics.add("grad_norm", norm)
    if not math.isfinite(norm):
        metrics.add("skipped/steps", 1)
