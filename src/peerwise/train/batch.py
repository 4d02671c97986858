"""Groups of ids into micro-batches by a token budget, whole groups where they fit.

A group that is larger than the budget is split, and each part computes the prompt again; the gradient is the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from peerwise.models.forward import PackedGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Some completions of one group. `rows` are their places among all sequences of the batch."""

    group: PackedGroup
    rows: tuple[int, ...]


def micro_batches(groups: Sequence[PackedGroup], budget: int, *, skip: Sequence[bool]) -> Iterator[list[Part]]:
    """Batches of parts of at most `budget` tokens each, about equally large: the largest decides what memory they take.

    One completion with its prompt always goes through.

    Args:
        groups: all groups of the update; rows are numbered through them in order.
        budget: tokens of one forward, prompts included.
        skip: [groups] True leaves a group out. Rows keep their numbers.
    """
    parts = list(_parts(groups, budget, skip))
    total = sum(part.group.num_tokens for part in parts)
    share = total / max(1, math.ceil(total / budget))
    batch: list[Part] = []
    used = before = full = 0
    for part in parts:
        # A part goes where its middle falls when the row is cut into equal shares.
        middle = before + used + part.group.num_tokens / 2
        if batch and (used + part.group.num_tokens > budget or middle >= share * (full + 1)):
            yield batch
            batch, used, before, full = [], 0, before + used, full + 1
        batch.append(part)
        used += part.group.num_tokens
    if batch:
        yield batch


def _parts(groups: Sequence[PackedGroup], budget: int, skip: Sequence[bool]) -> Iterator[Part]:
    row = 0
    for group, skipped in zip(groups, skip, strict=True):
        first, tokens = 0, len(group.prompt)
        for i, completion in enumerate(group.completions):
            if i > first and tokens + len(completion) > budget and not skipped:
                yield _part(group, row, first, i)
                first, tokens = i, len(group.prompt)
            tokens += len(completion)
        if not skipped:
            yield _part(group, row, first, len(group.completions))
        row += len(group.completions)


def _part(group: PackedGroup, row: int, start: int, end: int) -> Part:
    part = PackedGroup(prompt=group.prompt, completions=group.completions[start:end])
    return Part(group=part, rows=tuple(range(row + start, row + end)))
