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
    if top_k > 0:
        kept, tokens = logits.topk(min(top_k, logits.shape[-1]), dim=-1)
        return _from_nucleus(kept, tokens, uniforms, kept.logsumexp(-1, keepdim=True), top_p, min_p)[:2]
    if top_p >= 1.0:
        return _invert(_above(logits, min_p), uniforms)
    return _from_likeliest(logits, uniforms, top_p, min_p)


def _above(logits: Tensor, min_p: float) -> Tensor:
    """-inf where a token has less than `min_p` times the probability of the likeliest."""
    if min_p <= 0:
        return logits
    return logits.masked_fill(logits < logits.amax(-1, keepdim=True) + math.log(min_p), float("-inf"))


def _from_likeliest(logits: Tensor, uniforms: Tensor, top_p: float, min_p: float) -> tuple[Tensor, Tensor]:
    """A draw from the nucleus, looked for among a few of the likeliest tokens, and among more in rows it is wider in.

    On a GPU sorting all is cheaper than to wait for the answer which rows these are.
    """
    vocabulary = logits.shape[-1]
    total = logits.logsumexp(-1, keepdim=True)
    k = min(FIRST_TOP, vocabulary) if logits.is_cpu else vocabulary
    tokens, logprobs, covered = _from_nucleus(*logits.topk(k, dim=-1), uniforms, total, top_p, min_p)
    if k == vocabulary:
        return tokens, logprobs
    wide = (~covered).nonzero()[:, 0]
    while len(wide) and k < vocabulary:
        k = min(4 * k, vocabulary)
        tokens[wide], logprobs[wide], covered = _from_nucleus(
            *logits[wide].topk(k, dim=-1), uniforms[wide], total[wide], top_p, min_p
        )
        wide = wide[~covered]
    return tokens, logprobs


def _from_nucleus(
    kept: Tensor, tokens: Tensor, uniforms: Tensor, total: Tensor, top_p: float, min_p: float
) -> tuple[Tensor, Tensor, Tensor]:
    """A draw from the nucleus within the likeliest logits, and whether these cover it.

    Args:
        kept, tokens: [n, k] in falling order.
        total: [n, 1] log of the sum of exp over all logits that count.
    Returns:
        tokens [n], log-probs [n], and [n] False where the nucleus goes on beyond the k.
    """
    mass = torch.exp(kept - total).double()
    covered = mass.cumsum(-1)
    # A token belongs to the nucleus when those before it do not yet cover top_p; the first always does.
    nucleus = kept.masked_fill(covered - mass >= top_p, float("-inf"))
    place, logprobs = _invert(_above(nucleus, min_p), uniforms)
    return tokens.gather(1, place[:, None])[:, 0], logprobs, covered[:, -1] >= top_p


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
