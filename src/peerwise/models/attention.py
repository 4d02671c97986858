"""The one attention function that every phase runs through: training, prefill and decoding.

Any decoder-only Hugging Face model that takes its attention from `transformers.AttentionInterface` can be used
without re-writing it: we register a function under the name "peerwise", and each forward call carries a *plan*
that knows which token may see which. This file knows nothing about where keys and values are kept.

All tokens of a call are packed in one row. Shapes: H query heads, K key/value heads, R = H / K, N tokens, D head
size; queries [1, H, N, D], keys and values [1, K, N, D].
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

from peerwise.errors import ModelError

NAME = "peerwise"
UNUSABLE = (
    ", so this architecture can be neither trained nor sampled from by the native engine; "
    "`peerwise eval --engine transformers` can still measure it"
)


class AttentionPlan(Protocol):
    """Who sees whom in one forward call."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, rule: AttentionRule) -> Tensor:
        """[1, H, N, D], [1, K, N, D], [1, K, N, D] -> [1, H, N, D]."""
        ...


class AttentionRule:
    """What a layer asks of attention besides its tensors.

    scale: factor on the products; window: how many tokens back a token sees, itself included (None: all);
    softcap: scores are squashed to (-softcap, softcap) by tanh (None: not).
    """

    __slots__ = ("scale", "softcap", "window")

    def __init__(self, scale: float, window: int | None, softcap: float | None) -> None:
        self.scale, self.window, self.softcap = scale, window, softcap


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    plan: AttentionPlan | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **ignored: Any,
) -> tuple[Tensor, None]:
    if plan is None:
        raise ModelError(
            f"{type(module).__name__} did not hand the attention plan on to its attention function{UNUSABLE}"
        )
    if ignored.get("s_aux") is not None or ignored.get("position_bias") is not None:
        raise ModelError(f"{type(module).__name__} uses attention sinks or a position bias{UNUSABLE}")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    rule = AttentionRule(scale, sliding_window, softcap)
    out = plan.attend(int(module.layer_idx), query, key, value, rule)  # type: ignore[arg-type]
    return out.transpose(1, 2), None


AttentionInterface.register(NAME, _attention)


@contextmanager
def use_attention(model: PreTrainedModel, name: str) -> Iterator[None]:
    """Run the model with another registered attention function inside the block."""
    before = model.config._attn_implementation
    model.set_attn_implementation(name)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def masked_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, rule: AttentionRule) -> Tensor:
    """Attention with grouped heads, without repeating keys and values.

    The R query heads that share a key/value head are laid behind each other as R * L queries of that one head, so
    that keys and values are read once.

    Args:
        q: [B, H, L, D].
        k, v: [B, K, S, D].
        mask: [L, S] or [B, L, S], True where a query may see a key; None is "sees everything".
    Returns:
        [B, H, L, D].
    """
    batch, heads, length, size = q.shape
    kv_heads = k.shape[1]
    repeat = heads // kv_heads
    folded = q.reshape(batch, kv_heads, repeat * length, size)
    if mask is not None:
        mask = mask if mask.dim() == 3 else mask[None]
        mask = mask[:, None].repeat(1, 1, repeat, 1)  # [B or 1, 1, R * L, S]
    if rule.softcap is None:
        out = scaled_dot_product_attention(folded, k, v, attn_mask=mask, scale=rule.scale)
    else:
        scores = torch.tanh((folded @ k.transpose(2, 3)).float() * (rule.scale / rule.softcap)) * rule.softcap
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        out = scores.softmax(-1).to(v.dtype) @ v
    return out.reshape(batch, heads, length, v.shape[-1])
