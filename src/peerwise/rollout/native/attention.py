"""The attention plans of the engine: prefill (prompts, kept as they pass) and one decode step (a token a branch).

A decode step is two small matrix products and one softmax: the branches of a group read their prompt's keys and
values together, as one product per group, and each reads its own answer. Where there are compiled kernels they do the
same without a copy in between; in recorded steps on a GPU flex attention reads the answers (`DecodePlan.attend`).

Shapes: n branches, g groups, W most branches of one group, H query heads, K key/value heads, R = H / K, P room for
a prompt, T room for an answer, D head size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from peerwise.kernels import Kernels
from peerwise.models import flex
from peerwise.models.attention import AttentionPlan, AttentionRule
from peerwise.models.forward import PackedGroup, pack
from peerwise.rollout.native.cache import Cache, compiled, write_prompt, write_tokens

MIN_SHARED = 16
"""Common first tokens of prompts that are worth computing once. Below it the padding of the rest costs more."""


class PrefillPlan(AttentionPlan):
    """Prompts side by side in one row; each sees itself, and its keys and values go to its place in the cache.

    What the prompts begin with alike (a system message, worked examples) is computed once for all of them, just as a
    prompt is for its completions. `packed` is the row; `last` [prompts] says where each prompt's last token stands.
    """

    def __init__(self, prompts: Sequence[tuple[int, ...]], places: Sequence[int], cache: Cache, device: torch.device):
        self.places, self.cache = places, cache
        self.shared = _shared(prompts)
        if self.shared:
            rest = tuple(prompt[self.shared :] for prompt in prompts)
            groups = [PackedGroup(prompt=prompts[0][: self.shared], completions=rest)]
        else:
            groups = [PackedGroup(prompt=prompt, completions=()) for prompt in prompts]
        self.packed = pack(groups, device)
        ends = self.shared + np.cumsum([len(prompt) - self.shared for prompt in prompts])
        self.rows = [slice(start, end) for start, end in pairwise([self.shared, *ends.tolist()])]
        self.last = [row.stop - 1 for row in self.rows]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, rule: AttentionRule) -> Tensor:
        """[1, H, N, D] over all prompts -> [1, H, N, D]."""
        for row, place in zip(self.rows, self.places, strict=True):
            whole = (
                torch.cat([x[:, :, : self.shared], x[:, :, row]], dim=2) if self.shared else x[:, :, row]
                for x in (k, v)
            )
            write_prompt(self.cache.prompts, layer, place, *whole)
        return self.packed.plan.attend(layer, q, k, v, rule)


def _shared(prompts: Sequence[tuple[int, ...]]) -> int:
    """How many first tokens to compute once; each prompt keeps at least its last for itself."""
    if len(prompts) < 2:
        return 0
    columns = zip(*(prompt[:-1] for prompt in prompts), strict=False)
    shared = sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))
    return shared if shared >= MIN_SHARED else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How the branches of a decode step lie, as integers on the device.

    groups: [n] each branch's place among the prompts; lengths: [n] answer tokens already in the cache; prompt_lengths:
    [g]; members: [g * W] the branches of each group (0 where there are fewer), and place: [n] where each branch stands
    in that list, both None when the branches lie in that order anyway; width: W; at: where in its answer each branch
    writes, one number when all are in step, which makes it a plain copy; room: answer tokens that are read; recurs:
    whether steps of this n come again and again, so that kernels may be compiled for it.
    """

    groups: Tensor
    lengths: Tensor
    prompt_lengths: Tensor
    members: Tensor | None
    place: Tensor | None
    width: int
    at: int | Tensor
    room: int
    recurs: bool


def layout_of(groups: Sequence[int], lengths: Sequence[int], cache: Cache, device: torch.device) -> Layout:
    """The layout of a step that is computed once, no larger than its branches need."""
    width = max(Counter(groups).values())
    members, place = by_group(groups, len(cache.prompt_lengths), width)
    in_order = members == list(range(len(groups)))
    on_device = torch.tensor(lengths, device=device)
    return Layout(
        groups=torch.tensor(groups, device=device),
        lengths=on_device,
        prompt_lengths=torch.tensor(cache.prompt_lengths, device=device),
        members=None if in_order else torch.tensor(members, device=device),
        place=None if in_order else torch.tensor(place, device=device),
        width=width,
        at=lengths[0] if len(set(lengths)) == 1 else on_device,
        room=cache.answers.room,
        recurs=False,
    )


def by_group(groups: Sequence[int], places: int, width: int) -> tuple[list[int], list[int]]:
    """`members` and `place` of a layout for `places` groups of up to `width` branches."""
    members, taken = [0] * (places * width), [0] * places
    place: list[int] = []
    for branch, group in enumerate(groups):
        place.append(group * width + taken[group])
        members[place[-1]] = branch
        taken[group] += 1
    return members, place


class DecodePlan(AttentionPlan):
    """One new token for each branch: it sees its group's prompt and its own answer.

    In torch, products run over the whole room of the cache, not over the part in use: a slice of it is not dense, and
    a CPU's matrix library would copy it on every call. What lies beyond a branch's length is masked.
    """

    def __init__(self, layout: Layout, cache: Cache) -> None:
        self.layout, self.cache = layout, cache
        self._masks: dict[int | None, Tensor] = {}
        self._apart: dict[tuple[int | None, int], tuple[Tensor, BlockMask]] = {}
        self._compiled: tuple[tuple[Tensor, Tensor, Tensor, Tensor], Tensor] | None = None

    @property
    def before(self) -> Tensor:
        """[n] tokens of each branch's prompt."""
        return self.layout.prompt_lengths[self.layout.groups]

    @property
    def positions(self) -> Tensor:
        """[n] position of the token that this step computes."""
        return self.before + self.layout.lengths

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, rule: AttentionRule) -> Tensor:
        """[1, H, n, D] -> [1, H, n, D]."""
        kernels = compiled(k, v)
        if kernels is not None:
            return self._by_kernels(kernels, layer, q, k, v, rule)
        n, heads, kv_heads = q.shape[2], q.shape[1], k.shape[1]
        own_k, own_v = write_tokens(self.cache.answers, layer, self.layout.at, k, v)
        own_k, own_v = (own[:n, :, : self.layout.room] for own in (own_k, own_v))
        prompts, g = self.cache.prompts, len(self.layout.prompt_lengths)
        keys, values = (prompts.k[layer][:g], own_k), (prompts.v[layer][:g], own_v)
        query = q[0].transpose(0, 1).reshape(n, kv_heads, heads // kv_heads, q.shape[3])  # [n, K, R, D]
        if self.layout.recurs and flex.serves(q, v):
            out = self._by_flex(query, keys, values, rule)
        else:
            out = self._by_products(query, keys, values, rule)
        return out.reshape(1, n, heads, v.shape[3]).transpose(1, 2)

    def _by_kernels(self, kernels: Kernels, layer: int, q: Tensor, k: Tensor, v: Tensor, rule: AttentionRule) -> Tensor:
        """[1, H, n, D] -> [1, H, n, D], compiled for a CPU."""
        if self._compiled is None:
            groups, lengths = self.layout.groups, self.layout.lengths
            rows = groups, torch.arange(len(groups)), self.before, lengths
            self._compiled = rows, kernels.scratch(self.cache.prompts.room + self.cache.answers.room, q.shape[3])
        rows, scratch = self._compiled
        prompts, answers = self.cache.prompts, self.cache.answers
        out = kernels.attend(
            *(_heads_together(x) for x in (q, k, v)),
            rows=rows,
            prompts=(prompts.k[layer], prompts.v[layer]),
            answers=answers.layer(layer, k, v),
            scale=rule.scale,
            softcap=rule.softcap or 0.0,
            window=rule.window or 0,
            scratch=scratch,
        )
        return out.transpose(0, 1)[None]

    def _by_products(
        self, query: Tensor, keys: tuple[Tensor, Tensor], values: tuple[Tensor, Tensor], rule: AttentionRule
    ) -> Tensor:
        """[n, K, R, D] -> [n, K, R, D]; keys and values of prompts [g, K, P, D] and answers [n, K, T, D]."""
        scores = torch.cat(
            [self._by_prompt(query, keys[0].transpose(2, 3)), query @ keys[1].transpose(2, 3)], dim=-1
        )  # [n, K, R, P + T]
        weights = _scaled(scores, self._mask(rule.window), rule).softmax(-1).to(query.dtype)
        p = keys[0].shape[2]
        return self._by_prompt(weights[..., :p], values[0]) + weights[..., p:] @ values[1]

    def _by_flex(
        self, query: Tensor, keys: tuple[Tensor, Tensor], values: tuple[Tensor, Tensor], rule: AttentionRule
    ) -> Tensor:
        """The same; of each answer no more is read than there is, and the two softmaxes are merged by their sums."""
        at = rule.window, query.shape[2]
        if at not in self._apart:
            self._apart[at] = self._masks_apart(*at)
        mask, blocks = self._apart[at]
        own, own_sum = flex.attend_slots(query, keys[1], values[1], blocks, rule)
        weights, share = merged(_scaled(self._by_prompt(query, keys[0].transpose(2, 3)), mask, rule), own_sum)
        out = self._by_prompt(weights.to(query.dtype), values[0]) + share * own
        return out.to(query.dtype)

    def _by_prompt(self, x: Tensor, of_prompts: Tensor) -> Tensor:
        """[n, K, R, S] times the matrix [g, K, S, U] of its branch's prompt -> [n, K, R, U], one product per group."""
        kv_heads, repeat = x.shape[1], x.shape[2]
        if self.layout.members is not None:
            x = x.index_select(0, self.layout.members)
        # [g, K, W * R, S]: the branches of each group side by side.
        together = x.view(-1, self.layout.width, *x.shape[1:]).transpose(1, 2).flatten(2, 3)
        product = together @ of_prompts
        apart = product.view(len(product), kv_heads, self.layout.width, repeat, -1).transpose(1, 2).flatten(0, 1)
        return apart if self.layout.place is None else apart.index_select(0, self.layout.place)

    def _mask(self, window: int | None) -> Tensor:
        """[n, 1, 1, P + T] float32: 0 where the branch may look, -inf elsewhere; the same for all layers."""
        if window not in self._masks:
            self._masks[window] = _additive(torch.cat([self._sees_prompt(window), self._sees_own(window)], dim=1))
        return self._masks[window]

    def _masks_apart(self, window: int | None, queries: int) -> tuple[Tensor, BlockMask]:
        """[n, 1, 1, P] float32 as in `_mask`, and what `queries` queries of each branch see of its answer."""
        last = self.layout.lengths
        first = torch.zeros_like(last) if window is None else (last + 1 - window).clamp(min=0)
        blocks = flex.slot_blocks(first.int(), last.int(), self.layout.room, queries)
        return _additive(self._sees_prompt(window)), blocks

    def _sees_prompt(self, window: int | None) -> Tensor:
        """[n, P] bool."""
        before = self.before[:, None]
        prompt = torch.arange(self.cache.prompts.room, device=before.device)
        seen = prompt < before
        return seen if window is None else seen & (before + self.layout.lengths[:, None] - prompt < window)

    def _sees_own(self, window: int | None) -> Tensor:
        """[n, T] bool."""
        lengths = self.layout.lengths[:, None]
        own = torch.arange(self.layout.room, device=lengths.device)
        seen = own <= lengths
        return seen if window is None else seen & (lengths - own < window)


def merged(scores: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """One softmax over scores that are there and others of which only the log of the sum of exponentials is known.

    Args:
        scores: [.., S]; other: [..], finite.
    Returns:
        The weights [.., S], and that of all the others together [.., 1]; they add up to 1.
    """
    total = torch.logaddexp(scores.logsumexp(-1), other)[..., None]
    return (scores - total).exp(), (other[..., None] - total).exp()


def _scaled(scores: Tensor, mask: Tensor, rule: AttentionRule) -> Tensor:
    """Products of queries and keys as the rule wants them, float32 as the mask is."""
    if rule.softcap is None:
        return torch.add(mask, scores, alpha=rule.scale)
    return torch.tanh(scores.float() * (rule.scale / rule.softcap)) * rule.softcap + mask


def _additive(seen: Tensor) -> Tensor:
    """[n, S] bool -> [n, 1, 1, S] float32, 0 where seen and -inf elsewhere."""
    return torch.zeros(seen.shape, device=seen.device).masked_fill(~seen, float("-inf"))[:, None, None]


def _heads_together(x: Tensor) -> Tensor:
    """[1, heads, n, D] -> [n, heads, D], the heads of a row side by side in memory; usually they are."""
    x = x[0].transpose(0, 1)
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()
