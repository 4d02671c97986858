"""Log-probs of chosen tokens from hidden states, without ever holding [tokens, vocabulary].

Logits exist for one tile of tokens and vocabulary at a time, small enough for a processor's cache, and are computed
again in the backward pass. Whatever the model's dtype, everything after the matrix product is float32. Where there are
compiled kernels each tile is gone over once, and the rest of this file by torch operations where there are none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from peerwise.kernels import Kernels, kernels_for

CHUNK = 4096
"""Tokens of a tile, unless a caller says otherwise."""
TILE, KERNEL_TILE, GPU_TILE = 2**21, 2**22, 2**27
"""Logits that exist at one time. On a CPU they stay in the cache: float32 and copies of them, or with compiled kernels
bfloat16; a GPU wants large products."""


def selected_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    bias: Tensor | None = None,
    softcap: float | None = None,
    temperature: float = 1.0,
    chunk: int = CHUNK,
    columns: int | None = None,
    with_entropies: bool = True,
) -> tuple[Tensor, Tensor]:
    """log softmax(logits / temperature) at the targets, with logits = softcap(hidden @ weight.T + bias).

    Args:
        hidden: [M, hidden] the state that predicts each target (already shifted by one).
        weight: [V, hidden]; bias: [V] or None.
        targets: [M] int64.
        softcap: logits become tanh(logits / softcap) * softcap; None leaves them.
        temperature: > 0.
        chunk: tokens whose logits exist at one time.
        columns: words of the vocabulary whose logits exist at one time; None takes what makes a tile of TILE logits
            (GPU_TILE on a GPU).
        with_entropies: False leaves them out, and what they cost.
    Returns:
        logprobs [M] float32, and entropies [M] float32 in nats, or [0] when left out; both carry gradients.
    """
    if temperature <= 0:
        raise ValueError(f"temperature must be positive, got {temperature}")
    kernels = None if softcap is not None or weight.dtype != hidden.dtype else kernels_for(hidden, hidden.shape[-1])
    if columns is None:
        tile = KERNEL_TILE if kernels is not None else TILE if hidden.is_cpu else GPU_TILE
        columns = max(1, tile // max(1, min(chunk, len(targets))))
    head = _Head(softcap, temperature, chunk, columns, with_entropies, kernels)
    logprobs, entropies = _SelectedLogprobs.apply(hidden, weight, targets, bias, head)  # type: ignore[no-untyped-call]
    return logprobs, entropies


@dataclass(frozen=True, slots=True)
class _Head:
    """What is done to a product of hidden states and words, and how it is cut into tiles."""

    softcap: float | None
    temperature: float
    chunk: int
    columns: int
    with_entropies: bool
    kernels: Kernels | None

    def chunks(self, targets: Tensor) -> Iterator[slice]:
        return (slice(start, start + self.chunk) for start in range(0, len(targets), self.chunk))

    def tiles(self, weight: Tensor) -> Iterator[slice]:
        return (slice(at, min(at + self.columns, len(weight))) for at in range(0, len(weight), self.columns))

    def product(self, hidden: Tensor, weight: Tensor, bias: Tensor | None, tile: slice) -> Tensor:
        """[C, hidden] -> logits [C, tile] in the model's dtype, before soft cap and temperature."""
        return linear(hidden, weight[tile], None if bias is None else bias[tile])

    def tempered(self, product: Tensor) -> tuple[Tensor, Tensor | None]:
        """Logits [C, tile] float32 as they are drawn from, and the slope of the soft cap when there is one."""
        logits, slope = product.float(), None
        if self.softcap is not None:
            squashed = logits.div_(self.softcap).tanh_()
            slope = 1 - squashed * squashed
            logits = squashed.mul_(self.softcap)
        return (logits if self.temperature == 1.0 else logits.div_(self.temperature)), slope


class _Sums:
    """Of the logits l met so far, for each token: their maximum m, sum exp(l - m), sum exp(l - m) (l - m), and l at the
    target.
    """

    def __init__(self, targets: Tensor, head: _Head) -> None:
        self.targets, self.head = targets, head
        self.rows = torch.zeros(4, len(targets), device=targets.device)
        self.rows[0] = -math.inf
        self.top, self.total, self.moment, self.chosen = self.rows

    def add(self, product: Tensor, tile: slice) -> None:
        """[C, tile] more logits, as `product` gives them; overwritten."""
        if self.head.kernels is not None:
            self.head.kernels.logits_sums(product, self.head.temperature, self.targets, tile.start, self.rows)
            return
        logits = self.head.tempered(product)[0]
        inside = (self.targets - tile.start).clamp(0, logits.shape[1] - 1)
        chosen = logits.gather(1, inside[:, None])[:, 0]
        top = torch.maximum(self.top, logits.amax(-1))
        below = logits.sub_(top[:, None])
        weights = below.exp()
        total = weights.sum(-1)
        moment = below.mul_(weights).sum(-1) if self.head.with_entropies else self.moment
        if tile.start == 0:
            self.top, self.total, self.moment, self.chosen = top, total, moment, chosen
            return
        shift = self.top - top
        rescale = shift.exp()
        if self.head.with_entropies:
            self.moment = (self.moment + self.total * shift) * rescale + moment
        self.total = self.total * rescale + total
        self.chosen = torch.where(self.targets >= tile.start, chosen, self.chosen)
        self.top = top


class _SelectedLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None, head: _Head
    ) -> tuple[Tensor, Tensor]:
        log_totals = torch.empty(len(targets), dtype=torch.float32, device=hidden.device)
        logprobs = torch.empty_like(log_totals)
        entropies = torch.empty_like(log_totals) if head.with_entropies else log_totals.new_empty(0)
        for part in head.chunks(targets):
            sums = _Sums(targets[part], head)
            for tile in head.tiles(weight):
                sums.add(head.product(hidden[part], weight, bias, tile), tile)
            log_sum = sums.total.log()
            log_totals[part] = sums.top + log_sum
            logprobs[part] = sums.chosen - sums.top - log_sum
            if head.with_entropies:
                # H = -E[ln p]. As log Z - E[logit] it would lose digits where all logits are large.
                entropies[part] = log_sum - sums.moment / sums.total
        ctx.save_for_backward(hidden, weight, targets, bias, log_totals, entropies)
        ctx.head = head
        # A loss that leaves the entropies out costs nothing for them.
        ctx.set_materialize_grads(False)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, bias, log_totals, entropies = ctx.saved_tensors
        head: _Head = ctx.head
        # Sums over tiles are kept in float32: bfloat16 would lose the later ones.
        exact = {"dtype": torch.float32, "device": hidden.device}
        of_hidden = torch.zeros(hidden.shape, **exact) if ctx.needs_input_grad[0] else None
        of_weight = torch.zeros(weight.shape, **exact) if ctx.needs_input_grad[1] else None
        of_bias = torch.zeros(bias.shape, **exact) if ctx.needs_input_grad[3] else None
        for part in head.chunks(targets):
            of_each = tuple(None if g is None else g[part] / head.temperature for g in grads)
            entropy = entropies[part] if head.with_entropies else None
            for tile in head.tiles(weight):
                product = head.product(hidden[part], weight, bias, tile)
                grad = _of_product(head, product, targets[part], tile.start, log_totals[part], entropy, of_each)
                if of_bias is not None:
                    of_bias[tile] += grad.sum(0, dtype=torch.float32)
                if of_hidden is not None:
                    of_hidden[part] += grad @ weight[tile]
                if of_weight is not None:
                    of_weight[tile] += grad.T @ hidden[part]
        found = (of_hidden, of_weight, of_bias)
        as_given = [None if g is None else g.to(x.dtype) for g, x in zip(found, (hidden, weight, bias), strict=True)]
        return as_given[0], as_given[1], None, as_given[2], None


def _of_product(
    head: _Head,
    product: Tensor,
    targets: Tensor,
    start: int,
    log_totals: Tensor,
    entropies: Tensor | None,
    of_each: tuple[Tensor | None, ...],
) -> Tensor:
    """The gradient by a tile of `head.product` [C, tile], which is overwritten, in its dtype.

    The tile begins with word `start`. `of_each`: gradients by log-probs and entropies, divided by the temperature, or
    None; they and the others [C] float32.
    """
    of_logprobs, of_entropies = of_each
    if head.kernels is not None:
        head.kernels.logits_gradient(
            *(product, head.temperature, targets, start),
            log_sums=log_totals,
            of_logprobs=torch.zeros_like(log_totals) if of_logprobs is None else of_logprobs.contiguous(),
            of_entropies=None if of_entropies is None else of_entropies.contiguous(),
            entropies=entropies,
        )
        return product
    logits, slope = head.tempered(product)
    lnp = logits.sub_(log_totals[:, None])
    columns = (None if x is None else x[:, None] for x in (of_logprobs, of_entropies, entropies))
    grad = _of_logits(lnp, targets - start, *columns)
    return (grad if slope is None else grad.mul_(slope)).to(product.dtype)


def _of_logits(
    lnp: Tensor, targets: Tensor, of_logprobs: Tensor | None, of_entropies: Tensor | None, entropies: Tensor | None
) -> Tensor:
    """The gradient by a tile of logits [C, tile], from ln p there (overwritten), the targets counted from the tile's
    first word, and the gradients by log-probs and entropies [C, 1].

    d logp(y) / d logits = onehot(y) - p; d H / d logits = -p (ln p + H).
    """
    p = lnp.exp_() if of_entropies is None else lnp.exp()
    if of_entropies is None or entropies is None:
        grad = p if of_logprobs is None else p.mul_(-of_logprobs)
    else:
        follow = (lnp + entropies).mul_(of_entropies)
        grad = p.neg_().mul_(follow if of_logprobs is None else follow.add_(of_logprobs))
    if of_logprobs is not None:
        rows = ((targets >= 0) & (targets < lnp.shape[1])).nonzero()[:, 0]
        grad[rows, targets[rows]] += of_logprobs[rows, 0]
    return grad
