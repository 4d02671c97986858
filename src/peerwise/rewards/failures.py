"""The one policy for rewards that fail: count by reason, show the first, stop when too many do.

Knows nothing of what failed or how it was called.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable

from peerwise.errors import RewardError
from peerwise.rewards.calls import Failed

WINDOW = 1000
"""The share of failures is taken over about this many of the latest samples, so that a judge that dies late is seen."""
FEWEST = 4
"""Fewer failures than this never end a run, however small its batches are."""


class Failures:
    """Failures of one reward over a run.

    Args:
        most: share of the latest samples that may fail; 1 allows all.
        warn: is given one text, at the first failure.
    """

    def __init__(self, name: str, *, most: float, warn: Callable[[str], object]) -> None:
        self.counts: Counter[str] = Counter()
        """Reason -> samples that failed for it, over the whole run."""
        self._name, self._most, self._warn = name, most, warn
        self._batches: deque[list[int]] = deque()
        self._first = ""

    def begin(self, samples: int) -> None:
        """A batch of `samples` is about to be scored; they count as well until `add` says otherwise."""
        self._batches.append([samples, 0])
        while sum(size for size, _ in self._batches) - self._batches[0][0] >= WINDOW:
            self._batches.popleft()

    def add(self, problem: str, failed: Failed) -> None:
        """One sample of the batch failed. Raises RewardError when that is one too many."""
        self.counts[failed.reason] += 1
        self._batches[-1][1] += 1
        if not self._first:
            self._first = f"on problem {problem}: {failed.detail.splitlines()[-1]}"
            self._warn(
                f"reward {self._name} failed on problem {problem}; such samples are left out and counted, and only "
                f"this one is shown:\n{failed.detail}"
            )
        samples, count = map(sum, zip(*self._batches, strict=True))
        if count >= FEWEST and count > self._most * samples:
            reasons = ", ".join(f"{number} {reason}" for reason, number in self.counts.most_common())
            raise RewardError(
                f"reward {self._name} failed on {count} of the last {samples} samples, more than the {self._most:.0%} "
                f"that reward_failures allows; so far {reasons}; the first {self._first}"
            )
