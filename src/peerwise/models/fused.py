"""Norms, gated MLPs and linear layers in the place of a model's own, which keep less for the backward pass, touch
memory less often, and on some processors multiply faster.

Within `fused_blocks` the norms and MLPs of the Llama family, and plain linear layers, compute the same with
hand-written gradients; all other modules, adapters among them, stay as they are. Knows modules and tensors; what they
are used for, it does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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

from peerwise.kernels import Kernels, kernels_for, product_kernels

NORMS = (LlamaRMSNorm, MistralRMSNorm, Qwen2RMSNorm, Qwen3RMSNorm)
MLPS = (LlamaMLP, MistralMLP, Qwen2MLP, Qwen3MLP)


@contextmanager
def fused_blocks(model: nn.Module) -> Iterator[None]:
    """Within the block, the backward pass of checkpointed layers included, known modules run the functions below."""
    changed: list[Any] = []
    for module in model.modules():
        function = _function_for(module)
        if function is not None and "forward" not in vars(module):  # else a block around this one has set it
            changed.append(module)
            changed[-1].forward = partial(function, module)
    try:
        yield
    finally:
        for module in changed:
            del module.forward


def _function_for(module: nn.Module) -> Callable[[Any, Tensor], Tensor] | None:
    if type(module) in NORMS:
        return _norm
    if type(module) is nn.Linear and product_kernels(module.weight) and product_kernels(module.weight.T):
        return _linear
    if type(module) in MLPS and isinstance(module.act_fn, nn.SiLU | SiLUActivation):
        return _mlp
    return None


def _norm(module: Any, x: Tensor) -> Tensor:
    out: Tensor = _RMSNorm.apply(x, module.weight, module.variance_epsilon)  # type: ignore[no-untyped-call]
    return out


def _linear(module: Any, x: Tensor) -> Tensor:
    out: Tensor = _Linear.apply(x, module.weight, module.bias)  # type: ignore[no-untyped-call]
    return out


def _mlp(module: Any, x: Tensor) -> Tensor:
    gate, up, down = module.gate_proj(x), module.up_proj(x), module.down_proj
    if type(down) is nn.Linear and getattr(down, "bias", None) is None:
        out: Tensor = _GatedLinear.apply(gate, up, down.weight)  # type: ignore[no-untyped-call]
    else:
        out = down(_Gated.apply(gate, up))  # type: ignore[no-untyped-call]
    return out


class _RMSNorm(torch.autograd.Function):
    """weight * x / rms(x) for x [.., hidden], normalised in float32; keeps x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        kernels = _kernels(x, weight)
        if kernels is not None:
            return kernels.rms_norm(_rows(x), weight, eps).view(x.shape)
        exact = x.float()
        return weight * (exact * _scale(exact, eps)).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        kernels = _kernels(x, weight)
        if kernels is not None:
            of_x, sums = kernels.rms_norm_backward(_rows(x), weight, ctx.eps, _rows(grad))
            return of_x.view(x.shape), sums.to(weight.dtype), None
        exact = x.float()
        scale = _scale(exact, ctx.eps)
        normed = exact * scale
        of_weight = None
        if ctx.needs_input_grad[1]:
            of_weight = (grad * normed).flatten(0, -2).sum(0).to(weight.dtype)
        # With n = x * scale and g the gradient by n: d x = scale * (g - n * mean(g * n)).
        of_normed = (grad * weight).float()
        mean = (of_normed * normed).mean(-1, keepdim=True)
        return of_normed.sub_(normed.mul_(mean)).mul_(scale).to(x.dtype), of_weight, None


def _scale(exact: Tensor, eps: float) -> Tensor:
    return exact.square().mean(-1, keepdim=True).add_(eps).rsqrt_()


class _Linear(torch.autograd.Function):
    """x @ weight.T + bias by the compiled product, which is faster than torch's for a few thousand tokens."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        # A frozen weight asks for no input: beside adapters those of all layers would be kept for nothing.
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight)
        return _times(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_x = _back(grad, weight) if ctx.needs_input_grad[0] else None
        of_weight = _rows(grad).T @ _rows(x) if ctx.needs_input_grad[1] else None
        return of_x, of_weight, grad.flatten(0, -2).sum(0) if ctx.needs_input_grad[2] else None


class _Gated(torch.autograd.Function):
    """silu(gate) * up; keeps gate and up."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return _gated(gate, up)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        return _gated_backward(gate, up, grad)[1:]


class _GatedLinear(torch.autograd.Function):
    """(silu(gate) * up) @ weight.T; the product is computed again in the backward pass instead of kept."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up, weight)
        return _times(_gated(gate, up), weight, None)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        gate, up, weight = ctx.saved_tensors
        product, of_gate, of_up = _gated_backward(gate, up, _back(grad, weight))
        of_weight = grad.flatten(0, -2).T @ product.flatten(0, -2) if ctx.needs_input_grad[2] else None
        return of_gate, of_up, of_weight


def _times(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x @ weight.T + bias"""
    kernels = product_kernels(weight)
    if kernels is None:
        return linear(x, weight, bias)
    packed = kernels.packed([weight.detach()])
    out = kernels.product(_rows(x), packed, len(weight), bias=bias, added=None, gated=False)
    return out.view(*x.shape[:-1], -1)


def _back(grad: Tensor, weight: Tensor) -> Tensor:
    """grad @ weight"""
    kernels = product_kernels(weight.T)
    if kernels is None:
        return grad @ weight
    packed = kernels.packed_turned(weight.detach())
    out = kernels.product(_rows(grad), packed, weight.shape[1], bias=None, added=None, gated=False)
    return out.view(*grad.shape[:-1], -1)


def _gated(gate: Tensor, up: Tensor) -> Tensor:
    kernels = _kernels(gate, up)
    if kernels is not None:
        return kernels.gated(gate.contiguous(), up.contiguous())
    return silu(gate).mul_(up)


def _gated_backward(gate: Tensor, up: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """silu(gate) * up again, and its gradients by gate and by up from the gradient by it."""
    kernels = _kernels(gate, up)
    if kernels is not None:
        return kernels.gated_backward(gate.contiguous(), up.contiguous(), grad.contiguous())
    opened = silu(gate)
    return opened * up, torch.ops.aten.silu_backward(grad * up, gate), opened.mul_(grad)


def _kernels(x: Tensor, other: Tensor) -> Kernels | None:
    """The compiled kernels for x [.., size], where they take it and a second tensor of its dtype."""
    return kernels_for(x, x.shape[-1]) if x.dtype == other.dtype else None


def _rows(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1]).contiguous()
