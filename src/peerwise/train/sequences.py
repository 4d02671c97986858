"""The answers of one batch of groups as tensors by row: what is followed, what is left out, what was found on the way.

Rows are numbered through all groups in order. Knows nothing of models, optimizers or micro-batches' sizes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from peerwise.algo.aggregate import token_weights
from peerwise.algo.presets import Method
from peerwise.models.forward import PackedGroup
from peerwise.records import Group
from peerwise.train.batch import Part


@dataclass(slots=True)
class Batch:
    """The sequences of one batch of groups as tensors. B sequences, one after the other over all groups."""

    groups: list[PackedGroup]
    lengths: Tensor  # [B] tokens of each sequence, on the CPU
    counted: Tensor  # [B] the same, 0 where a sequence is left out of loss and denominators
    advantages: list[Tensor]  # B times [T]
    sampled: list[Tensor]  # B times [T], the sampler's log-probs
    skip: list[bool]  # [groups] True where nothing can be learned
    first_stale: int  # the first row that the policy of an earlier step sampled; B where there is none
    old: dict[int, Tensor] = field(default_factory=dict)  # row -> [T] log-probs before the first update
    reference: dict[int, Tensor] = field(default_factory=dict)  # row -> [T]
    entropies: dict[int, Tensor] = field(default_factory=dict)  # row -> [T] before the first update, where needed

    def of(self, rows: Sequence[int], values: Sequence[Tensor] | dict[int, Tensor]) -> Tensor:
        """[M] the per-token values of some rows, one after the other."""
        return torch.cat([values[row] for row in rows])

    def keep_old(self, parts: Sequence[Part], logprobs: Tensor) -> None:
        """Cut [M] into rows: the ratio's denominators, for rows that have none yet."""
        found: dict[int, Tensor] = {}
        store(found, parts, logprobs)
        self.old = found | self.old

    def rows(self, group: int) -> range:
        """The sequences of one group."""
        start = sum(len(g.completions) for g in self.groups[:group])
        return range(start, start + len(self.groups[group].completions))


def make_batch(
    groups: Sequence[Group],
    advantages: Tensor | Sequence[Tensor],
    method: Method,
    *,
    keep_all: bool,
    stale: int,
    device: torch.device,
) -> Batch:
    """The batch of `train.step.policy_step`, whose arguments these are.

    Args:
        keep_all: groups whose advantages are all 0 are computed too.
    """
    completions = [c for group in groups for c in group.completions]
    lengths = torch.tensor([len(c.token_ids) for c in completions])
    if isinstance(advantages, Tensor):
        by_row = [a.expand(int(n)) for a, n in zip(advantages.flatten(), lengths, strict=True)]
    else:
        by_row = list(advantages)
    dropped = [method.uninformative != "keep" and not group.informative for group in groups]
    left_out = torch.tensor(
        [
            drop or (method.truncated == "mask" and c.finish == "length")
            for group, drop in zip(groups, dropped, strict=True)
            for c in group.completions
        ]
    )
    left_out |= ~counted_of(groups)
    batch = Batch(
        groups=packed_groups(groups),
        lengths=lengths,
        counted=torch.where(left_out, 0, lengths),
        advantages=[row.to(device) for row in by_row],
        sampled=[torch.tensor(c.logprobs, device=device) for c in completions],
        skip=dropped,
        first_stale=sum(len(group.completions) for group in groups[: len(groups) - stale]),
    )
    batch.old = {row: batch.sampled[row] for row in range(batch.first_stale, len(lengths))}
    for index, drop in enumerate(dropped):
        rows = batch.rows(index)
        nothing = not keep_all and not any(bool(batch.advantages[row].any()) for row in rows)
        batch.skip[index] = drop or nothing or not bool(batch.counted[list(rows)].any())
    return batch


def counted_of(groups: Sequence[Group]) -> Tensor:
    """[B] bool, False for answers whose reward failed: they are neither followed, nor corrected, nor compared with."""
    return torch.tensor([score.failed is None for group in groups for score in group.scores])


def packed_groups(groups: Sequence[Group]) -> list[PackedGroup]:
    """The ids of sampled groups."""
    return [
        PackedGroup(prompt=group.prompt_ids, completions=tuple(c.token_ids for c in group.completions))
        for group in groups
    ]


def store(target: dict[int, Tensor], parts: Sequence[Part], logprobs: Tensor) -> None:
    """Cut [M] into its rows and keep them."""
    lengths = [len(y) for part in parts for y in part.group.completions]
    pieces: Iterator[Tensor] = iter(torch.split(logprobs, lengths))
    for part in parts:
        for row in part.rows:
            target[row] = next(pieces)


def updates(
    batch: Batch, method: Method, max_new_tokens: int, count: int, seed: str
) -> Iterator[tuple[list[bool], Tensor]]:
    """For each optimizer step: the groups to leave out [groups], and the weight of each token of a sequence [B]."""
    order = list(range(len(batch.groups)))
    if count > 1:
        random.Random(seed).shuffle(order)
    for part in range(count):
        members = set(order[part::count])
        rows = [row for group in sorted(members) for row in batch.rows(group)]
        weights = torch.zeros(len(batch.lengths))
        weights[rows] = token_weights(batch.counted[rows], method.aggregation, fixed_length=max_new_tokens)
        yield [skipped or group not in members for group, skipped in enumerate(batch.skip)], weights
