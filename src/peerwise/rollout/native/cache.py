"""Keys and values: one copy of each prompt for its whole group, and each answer's own behind it.

The layers tell their shapes by what they write, so nothing here depends on an architecture. Room for answers grows
step by step up to the longest answer allowed; nothing is concatenated while decoding.

Shapes: g groups, n branches, K key/value heads, P longest prompt, T room for answer tokens, D head size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from peerwise.kernels import BLOCK, Kernels, kernels_for
from peerwise.rollout.native.scheduler import Moves

GROWTH = 16
"""Answer tokens by which room grows at least; from 128 on by an eighth. A decode step reads all of the room, so it
must not be much more than is used; a growth copies the cache, so it must not come often."""


class Store:
    """Keys and values of one kind (prompts or answers) for every layer: k, v [places, K, room, D].

    Room is a multiple of BLOCK, within which compiled attention has an order of its own (`Kernels.keep`).
    """

    def __init__(self, places: int, room: int) -> None:
        self.places, self.room = places, whole_blocks(room)
        self.k: dict[int, Tensor] = {}
        self.v: dict[int, Tensor] = {}

    def layer(self, layer: int, like_k: Tensor, like_v: Tensor) -> tuple[Tensor, Tensor]:
        """The layer's tensors, made on first use after `like_k` [.., K, .., D]."""
        if layer not in self.k:
            for store, like in ((self.k, like_k), (self.v, like_v)):
                # Zeros, because masked places still enter a product with weight 0, and 0 * NaN is NaN.
                store[layer] = like.new_zeros(self.places, like.shape[1], self.room, like.shape[3])
        return self.k[layer], self.v[layer]

    def prepare(self, like: Store) -> None:
        """Make the tensors of every layer that `like` has, with its heads and sizes."""
        for layer in like.k:
            self.layer(layer, like.k[layer], like.v[layer])

    def move(self, moves: Moves, used: int) -> None:
        """Copy the first `used` tokens of some places to others."""
        if not moves:
            return
        used = whole_blocks(used)
        sources, targets = (list(column) for column in zip(*moves, strict=True))
        for store in (self.k, self.v):
            for tensor in store.values():
                tensor[targets, :, :used] = tensor[sources, :, :used]

    def grow(self, room: int, keep: int) -> None:
        """Make room for `room` tokens in each place, keeping the contents of the first `keep` places."""
        room = whole_blocks(room)
        for store in (self.k, self.v):
            for layer, old in store.items():
                new = old.new_zeros(old.shape[0], old.shape[1], room, old.shape[3])
                new[:keep, :, : self.room] = old[:keep]
                store[layer] = new
        self.room = room


class Cache:
    """The prompts of the groups in use and the answers of the branches in use.

    With `fixed` there is room for the longest answer from the start, so that no tensor ever changes its address.
    """

    def __init__(
        self, *, groups: int, branches: int, longest_prompt: int, max_new_tokens: int, fixed: bool = False
    ) -> None:
        self.prompts = Store(groups, longest_prompt)
        self.answers = Store(branches, max_new_tokens if fixed else min(GROWTH, max_new_tokens))
        self.prompt_lengths: list[int] = []
        self.max_new_tokens = max_new_tokens

    def make_room(self, tokens: int, branches: int) -> None:
        """Have room for `tokens` answer tokens, keeping what the first `branches` slots hold."""
        if tokens > self.answers.room:
            larger = self.answers.room + max(GROWTH, self.answers.room // 8)
            self.answers.grow(min(max(tokens, larger), self.max_new_tokens), branches)

    def retire(self, slot_moves: Moves, group_moves: Moves, groups_left: int, used: int) -> None:
        """Follow the scheduler after branches have ended."""
        self.answers.move(slot_moves, used)
        self.prompts.move(group_moves, max(self.prompt_lengths, default=0))
        for source, target in group_moves:
            self.prompt_lengths[target] = self.prompt_lengths[source]
        del self.prompt_lengths[groups_left:]


def whole_blocks(tokens: int) -> int:
    """The room that so many tokens take."""
    return -(-tokens // BLOCK) * BLOCK


def compiled(k: Tensor, v: Tensor) -> Kernels | None:
    """What decodes with such keys and values, and so decides in which order they are kept; None is torch."""
    return kernels_for(k, k.shape[-1]) if k.shape[-1] == v.shape[-1] else None


def write_prompt(store: Store, layer: int, place: int, k: Tensor, v: Tensor) -> None:
    """Keep keys and values of a prompt: k, v [1, K, P, D]."""
    store_k, store_v = store.layer(layer, k, v)
    kernels = compiled(k, v)
    if kernels is not None:
        kernels.keep(k[0], v[0], store_k[place], store_v[place])
    else:
        store_k[place, :, : k.shape[2]] = k[0]
        store_v[place, :, : v.shape[2]] = v[0]


def write_tokens(store: Store, layer: int, at: int | Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Append one token to each of the first n places: k, v [1, K, n, D]; at: its position, one for all or [n]."""
    store_k, store_v = store.layer(layer, k, v)
    n = k.shape[2]
    slots = slice(n) if isinstance(at, int) else torch.arange(n, device=k.device)
    store_k[slots, :, at] = k[0].transpose(0, 1)
    store_v[slots, :, at] = v[0].transpose(0, 1)
    return store_k, store_v
