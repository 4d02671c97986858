"""What tests of flex attention share: its definition as plain operations that have gradients and can be traced, and
models with heads large enough for a GPU's kernels.

Unlike torch's own reference `dense_flex` heeds the tiles that a block mask lists, so that one left out shows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxOutput, AuxRequest, BlockMask
from transformers import AutoModelForCausalLM, PreTrainedModel

from tiny_models import tiny


def dense_flex(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    score_mod: Any = None,
    block_mask: BlockMask,
    scale: float,
    enable_gqa: bool = False,
    return_aux: AuxRequest | None = None,
    kernel_options: Any = None,
) -> Any:
    """[B, H, Q, D], [B, K, S, D] twice -> [B, H, Q, D], and with `return_aux` the log-sums [B, H, Q]."""
    assert (q.shape[2], k.shape[2]) == block_mask.seq_lengths
    assert enable_gqa or q.shape[1] == k.shape[1]
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    scores = (q @ k.transpose(2, 3)).float() * scale
    if score_mod is not None:
        scores = score_mod(scores, None, None, None, None)
    scores = scores.masked_fill(~seen_pairs(block_mask, len(q)), float("-inf"))
    out = scores.softmax(-1).to(v.dtype) @ v
    return out if return_aux is None else (out, AuxOutput(lse=scores.logsumexp(-1)))


def seen_pairs(blocks: BlockMask, batch: int = 1) -> Tensor:
    """[B, 1, Q, S] bool: what a kernel lets through that goes over the listed tiles only."""
    queries, keys = blocks.seq_lengths
    place = torch.arange(batch)[:, None, None, None], None, torch.arange(queries)[:, None], torch.arange(keys)
    seen = blocks.mask_mod(*place) & listed(blocks.kv_num_blocks, blocks.kv_indices, blocks)
    if blocks.full_kv_num_blocks is not None:
        seen = seen | listed(blocks.full_kv_num_blocks, blocks.full_kv_indices, blocks)
    return seen


def tiles_of(count: Tensor, which: Tensor) -> Tensor:
    """[B, 1, rows], [B, 1, rows, columns] -> [B, 1, rows, columns] bool: the tiles that the lists name."""
    column = torch.arange(which.shape[-1])
    named = (which[..., None] == column) & (column < count[..., None])[..., None]
    return named.any(-2)


def listed(count: Tensor, which: Tensor, blocks: BlockMask) -> Tensor:
    """[B, 1, Q, S] bool: the pairs in those tiles."""
    (rows, columns), (queries, keys) = blocks.BLOCK_SIZE, blocks.seq_lengths
    pairs = tiles_of(count, which).repeat_interleave(rows, -2).repeat_interleave(columns, -1)
    return pairs[..., :queries, :keys]


def wide(name: str) -> PreTrainedModel:
    """A small float32 model of that architecture with heads of 16."""
    config = tiny(name).config
    config.head_dim = 16
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
