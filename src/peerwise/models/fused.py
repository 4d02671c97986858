"""Norms and gated MLPs that keep less for the backward pass and touch memory less often, in the place of a model's own.

Within `fused_blocks` the modules of the Llama family compute the same with hand-written gradients; all other modules,
adapters among them, stay as they are. Knows modules and tensors; what they are used for, it does not know.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, silu
from transformers.activations import SiLUActivation
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm
from transformers.models.mistral.modeling_mistral import MistralMLP, MistralRMSNorm
from transformers.models.qwen2.modeling_qwen2 import Qwen2MLP, Qwen2RMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP, Qwen3RMSNorm

NORMS = (LlamaRMSNorm, MistralRMSNorm, Qwen2RMSNorm, Qwen3RMSNorm)
MLPS = (LlamaMLP, MistralMLP, Qwen2MLP, Qwen3MLP)


@contextmanager
def fused_blocks(model: nn.Module) -> Iterator[None]:
    """Within the block, the backward pass of checkpointed layers included, known modules run the functions below."""
    changed: list[Any] = []
    for module in model.modules():
        if "forward" in vars(module):  # a block around this one
            continue
        if type(module) in NORMS:
            module.forward = partial(_norm, module)
        elif type(module) in MLPS and isinstance(module.act_fn, nn.SiLU | SiLUActivation):
            module.forward = partial(_mlp, module)
        else:
            continue
        changed.append(module)
    try:
        yield
    finally:
        for module in changed:
            del module.forward


def _norm(module: Any, x: Tensor) -> Tensor:
    out: Tensor = _RMSNorm.apply(x, module.weight, module.variance_epsilon)  # type: ignore[no-untyped-call]
    return out


def _mlp(module: Any, x: Tensor) -> Tensor:
    gate, up, down = module.gate_proj(x), module.up_proj(x), module.down_proj
    if type(down) is nn.Linear and getattr(down, "bias", None) is None:
        out: Tensor = _GatedLinear.apply(gate, up, down.weight)  # type: ignore[no-untyped-call]
    else:
        out = down(_Gated.apply(gate, up))  # type: ignore[no-untyped-call]
    return out


class _RMSNorm(torch.autograd.Function):
    """weight * x / rms(x) for x [.., hidden], normalised in float32; keeps x and one number for each row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        exact = x.float()
        scale = exact.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        return weight * (exact * scale).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scale = ctx.saved_tensors
        normed = x.float() * scale
        of_weight = None
        if ctx.needs_input_grad[1]:
            of_weight = (grad * normed).flatten(0, -2).sum(0).to(weight.dtype)
        # With n = x * scale and g the gradient by n: d x = scale * (g - n * mean(g * n)).
        of_normed = (grad * weight).float()
        mean = (of_normed * normed).mean(-1, keepdim=True)
        return of_normed.sub_(normed.mul_(mean)).mul_(scale).to(x.dtype), of_weight, None


class _Gated(torch.autograd.Function):
    """silu(gate) * up; keeps gate and up."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        return torch.ops.aten.silu_backward(grad * up, gate), silu(gate).mul_(grad)


class _GatedLinear(torch.autograd.Function):
    """(silu(gate) * up) @ weight.T; the product is computed again in the backward pass instead of kept."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up, weight)
        return linear(silu(gate).mul_(up), weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        gate, up, weight = ctx.saved_tensors
        opened = silu(gate)
        of_weight = None
        if ctx.needs_input_grad[2]:
            of_weight = grad.flatten(0, -2).T @ (opened * up).flatten(0, -2)
        of_product = grad @ weight
        of_up = opened.mul_(of_product)
        return torch.ops.aten.silu_backward(of_product.mul_(up), gate), of_up, of_weight
