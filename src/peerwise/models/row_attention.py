"""Attention over a packed row of groups by the compiled kernels: `row_attention.c` over tensors, with its gradients.

Knows lengths and tensors, and which of them the kernels take. What the row is for, it does not know.

Shapes: N tokens of the row, H query heads, K key/value heads, D head size.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from peerwise.kernels import Kernels, kernels_for
from peerwise.models.attention import AttentionRule

_INT = ctypes.c_int64


class _Rows(ctypes.Structure):
    """[N, heads, D]: address, and numbers from one token and one head to the next."""

    _fields_ = (("at", ctypes.c_void_p), ("token", _INT), ("head", _INT))


class _Row(ctypes.Structure):
    _fields_ = (
        *((name, _INT) for name in ("groups", "tokens", "heads", "kv_heads", "size", "window")),
        ("first", ctypes.c_void_p),
        ("offsets", ctypes.c_void_p),
        ("scale", ctypes.c_float),
        ("scratch", ctypes.c_void_p),
        ("scratch_bytes", _INT),
    )


def row_kernels(q: Tensor, v: Tensor, rule: AttentionRule) -> Kernels | None:
    """The kernels, where they can do this: see `kernels_for`; no soft cap, values as wide as keys."""
    if rule.softcap is not None or q.shape[-1] != v.shape[-1]:
        return None
    return kernels_for(q, q.shape[-1])


class RowAttention:
    """Each answer sees its group's prompt and itself; a prompt sees itself.

    Args:
        lengths: for each group of the row, the tokens of its prompt and of each of its answers.
    """

    def __init__(self, lengths: Sequence[tuple[int, Sequence[int]]]) -> None:
        segments = [[prompt, *answers] for prompt, answers in lengths]
        self.groups = len(segments)
        self.first = _integers([0, *accumulate(map(len, segments))])
        self.offsets = _integers([0, *accumulate(tokens for group in segments for tokens in group)])
        self.scratch = torch.empty(0, dtype=torch.uint8)

    def attend(self, kernels: Kernels, q: Tensor, k: Tensor, v: Tensor, rule: AttentionRule) -> Tensor:
        """[1, H, N, D], [1, K, N, D] twice -> [1, H, N, D], with gradients."""
        out: Tensor = _Attention.apply(q, k, v, self, kernels, rule)  # type: ignore[no-untyped-call]
        return out

    def described(self, kernels: Kernels, q: Tensor, k: Tensor, rule: AttentionRule) -> _Row:
        """The row for the kernels, with scratch for all threads."""
        sizes = q.shape[2], q.shape[1], k.shape[1], q.shape[3], rule.window or 0
        row = _Row(self.groups, *sizes, self.first.data_ptr(), self.offsets.data_ptr(), rule.scale)
        row.scratch_bytes = -(-kernels.row_scratch_bytes(ctypes.byref(row)) // 64) * 64
        needed = row.scratch_bytes * torch.get_num_threads()
        if len(self.scratch) < needed:
            self.scratch = torch.empty(needed, dtype=torch.uint8)
        row.scratch = self.scratch.data_ptr()
        return row


class _Attention(torch.autograd.Function):
    """Keeps queries, keys, values and output, and one number for each query."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, row: RowAttention, kernels: Kernels, rule: AttentionRule
    ) -> Tensor:
        q, k, v = (_dense_heads(x) for x in (q, k, v))
        out = _by_tokens(q)
        log_sums = torch.empty(q.shape[1:3])
        described = row.described(kernels, q, k, rule)
        kernels.row_attention(ctypes.byref(described), *map(_rows, (q, k, v, out)), log_sums.data_ptr())
        ctx.save_for_backward(q, k, v, out, log_sums)
        ctx.row, ctx.kernels, ctx.rule = row, kernels, rule
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, log_sums = ctx.saved_tensors
        found = tuple(_by_tokens(x) for x in (q, k, v))
        row = ctx.row.described(ctx.kernels, q, k, ctx.rule)
        asked = map(_rows, (q, k, v, out, _dense_heads(grad)))
        ctx.kernels.row_attention_backward(ctypes.byref(row), *asked, log_sums.data_ptr(), *map(_rows, found))
        return (*found, None, None, None)


def _integers(numbers: Sequence[int]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int64)


def _rows(x: Tensor) -> Any:
    return ctypes.byref(_Rows(x.data_ptr(), x.stride(2), x.stride(1)))


def _dense_heads(x: Tensor) -> Tensor:
    """[1, heads, N, D] whose numbers of one head and token lie side by side, two of them in one word."""
    whole = x.stride(3) == 1 and x.stride(2) % 2 == 0 and x.stride(1) % 2 == 0 and x.data_ptr() % 4 == 0
    return x if whole else x.contiguous()


def _by_tokens(x: Tensor) -> Tensor:
    """Room for [1, heads, N, D] that lies token by token, as the layers around attention read and write it."""
    return x.new_empty(1, x.shape[2], x.shape[1], x.shape[3]).transpose(1, 2)
