"""From logits and one uniform number per row to a token and its log-prob. Knows nothing of models or batches.

The vocabulary is not sorted, but for top_p on a GPU, and no vocabulary-wide noise is drawn: a token is where the
cumulative distribution passes the uniform number, found in two small steps (block, then token in the block). On a GPU
nothing here waits for it.

Shapes: n rows, V vocabulary.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

BLOCK = 256
FIRST_TOP = 64


def draw(
    logits: Tensor, uniforms: Tensor, *, temperature: float, top_p: float = 1.0, top_k: int = 0, min_p: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Draw one token a row from softmax(logits / temperature), truncated to top_k, the top_p nucleus, then by min_p.

    Args:
        logits: [n, V] float32.
        uniforms: [n] float64 in [0, 1).
        temperature: 0 takes the likeliest token; its log-prob is that of the untempered softmax.
    Returns:
        tokens [n] int64 and log-probs [n] float32 under the distribution they were drawn from, which after
        truncation is the renormalised one.
    """
    if temperature == 0:
        top = logits.max(-1)
        return top.indices, top.values - logits.logsumexp(-1)
    if temperature != 1.0:
        logits = logits / temperature
    if top_p >= 1.0 and top_k <= 0:
        return _invert(_above(logits, min_p), uniforms)
    kept, tokens = _truncate(logits, top_p, top_k)
    place, logprobs = _invert(_above(kept, min_p), uniforms)
    return tokens.gather(1, place[:, None])[:, 0], logprobs


def _above(logits: Tensor, min_p: float) -> Tensor:
    """-inf where a token has less than `min_p` times the probability of the likeliest."""
    if min_p <= 0:
        return logits
    return logits.masked_fill(logits < logits.amax(-1, keepdim=True) + math.log(min_p), float("-inf"))


def _truncate(logits: Tensor, top_p: float, top_k: int) -> tuple[Tensor, Tensor]:
    """The likeliest logits in falling order, -inf outside the nucleus, and their tokens: both [n, k].

    Without top_k, k starts small and grows until the nucleus is covered in every row. On a GPU sorting all is cheaper
    than to wait for the answer whether it is.
    """
    vocabulary = logits.shape[-1]
    k = min(top_k or (FIRST_TOP if logits.is_cpu else vocabulary), vocabulary)
    while True:
        kept, tokens = logits.topk(k, dim=-1)
        total = (kept if top_k else logits).logsumexp(-1, keepdim=True)
        mass = torch.exp(kept - total).double()
        covered = mass.cumsum(-1)
        if top_k or k == vocabulary or bool((covered[:, -1] >= top_p).all()):
            break
        k = min(4 * k, vocabulary)
    # A token belongs to the nucleus when those before it do not yet cover top_p; the first always does.
    return kept.masked_fill(covered - mass >= top_p, float("-inf")), tokens


def _invert(logits: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """The first token whose cumulative probability exceeds the uniform number, and its log-prob."""
    rows = torch.arange(len(logits), device=logits.device)
    mass = logits.softmax(-1, dtype=torch.float32)
    missing = -mass.shape[-1] % BLOCK
    blocks = (pad(mass, (0, missing)) if missing else mass).view(len(logits), -1, BLOCK)
    # A block of 256 sums well in float32, and much faster; the sum over blocks is float64.
    edges = blocks.sum(-1).double().cumsum(-1)  # [n, V / BLOCK]
    total = edges[:, -1]
    point = uniforms * total
    block = _first_above(edges, point)
    below = torch.where(block > 0, edges[rows, (block - 1).clamp(min=0)], 0.0)
    inside = blocks[rows, block].double().cumsum(-1)  # [n, BLOCK]
    token = block * BLOCK + _first_above(inside, point - below)
    return token, mass[rows, token].log()


def _first_above(cumulative: Tensor, point: Tensor) -> Tensor:
    """[n, m] rising, [n] -> [n] the first place above the point; never one past the last that has any mass."""
    place = torch.searchsorted(cumulative, point[:, None], right=True)[:, 0]
    last = torch.searchsorted(cumulative, cumulative[:, -1:].contiguous(), right=False)[:, 0]
    return torch.minimum(place, last)
