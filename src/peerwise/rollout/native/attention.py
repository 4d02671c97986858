"""The attention plans of the engine: prefill (prompts, kept as they pass) and one decode step (a token a branch).

A decode step is two small matrix products and one softmax: the branches of a group read their prompt's keys and
values together, as one product per group, and each reads its own answer.

Shapes: n branches, g groups, W most branches of one group, H query heads, K key/value heads, R = H / K, P longest
prompt, T longest answer so far, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from peerwise.models.attention import AttentionPlan, AttentionRule
from peerwise.models.forward import PackedGroup, SharedPromptAttention
from peerwise.rollout.native.cache import Cache, write_prompt, write_tokens


class PrefillPlan(AttentionPlan):
    """Prompts side by side in one row; each sees itself, and its keys and values go to its place in the cache."""

    def __init__(self, prompts: Sequence[tuple[int, ...]], places: Sequence[int], cache: Cache, device: torch.device):
        self.places, self.cache = places, cache
        self.inner = SharedPromptAttention([PackedGroup(prompt=prompt, completions=()) for prompt in prompts], device)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, rule: AttentionRule) -> Tensor:
        """[1, H, N, D] over all prompts -> [1, H, N, D]."""
        for span, place in zip(self.inner.spans, self.places, strict=True):
            row = slice(span.start, span.start + span.prompt)
            write_prompt(self.cache.prompts, layer, place, k[:, :, row], v[:, :, row])
        return self.inner.attend(layer, q, k, v, rule)


class DecodePlan(AttentionPlan):
    """One new token for each branch: it sees its group's prompt and its own answer."""

    def __init__(self, groups: Sequence[int], lengths: Sequence[int], cache: Cache, device: torch.device) -> None:
        """groups: [n] each branch's place among the prompts; lengths: [n] answer tokens already in the cache."""
        self.cache = cache
        self.lengths = torch.tensor(lengths, device=device)
        self.longest = max(lengths) + 1
        self.prompt_lengths = torch.tensor(cache.prompt_lengths, device=device)
        self.longest_prompt = max(cache.prompt_lengths)
        self.groups = torch.tensor(groups, device=device)
        members: list[list[int]] = [[] for _ in cache.prompt_lengths]
        place = []
        for branch, group in enumerate(groups):
            place.append((group, len(members[group])))
            members[group].append(branch)
        self.width = max(map(len, members))
        # [g, W] branches of each group (0 where there are fewer), and where each branch stands in that table.
        self.members = torch.tensor([m + [0] * (self.width - len(m)) for m in members], device=device)
        self.place = torch.tensor([g * self.width + w for g, w in place], device=device)
        self._masks: dict[int | None, Tensor] = {}

    @property
    def positions(self) -> Tensor:
        """[n] position of the token that this step computes."""
        return self.prompt_lengths[self.groups] + self.lengths

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, rule: AttentionRule) -> Tensor:
        """[1, H, n, D] -> [1, H, n, D]."""
        own_k, own_v = write_tokens(self.cache.answers, layer, self.lengths, k, v)
        n, heads, kv_heads, size = q.shape[2], q.shape[1], k.shape[1], q.shape[3]
        g, p, t = len(self.prompt_lengths), self.longest_prompt, self.longest
        prompt_k = self.cache.prompts.k[layer][:g, :, :p]
        prompt_v = self.cache.prompts.v[layer][:g, :, :p]
        query = (q[0] * rule.scale).transpose(0, 1).reshape(n, kv_heads, -1, size)  # [n, K, R, D]
        scores = torch.cat(
            [
                self._to_branches(self._to_groups(query) @ prompt_k.transpose(2, 3), query),
                query @ own_k[:n, :, :t].transpose(2, 3),
            ],
            dim=-1,
        )  # [n, K, R, P + T]
        if rule.softcap is not None:
            scores = torch.tanh(scores.float() / rule.softcap) * rule.softcap
        # The mask is float32, and so is the sum.
        weights = (scores + self._mask(rule.window)).softmax(-1).to(v.dtype)
        out = self._to_branches(self._to_groups(weights[..., :p]) @ prompt_v, query)
        out = out + weights[..., p:] @ own_v[:n, :, :t]
        return out.reshape(1, n, heads, v.shape[3]).transpose(1, 2)

    def _to_groups(self, x: Tensor) -> Tensor:
        """[n, K, R, S] -> [g, K, W * R, S]: the branches of each group side by side."""
        return x[self.members].transpose(1, 2).flatten(2, 3)

    def _to_branches(self, x: Tensor, like: Tensor) -> Tensor:
        """[g, K, W * R, S] -> [n, K, R, S], undoing `_to_groups`."""
        kv_heads, repeat = like.shape[1], like.shape[2]
        apart = x.reshape(x.shape[0], kv_heads, self.width, repeat, x.shape[-1]).transpose(1, 2)
        return apart.flatten(0, 1)[self.place]

    def _mask(self, window: int | None) -> Tensor:
        """[n, 1, 1, P + T] float32: 0 where the branch may look, -inf elsewhere; the same for all layers."""
        if window not in self._masks:
            device = self.lengths.device
            prompt = torch.arange(self.longest_prompt, device=device)
            own = torch.arange(self.longest, device=device)
            of_branch = self.prompt_lengths[self.groups][:, None]
            seen_prompt, seen_own = prompt < of_branch, own <= self.lengths[:, None]
            if window is not None:
                here = self.positions[:, None]
                seen_prompt = seen_prompt & (here - prompt < window)
                seen_own = seen_own & (here - (of_branch + own) < window)
            seen = torch.cat([seen_prompt, seen_own], dim=1)
            mask = torch.zeros(seen.shape, device=device).masked_fill(~seen, float("-inf"))
            self._masks[window] = mask[:, None, None]
        return self._masks[window]
