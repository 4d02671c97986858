"""The forward pass for sampling: the model's own modules, or the same computation with less around it.

A decode step of a small model on a CPU spends a good part of its time between products: module calls, keyword
arguments, small operations. For the Llama family, whose layers differ in little more than biases and windows, the
decoder is written out here as plain functions over packed weights: query, key and value are one product, so are gate
and up, and queries and keys are rotated together. Every other model runs through its own modules.

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
        """Whether the model is of the family, with plain linear layers and every head dimension rotated."""
        base = model.base_model
        if type(base) not in FAMILY:
            return False
        linears = [m for m in base.modules() if isinstance(m, nn.Linear) or hasattr(m, "base_layer")]
        rotated = 2 * base.rotary_emb.inv_freq.numel()
        return all(type(m) is nn.Linear for m in linears) and rotated == base.layers[0].self_attn.head_dim

    def __init__(self, model: PreTrainedModel) -> None:
        base = model.base_model
        window = FAMILY[type(base)]
        self.embed, self.rotary, self.norm = base.embed_tokens, base.rotary_emb, _Norm(base.norm)
        self.layers = [_Layer(layer, window(layer.self_attn)) for layer in base.layers]

    def __call__(self, ids: Tensor, positions: Tensor, plan: AttentionPlan) -> Tensor:
        x: Tensor = self.embed(ids)  # [N, hidden]
        cos, sin = (part[0, :, None] for part in self.rotary(x[None], positions[None]))  # [N, 1, D]
        # rotate_half negates the half it brings to the front; the sine may as well carry the sign.
        first, second = sin.chunk(2, dim=-1)
        sin = torch.cat([-first, second], dim=-1)
        for layer in self.layers:
            x = layer(x, cos, sin, plan)
        return self.norm(x)


class _Norm:
    """RMS norm as the family computes it: normalised in float32, scaled in the model's dtype."""

    def __init__(self, module: Any) -> None:
        self.weight: Tensor = module.weight.detach()
        self.eps: float = module.variance_epsilon

    def __call__(self, x: Tensor) -> Tensor:
        exact = x.float()
        exact = exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * exact.to(x.dtype)


class _Layer:
    """One decoder layer: [N, hidden] -> [N, hidden]."""

    def __init__(self, layer: Any, window: int | None) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.index, self.size = attention.layer_idx, attention.head_dim
        self.rule = AttentionRule(attention.scaling, window, None)
        self.before_attention, self.before_mlp = _Norm(layer.input_layernorm), _Norm(layer.post_attention_layernorm)
        self.qkv = Product(attention.q_proj, attention.k_proj, attention.v_proj)
        self.heads = attention.q_proj.out_features // self.size
        self.kv_heads = attention.k_proj.out_features // self.size
        has_norms = hasattr(attention, "q_norm")
        self.head_norms = (_Norm(attention.q_norm), _Norm(attention.k_norm)) if has_norms else None
        self.out = Product(attention.o_proj)
        self.gate_up, self.down, self.act = Product(mlp.gate_proj, mlp.up_proj), Product(mlp.down_proj), mlp.act_fn

    def __call__(self, x: Tensor, cos: Tensor, sin: Tensor, plan: AttentionPlan) -> Tensor:
        x = x + self.attention(self.before_attention(x), cos, sin, plan)
        gate, up = self.gate_up(self.before_mlp(x)).chunk(2, dim=-1)
        return x + self.down(self.act(gate) * up)

    def attention(self, x: Tensor, cos: Tensor, sin: Tensor, plan: AttentionPlan) -> Tensor:
        """[N, hidden] -> [N, hidden]; cos, sin [N, 1, D], the first half of the sine negated."""
        qkv = self.qkv(x).view(len(x), -1, self.size)
        qk, v = qkv[:, : -self.kv_heads], qkv[:, -self.kv_heads :]
        if self.head_norms is not None:
            q_norm, k_norm = self.head_norms
            qk = torch.cat([q_norm(qk[:, : self.heads]), k_norm(qk[:, self.heads :])], dim=1)
        qk = qk * cos + qk.roll(self.size // 2, dims=-1) * sin
        q, k, v = (part.transpose(0, 1)[None] for part in (qk[:, : self.heads], qk[:, self.heads :], v))
        out = plan.attend(self.index, q, k, v, self.rule)  # [1, H, N, D]
        return self.out(out[0].transpose(0, 1).flatten(1))
