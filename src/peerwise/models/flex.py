"""Attention on a GPU by torch's flex attention: kernels that torch compiles for a rule of who sees whom, and that pass
over every tile of keys of which nobody may see anything.

A rule is intervals of keys, kept in tensors: other lengths and other windows are other numbers in the same kernel. What
an interval stands for (a prompt, an answer) is not known here, nor where keys and values are kept.

Shapes: H query heads, K key/value heads, R = H / K, D head size; N tokens of a row; n branches, each with `room` keys.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

from peerwise.models.attention import AttentionRule

TILE = 128
"""So many queries by so many keys are computed or passed over together; torch's kernels divide it."""
SIZES = range(16, 257)
"""Head sizes: below 16 there are no matrix units to use, above 256 a tile outgrows a processor's own memory."""
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def serves(q: Tensor, v: Tensor) -> bool:
    """Whether queries and values [.., D] like these are computed here: on a GPU that torch compiles kernels for.

    With PEERWISE_FLEX=off in the environment none are.
    """
    if not q.is_cuda or os.environ.get("PEERWISE_FLEX") == "off":
        return False
    return q.dtype in DTYPES and q.shape[-1] in SIZES and v.shape[-1] in SIZES and _compiles(q.device)


@cache
def _compiles(device: torch.device) -> bool:
    return find_spec("triton") is not None and torch.cuda.get_device_capability(device) >= (8, 0)


@cache
def kernel() -> Callable[..., Any]:
    """Flex attention, compiled at its first call.

    Dynamic, because hardly two micro-batches are equally long, and padding them to few lengths would still compile each
    of those. It is compiled again for what makes another program: with or without gradients, one tile or several, a
    dtype, a scale, a soft cap, a number of branches. Past its limit of programs torch would go on uncompiled, with all
    scores in memory at one time: `fullgraph` makes an error of that.
    """
    program = torch.compile(flex_attention, dynamic=True, fullgraph=True)
    # Dynamic is for lengths: scale and soft cap as inputs of a program are what torch fails to compile.
    settings = torch._dynamo.config.patch(specialize_float=True, recompile_limit=64)
    configured: Callable[..., Any] = settings(program)
    return configured


def attend_row(q: Tensor, k: Tensor, v: Tensor, blocks: BlockMask, rule: AttentionRule) -> Tensor:
    """[1, H, N, D], [1, K, N, D] twice -> [1, H, N, D], with `row_blocks` of the rule's window."""
    out: Tensor = kernel()(
        q,
        k,
        v,
        score_mod=_squash(rule.softcap),
        block_mask=blocks,
        scale=rule.scale,
        enable_gqa=True,
        # Left to itself torch takes the kernel of decode steps for short rows, whose tiles are then too large for it.
        kernel_options={"BACKEND": "TRITON"},
    )
    return out


def row_blocks(begin: NDArray[Any], end: NDArray[Any], own: NDArray[Any], device: torch.device) -> BlockMask:
    """Token i of a row sees the tokens from begin[i] to before end[i] and those from own[i] to itself, all [N].

    The tiles are counted here from the intervals' ends, N at a time: a mask of [N, N] does not exist.
    """
    here = np.arange(len(own))
    tiles = -(-len(own) // TILE)
    touched, whole = np.zeros((2, tiles, tiles + 1), np.int64)
    for start, stop in ((begin, end), (own, here + 1)):
        some = stop > start
        rows, first, last = here[some] // TILE, start[some], stop[some]
        _count(touched, rows, first // TILE, -(-last // TILE))
        _count(whole, rows, -(-first // TILE), last // TILE)
    is_whole = whole.cumsum(1)[:, :-1] == TILE  # every query of the tile sees every key of it: nothing to mask
    in_part = (touched.cumsum(1)[:, :-1] > 0) & ~is_whole
    first_seen, end_seen, own_seen = (torch.tensor(x, dtype=torch.int32, device=device) for x in (begin, end, own))

    def seen(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        early = (key >= first_seen[query]) & (key < end_seen[query])
        return early | ((key >= own_seen[query]) & (key <= query))

    return BlockMask.from_kv_blocks(
        *_lists(in_part, device), *_lists(is_whole, device), TILE, mask_mod=seen, seq_lengths=(len(own), len(own))
    )


def _count(marks: NDArray[Any], rows: NDArray[Any], start: NDArray[Any], stop: NDArray[Any]) -> None:
    """Add one to the tiles start .. stop - 1 of the rows, as the steps up and down that `cumsum` sums."""
    np.add.at(marks, (rows, start), 1)
    np.add.at(marks, (rows, np.maximum(stop, start)), -1)


def _lists(tiles: NDArray[Any], device: torch.device) -> tuple[Tensor, Tensor]:
    """[T, T] bool -> how many are set in each row [1, 1, T], and which, these first, [1, 1, T, T]."""
    count, which = tiles.sum(1), np.argsort(~tiles, axis=1, kind="stable")
    number, index = (torch.tensor(x, dtype=torch.int32, device=device)[None, None] for x in (count, which))
    return number, index


def attend_slots(q: Tensor, k: Tensor, v: Tensor, blocks: BlockMask, rule: AttentionRule) -> tuple[Tensor, Tensor]:
    """R queries of each branch over its own keys, with `slot_blocks` of the rule's window.

    Args:
        q: [n, K, R, D]; k, v: [n, K, room, D].
    Returns:
        [n, K, R, D], and the log of the sum of the exponentials of the scores, [n, K, R] float32.
    """
    for x in (q, k, v, blocks.kv_num_blocks, blocks.kv_indices):
        # The kernel that shares one branch's keys among several processors is for a number of branches known to it.
        torch._dynamo.mark_static(x, 0)
    torch._dynamo.mark_static(q, 2)
    out, sums = kernel()(
        q,
        k,
        v,
        score_mod=_squash(rule.softcap),
        block_mask=blocks,
        scale=rule.scale,
        return_aux=AuxRequest(lse=True),
        kernel_options={"BACKEND": "TRITON_DECODE"},
    )
    return out, sums.lse


def slot_blocks(first: Tensor, last: Tensor, room: int, queries: int) -> BlockMask:
    """Branch b's queries see the keys first[b] to last[b] of its own, both [n]; tiles before and after are not read.

    Made of tensors on the device alone, so it may be recorded: when they change, it follows.
    """
    tiles = -(-room // TILE)
    begin = first // TILE
    count = last // TILE - begin + 1
    index = (begin[:, None] + torch.arange(tiles, device=first.device)).clamp(max=tiles - 1)

    def seen(branch: Tensor, _head: Tensor, _query: Tensor, key: Tensor) -> Tensor:
        return (key >= first[branch]) & (key <= last[branch])

    return BlockMask.from_kv_blocks(
        count.int()[:, None, None],
        index.int()[:, None, None],
        BLOCK_SIZE=TILE,
        mask_mod=seen,
        seq_lengths=(queries, room),
        compute_q_blocks=False,  # for gradients only
    )


@cache
def _squash(softcap: float | None) -> Callable[..., Tensor] | None:
    """The soft cap as a change of scores; the same function for all layers, which are then one program."""
    if softcap is None:
        return None

    def squashed(score: Tensor, _batch: Tensor, _head: Tensor, _query: Tensor, _key: Tensor) -> Tensor:
        return torch.tanh(score / softcap) * softcap

    return squashed
