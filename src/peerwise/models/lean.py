"""The forward pass for sampling: the model's own modules, or the same computation with less around it.

A decode step of a small model on a CPU spends a good part of its time between products: module calls, keyword
arguments, small operations. For the Llama family, whose layers differ in little more than biases and windows, the
decoder is written out here as plain functions over packed weights: query, key and value are one product, so are gate
and up, and what lies between products is compiled where it can be. Every other model runs through its own modules.

Inference only. Knows no caches and no batches: who sees whom is the attention plan's business.

Shapes: N tokens of the row, H query heads, K key/value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaModel, MistralModel, PreTrainedModel, Qwen2Model, Qwen3Model

from peerwise.kernels import Kernels, kernels_for
from peerwise.models.attention import NAME, AttentionPlan, AttentionRule, use_attention
from peerwise.models.forward import hidden_states
from peerwise.models.packed import Product, packable, packed_linears

Decoder = Callable[[Tensor, Tensor, AttentionPlan], Tensor]
"""ids [N], positions [N], plan -> final hidden states [N, hidden]."""

FAMILY: dict[type, Callable[[Any], int | None]] = {
    LlamaModel: lambda attention: None,
    MistralModel: lambda attention: attention.config.sliding_window,
    Qwen2Model: lambda attention: attention.sliding_window,
    Qwen3Model: lambda attention: attention.sliding_window,
}
"""Models whose layers `_Layer` repeats exactly, and where each keeps its attention's window."""


@contextmanager
def sampling_decoder(model: PreTrainedModel) -> Iterator[Decoder]:
    """The fastest decoder there is for the model as it is now; within the block its weights must not change."""
    head = model.get_output_embeddings()
    if isinstance(head, nn.Linear) and packable(head) and LeanDecoder.fits(model):
        with packed_linears(head):
            yield LeanDecoder(model)
    else:
        with use_attention(model, NAME), packed_linears(model):
            yield partial(hidden_states, model)


class LeanDecoder:
    """A Llama-like decoder without its modules; equal to them up to rounding."""

    @staticmethod
    def fits(model: PreTrainedModel) -> bool:
        """Whether the model is of the family, with plain linear layers, SiLU gates and every head dimension rotated."""
        base = model.base_model
        if type(base) not in FAMILY or base.config.hidden_act not in ("silu", "swish"):
            return False
        linears = [m for m in base.modules() if isinstance(m, nn.Linear) or hasattr(m, "base_layer")]
        rotated = 2 * base.rotary_emb.inv_freq.numel()
        return all(type(m) is nn.Linear for m in linears) and rotated == base.layers[0].self_attn.head_dim

    def __init__(self, model: PreTrainedModel) -> None:
        base = model.base_model
        window = FAMILY[type(base)]
        self.embed, self.rotary = base.embed_tokens, base.rotary_emb
        self.kernels = kernels_for(base.embed_tokens.weight, base.layers[0].self_attn.head_dim)
        self.norm = _Norm(base.norm, self.kernels)
        self.layers = [_Layer(layer, window(layer.self_attn), self.kernels) for layer in base.layers]

    def __call__(self, ids: Tensor, positions: Tensor, plan: AttentionPlan) -> Tensor:
        x: Tensor = self.embed(ids)  # [N, hidden]
        cos, sin = (part[0].contiguous() for part in self.rotary(x[None], positions[None]))  # [N, D]
        for layer in self.layers:
            x = layer(x, cos, sin, plan)
        return self.norm(x)


class _Norm:
    """RMS norm as the family computes it: normalised in float32, scaled in the model's dtype."""

    def __init__(self, module: Any, kernels: Kernels | None) -> None:
        self.weight: Tensor = module.weight.detach()
        self.eps: float = module.variance_epsilon
        self.kernels = kernels if len(self.weight) % 16 == 0 else None

    def __call__(self, x: Tensor) -> Tensor:
        if self.kernels is not None:
            return self.kernels.rms_norm(x.reshape(-1, x.shape[-1]), self.weight, self.eps).view(x.shape)
        exact = x.float()
        exact = exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * exact.to(x.dtype)


class _Layer:
    """One decoder layer: [N, hidden] -> [N, hidden]."""

    def __init__(self, layer: Any, window: int | None, kernels: Kernels | None) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.index, self.size, self.kernels = attention.layer_idx, attention.head_dim, kernels
        self.rule = AttentionRule(attention.scaling, window, None)
        self.before_attention = _Norm(layer.input_layernorm, kernels)
        self.before_mlp = _Norm(layer.post_attention_layernorm, kernels)
        self.qkv = Product(attention.q_proj, attention.k_proj, attention.v_proj)
        self.heads = attention.q_proj.out_features // self.size
        self.kv_heads = attention.k_proj.out_features // self.size
        has_norms = hasattr(attention, "q_norm")
        self.head_norms = (_Norm(attention.q_norm, kernels), _Norm(attention.k_norm, kernels)) if has_norms else None
        self.out = Product(attention.o_proj)
        self.gated, self.down = Product(mlp.gate_proj, mlp.up_proj, gated=True), Product(mlp.down_proj)

    def __call__(self, x: Tensor, cos: Tensor, sin: Tensor, plan: AttentionPlan) -> Tensor:
        x = self.out(self.attention(self.before_attention(x), cos, sin, plan), added=x)
        return self.down(self.gated(self.before_mlp(x)), added=x)

    def attention(self, x: Tensor, cos: Tensor, sin: Tensor, plan: AttentionPlan) -> Tensor:
        """[N, hidden] -> [N, H * D]; cos, sin [N, D]."""
        qkv = self.qkv(x).view(len(x), -1, self.size)
        rotated = self.heads + self.kv_heads
        if self.head_norms is not None:
            q_norm, k_norm = self.head_norms
            qkv[:, : self.heads] = q_norm(qkv[:, : self.heads])
            qkv[:, self.heads : rotated] = k_norm(qkv[:, self.heads : rotated])
        if self.kernels is not None:
            self.kernels.rotate(qkv, rotated, cos, sin)
        else:
            qkv[:, :rotated] = _rotated(qkv[:, :rotated], cos[:, None], sin[:, None])
        bounds = (slice(self.heads), slice(self.heads, rotated), slice(rotated, None))
        q, k, v = (qkv[:, part].transpose(0, 1)[None] for part in bounds)
        out = plan.attend(self.index, q, k, v, self.rule)  # [1, H, N, D]
        return out[0].transpose(0, 1).flatten(1)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position: x [N, heads, D], cos and sin [N, 1, D]."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin
