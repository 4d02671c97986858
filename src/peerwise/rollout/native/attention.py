"""The attention plans of the engine: prefill (prompts, kept as they pass) and one decode step (a token a branch).

A decode step is two small matrix products and one softmax: the branches of a group read their prompt's keys and
values together, as one product per group, and each reads its own answer. Where there are compiled kernels they do the
same without a copy in between.

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
    writes, one number when all are in step, which makes it a plain copy; room: answer tokens that are read.
    """

    groups: Tensor
    lengths: Tensor
    prompt_lengths: Tensor
    members: Tensor | None
    place: Tensor | None
    width: int
    at: int | Tensor
    room: int


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
        if kernels is None:
            return self._attend(layer, q, k, v, rule)
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

    def _attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, rule: AttentionRule) -> Tensor:
        """In torch."""
        own_k, own_v = write_tokens(self.cache.answers, layer, self.layout.at, k, v)
        own_k, own_v = (own[: k.shape[2], :, : self.layout.room] for own in (own_k, own_v))
        n, heads, kv_heads = q.shape[2], q.shape[1], k.shape[1]
        g, p = len(self.layout.prompt_lengths), self.cache.prompts.room
        prompt_k, prompt_v = self.cache.prompts.k[layer][:g], self.cache.prompts.v[layer][:g]
        query = q[0].transpose(0, 1).reshape(n, kv_heads, heads // kv_heads, q.shape[3])  # [n, K, R, D]
        scores = torch.cat(
            [
                self._to_branches(self._to_groups(query) @ prompt_k.transpose(2, 3), query),
                query @ own_k.transpose(2, 3),
            ],
            dim=-1,
        )  # [n, K, R, P + T]
        mask = self._mask(rule.window)  # float32, and so is the sum
        if rule.softcap is None:
            scores = torch.add(mask, scores, alpha=rule.scale)
        else:
            scores = torch.tanh(scores.float() * (rule.scale / rule.softcap)) * rule.softcap + mask
        weights = scores.softmax(-1).to(v.dtype)
        out = self._to_branches(self._to_groups(weights[..., :p]) @ prompt_v, query)
        out = out + weights[..., p:] @ own_v
        return out.reshape(1, n, heads, v.shape[3]).transpose(1, 2)

    def _to_groups(self, x: Tensor) -> Tensor:
        """[n, K, R, S] -> [g, K, W * R, S]: the branches of each group side by side."""
        if self.layout.members is not None:
            x = x.index_select(0, self.layout.members)
        return x.view(-1, self.layout.width, *x.shape[1:]).transpose(1, 2).flatten(2, 3)

    def _to_branches(self, x: Tensor, like: Tensor) -> Tensor:
        """[g, K, W * R, S] -> [n, K, R, S], undoing `_to_groups`."""
        kv_heads, repeat = like.shape[1], like.shape[2]
        apart = x.view(len(x), kv_heads, self.layout.width, repeat, -1).transpose(1, 2).flatten(0, 1)
        return apart if self.layout.place is None else apart.index_select(0, self.layout.place)

    def _mask(self, window: int | None) -> Tensor:
        """[n, 1, 1, P + T] float32: 0 where the branch may look, -inf elsewhere; the same for all layers."""
        if window not in self._masks:
            lengths, of_branch = self.layout.lengths[:, None], self.before[:, None]
            prompt = torch.arange(self.cache.prompts.room, device=lengths.device)
            own = torch.arange(self.layout.room, device=lengths.device)
            seen_prompt, seen_own = prompt < of_branch, own <= lengths
            if window is not None:
                here = of_branch + lengths
                seen_prompt = seen_prompt & (here - prompt < window)
                seen_own = seen_own & (here - (of_branch + own) < window)
            seen = torch.cat([seen_prompt, seen_own], dim=1)
            mask = torch.zeros(seen.shape, device=lengths.device).masked_fill(~seen, float("-inf"))
            self._masks[window] = mask[:, None, None]
        return self._masks[window]


def _heads_together(x: Tensor) -> Tensor:
    """[1, heads, n, D] -> [n, heads, D], the heads of a row side by side in memory; usually they are."""
    x = x[0].transpose(0, 1)
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()
