"""Who sees whom in a packed row of groups: each answer its group's prompt and itself, whose keys stand there once.

Knows lengths and tensors; what the tokens are, and what the row is for, it does not know.

Shapes: N tokens of the row, H query heads, K key/value heads, R = H / K, D head size; of one group P tokens of prompt,
G answers of at most L tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from peerwise.models import flex
from peerwise.models.attention import AttentionPlan, AttentionRule, masked_attention
from peerwise.models.row_attention import RowAttention, row_kernels

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


@dataclass(slots=True)
class _Span:
    """A group in the row: its prompt's length, and its answers as a padded index."""

    prompt: int
    index: Tensor  # [G, L] places among the answers' tokens; rows shorter than L repeat their last token
    valid: Tensor  # [G * L] bool, True where the index is a real token
    even: bool  # all answers have L tokens
    masks: dict[int | None, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def seen(self, window: int | None) -> tuple[Tensor, Tensor]:
        """[P, P] for the prompt and [L, P + L] for each answer; the same for all layers with one window."""
        if window not in self.masks:
            position = torch.arange(self.prompt + self.index.shape[1], device=self.index.device)
            distance = position[:, None] - position[None, :]
            seen = (distance >= 0) if window is None else (distance >= 0) & (distance < window)
            self.masks[window] = (seen[: self.prompt, : self.prompt], seen[self.prompt :])
        return self.masks[window]

    def rows(self, x: Tensor) -> Tensor:
        """[1, heads, tokens of all answers, D] -> [G, heads, L, D]."""
        rows = x[0].reshape(x.shape[1], *self.index.shape, x.shape[3]) if self.even else x[0][:, self.index]
        return rows.transpose(0, 1)

    def packed(self, rows: Tensor) -> Tensor:
        """Undo `rows`: [G, heads, L, D] -> [1, heads, tokens of all answers, D]."""
        flat = rows.transpose(0, 1).flatten(1, 2)[None]
        return flat if self.even else flat[:, :, self.valid]

    def with_prompt(self, prompt: Tensor, own: Tensor) -> Tensor:
        """Keys or values of the prompt [1, K, P, D] and of the answers, as [G, K, P + L, D]."""
        return torch.cat([prompt.expand(len(self.index), -1, -1, -1), self.rows(own)], dim=2)


class SharedPromptAttention(AttentionPlan):
    """Each answer sees its group's prompt and itself; a prompt sees itself; nothing else.

    Args:
        lengths: for each group of the row, the tokens of its prompt and of each of its answers.
    """

    def __init__(self, lengths: Sequence[tuple[int, Sequence[int]]], device: torch.device) -> None:
        self.lengths, self.device = lengths, device
        self.sizes = [n for prompt, answers in lengths for n in (prompt, sum(answers))]
        self._blocks: dict[int | None, BlockMask] = {}

    @cached_property
    def spans(self) -> list[_Span]:
        """The groups of the row, for what goes through them one by one."""
        return [_span(prompt, answers, self.device) for prompt, answers in self.lengths]

    @cached_property
    def compiled(self) -> RowAttention:
        """The row for the compiled kernels."""
        return RowAttention(self.lengths)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, rule: AttentionRule) -> Tensor:
        """[1, H, N, D] queries over the packed row -> [1, H, N, D]."""
        if flex.serves(q, v):
            return flex.attend_row(q, k, v, self.blocks(rule.window), rule)
        kernels = row_kernels(q, v, rule)
        if kernels is not None:
            return self.compiled.attend(kernels, q, k, v, rule)
        if q.is_cpu and rule.softcap is None and q.shape[-1] == v.shape[-1]:
            out: Tensor = _FlashOverSpans.apply(q, k, v, self, rule)  # type: ignore[no-untyped-call]
            return out
        return self._by_group(q, k, v, rule)

    def blocks(self, window: int | None) -> BlockMask:
        """The tiles of the row where somebody sees somebody; the same for all layers with one window."""
        if window not in self._blocks:
            self._blocks[window] = flex.row_blocks(*self._intervals(window), self.device)
        return self._blocks[window]

    def _intervals(self, window: int | None) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """What each token sees, as places in the row, [N] each: its prompt from .. to before .., itself from ..

        A window counts positions, and an answer's go on from its prompt's.
        """
        segments: list[tuple[int, int, int]] = []  # tokens, tokens of the prompt before them, where the prompt begins
        group = 0
        for prompt, answers in self.lengths:
            segments += [(prompt, 0, group), *((answer, prompt, group) for answer in answers)]
            group += prompt + sum(answers)
        tokens = np.array([segment[0] for segment in segments])
        start, before, begin = (
            np.repeat(column, tokens) for column in (tokens.cumsum() - tokens, *np.array(segments).T[1:])
        )
        here, reach = np.arange(group), group if window is None else window
        end = begin + before
        out_of_sight = before + here - start + 1 - reach  # so many first tokens of its group
        return np.minimum(begin + out_of_sight.clip(0), end), end, np.maximum(start, here + 1 - reach)

    def _by_group(self, q: Tensor, k: Tensor, v: Tensor, rule: AttentionRule) -> Tensor:
        """Plain attention over each prompt, and over each prompt's answers in rows of their longest."""
        parts: list[Tensor] = []
        for span, prompt, own in self.pieces(q, k, v):
            prompt_mask, own_mask = span.seen(rule.window)
            parts.append(masked_attention(prompt[0], prompt[1], prompt[2], prompt_mask, rule))
            if span.index.numel():
                full_k, full_v = (span.with_prompt(p, o) for p, o in zip(prompt[1:], own[1:], strict=True))
                parts.append(span.packed(masked_attention(span.rows(own[0]), full_k, full_v, own_mask, rule)))
        return torch.cat(parts, dim=2)

    def pieces(self, *tensors: Tensor) -> Iterator[tuple[_Span, tuple[Tensor, ...], tuple[Tensor, ...]]]:
        """For each group, tensors [1, heads, N, D] cut to its prompt and to its answers."""
        # Split, not sliced: the gradients of all pieces are joined once, and not each added into a row of zeros.
        cut = zip(*(torch.split(x, self.sizes, dim=2) for x in tensors), strict=True)
        return zip(self.spans, cut, cut, strict=False)


def _span(prompt: int, lengths: Sequence[int], device: torch.device) -> _Span:
    longest = max(lengths, default=0)
    index: list[list[int]] = []
    valid: list[bool] = []
    at = 0
    for length in lengths:
        index.append([at + min(t, length - 1) for t in range(longest)])
        valid.extend(t < length for t in range(longest))
        at += length
    return _Span(
        prompt,
        torch.tensor(index, dtype=torch.long, device=device).reshape(len(lengths), longest),
        torch.tensor(valid, dtype=torch.bool, device=device),
        all(valid),
    )


class _FlashOverSpans(torch.autograd.Function):
    """torch's fused attention of the CPU over each group, keeping the row's queries, keys, values and output only.

    Recorded by autograd, every group would also keep its queries folded and, for each answer, the prompt's keys and
    values once more.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, plan: SharedPromptAttention, rule: AttentionRule) -> Tensor:
        out = _like_rows(q)
        sums: list[Tensor] = []
        for span, prompt, own in plan.pieces(q, k, v, out):
            prompt_mask, own_mask = span.seen(rule.window)
            found, log_sum = _forward(prompt[0], prompt[1], prompt[2], prompt_mask, rule)
            prompt[3].copy_(found)
            sums.append(log_sum)
            if span.index.numel():
                full_k, full_v = (span.with_prompt(p, o) for p, o in zip(prompt[1:3], own[1:3], strict=True))
                found, log_sum = _forward(span.rows(own[0]), full_k, full_v, own_mask, rule)
                own[3].copy_(span.packed(found))
                sums.append(log_sum)
        ctx.save_for_backward(q, k, v, out, *sums)
        ctx.plan, ctx.rule = plan, rule
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, *rest = ctx.saved_tensors
        rule: AttentionRule = ctx.rule
        sums = iter(rest)
        grads = tuple(_like_rows(x) for x in (q, k, v))
        for span, prompt, own in ctx.plan.pieces(q, k, v, out, grad, *grads):
            prompt_mask, own_mask = span.seen(rule.window)
            for target, found in zip(prompt[5:], _backward(prompt[:5], next(sums), prompt_mask, rule), strict=True):
                target.copy_(found)
            if not span.index.numel():
                continue
            of_rows = span.rows(own[4])
            if not span.even:
                of_rows = of_rows * span.valid.reshape(len(span.index), 1, -1, 1)
            full_k, full_v = (span.with_prompt(p, o) for p, o in zip(prompt[1:3], own[1:3], strict=True))
            asked = (span.rows(own[0]), full_k, full_v, span.rows(own[3]), of_rows)
            of_q, *of_keys = _backward(asked, next(sums), own_mask, rule)
            own[5].copy_(span.packed(of_q))
            for to_prompt, to_own, found in zip(prompt[6:], own[6:], of_keys, strict=True):
                to_prompt += found[:, :, : span.prompt].sum(0, keepdim=True)
                to_own.copy_(span.packed(found[:, :, span.prompt :]))
        return (*grads, None, None)


def _like_rows(x: Tensor) -> Tensor:
    """Room for [1, heads, N, D] that lies token by token, as the layers around attention read and write it."""
    return x.new_empty(1, x.shape[2], x.shape[1], x.shape[3]).transpose(1, 2)


def _forward(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, rule: AttentionRule) -> tuple[Tensor, Tensor]:
    """[B, H, L, D], [B, K, S, D] twice, [L, S] -> [B, H, L, D], and log-sums as the backward pass takes them."""
    folded = _folded(q, k.shape[1])
    out, log_sum = _flash(folded, k, v, attn_mask=_additive(seen, folded), scale=rule.scale)
    return out.reshape(q.shape), log_sum


def _backward(asked: tuple[Tensor, ...], log_sum: Tensor, seen: Tensor, rule: AttentionRule) -> tuple[Tensor, ...]:
    """Gradients by q, k, v from (q, k, v, out, gradient of out)."""
    q, k, v, out, grad = asked
    q_, out_, grad_ = (_folded(x, k.shape[1]) for x in (q, out, grad))
    mask = _additive(seen, q_)
    of_q, of_k, of_v = _flash_backward(grad_, q_, k, v, out_, log_sum, 0.0, False, attn_mask=mask, scale=rule.scale)
    return of_q.reshape(q.shape), of_k, of_v


def _folded(x: Tensor, kv_heads: int) -> Tensor:
    """[B, H, L, D] -> [B, K, R * L, D]: the heads that share keys become more queries of them."""
    return x.reshape(len(x), kv_heads, -1, x.shape[3])


def _additive(seen: Tensor, folded: Tensor) -> Tensor:
    """[L, S] bool -> [1, 1, R * L, S], 0 where seen and -inf elsewhere."""
    mask = torch.zeros(seen.shape, dtype=folded.dtype).masked_fill_(~seen, float("-inf"))
    return mask.repeat(folded.shape[2] // len(seen), 1)[None, None]
