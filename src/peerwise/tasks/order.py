"""The order in which training problems, or pairs, are met: a pure function of the seed and the position in the stream.

A run that is resumed needs its position and nothing else. Knows nothing of steps or batches.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache
from typing import Generic, TypeVar

from peerwise.errors import RequestError

Item = TypeVar("Item")


class Order(Generic[Item]):
    """An endless stream over one or more sets of problems, or of whatever else is learned from.

    Each set is met in epochs: every problem once, in a new permutation each time. Several sets are interleaved so that
    in the first n problems each has its share of n by weight, to within 1 (Tijdeman, The chairman assignment problem,
    1980).

    Example:
        Order([gsm8k, math], [2, 1], seed=0).take(0, 8)
    """

    def __init__(self, sets: Sequence[Sequence[Item]], weights: Sequence[float], *, seed: int) -> None:
        if not sets or len(sets) != len(weights) or not all(sets) or min(weights) <= 0:
            raise RequestError(
                f"{len(sets)} sets of {[len(s) for s in sets]} problems with weights {list(weights)}: "
                "expected at least one set, none empty, and a positive weight for each"
            )
        self._sets = [tuple(problems) for problems in sets]
        self._shares = [weight / sum(weights) for weight in weights]
        self._seed = seed
        self._schedule: list[tuple[int, int]] = []
        self._counts = [0] * len(sets)
        self._permutation = lru_cache(maxsize=4 * len(sets))(self._permute)

    def take(self, position: int, count: int) -> list[Item]:
        """The problems at stream positions [position, position + count)."""
        return [self._at(i) for i in range(position, position + count)]

    def epoch(self, position: int) -> float:
        """How many times over the problems of all sets together have been met before `position`."""
        return position / sum(map(len, self._sets))

    def _at(self, position: int) -> Item:
        which, index = (0, position) if len(self._sets) == 1 else self._scheduled(position)
        epoch, place = divmod(index, len(self._sets[which]))
        return self._sets[which][self._permutation(which, epoch)[place]]

    def _permute(self, which: int, epoch: int) -> list[int]:
        order = list(range(len(self._sets[which])))
        random.Random(f"{self._seed}/order/{which}/{epoch}").shuffle(order)
        return order

    def _scheduled(self, position: int) -> tuple[int, int]:
        """(set, index in that set's own stream) at a position; the schedule is made from 0 on and kept."""
        while len(self._schedule) <= position:
            which = self._next(len(self._schedule) + 1)
            self._schedule.append((which, self._counts[which]))
            self._counts[which] += 1
        return self._schedule[position]

    def _next(self, n: int) -> int:
        """The set that is n-th: among those that are far enough behind, the one that must come soonest."""
        slack = 1 / (2 * len(self._sets) - 2)
        behind = [share * n - met for share, met in zip(self._shares, self._counts, strict=True)]
        due = [k for k, lag in enumerate(behind) if lag >= slack - 1e-9]
        return min(due, key=lambda k: ((1 - slack - behind[k]) / self._shares[k], k))
