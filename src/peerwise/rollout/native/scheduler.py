"""Which answers are being decoded and which wait. Pure bookkeeping: no tensors, no model.

Answers being decoded fill the slots 0 .. n-1 without gaps. When some end, the last ones move into their places, so
a step never computes an empty slot. The same is true of groups, whose prompts are kept while an answer needs them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from peerwise.records import Finish


@dataclass(slots=True)
class Branch:
    """One answer on its way. `request` and `sample` say whose it is; `group` is its prompt's place in the cache."""

    request: int
    sample: int
    group: int = -1
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: Finish | None = None


Place = TypeVar("Place")
Moves = list[tuple[int, int]]
"""(from, to) places whose contents move; targets and sources never overlap."""


class Scheduler:
    """Hands out slots in the order of requests and samples.

    Example:
        scheduler = Scheduler([8, 8], max_branches=12)   # two prompts, eight answers each
        new_requests, new_branches = scheduler.admit()    # both prompts, 8 + 4 branches
    """

    def __init__(self, samples: Sequence[int], max_branches: int) -> None:
        self.max_branches = max_branches
        self.waiting = deque(Branch(r, s) for r, count in enumerate(samples) for s in range(count))
        self.active: list[Branch] = []
        self.groups: list[int] = []  # request of each group place
        self._left = list(samples)  # answers of each request that have not ended

    def admit(self) -> tuple[list[int], list[Branch]]:
        """Fill the free slots. Returns the requests whose prompts must be computed now, and the new branches."""
        new_requests: list[int] = []
        new_branches: list[Branch] = []
        while self.waiting and len(self.active) < self.max_branches:
            branch = self.waiting.popleft()
            if branch.request not in self.groups:
                self.groups.append(branch.request)
                new_requests.append(branch.request)
            branch.group = self.groups.index(branch.request)
            self.active.append(branch)
            new_branches.append(branch)
        return new_requests, new_branches

    def retire(self) -> tuple[list[Branch], Moves, Moves]:
        """Take out finished branches. Returns them, the moves of slots, and the moves of group places."""
        finished = [branch for branch in self.active if branch.finish is not None]
        if not finished:
            return [], [], []
        ended = [slot for slot, branch in enumerate(self.active) if branch.finish is not None]
        slot_moves = _fill(self.active, ended)
        for branch in finished:
            self._left[branch.request] -= 1
        empty = [place for place, request in enumerate(self.groups) if self._left[request] == 0]
        group_moves = _fill(self.groups, empty)
        place_of = dict(group_moves)
        for branch in self.active:
            branch.group = place_of.get(branch.group, branch.group)
        return finished, slot_moves, group_moves


def _fill(places: list[Place], empty: Iterable[int]) -> Moves:
    """Close the gaps by moving contents from the end; shortens `places` and says what moved where."""
    gone = set(empty)
    kept = len(places) - len(gone)
    sources = [place for place in range(kept, len(places)) if place not in gone]
    targets = [place for place in range(kept) if place in gone]
    moves = list(zip(sources, targets, strict=True))
    for source, target in moves:
        places[target] = places[source]
    del places[kept:]
    return moves
