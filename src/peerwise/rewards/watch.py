"""Whether a reward says anything: looks at the first steps' scores for parts that never vary and parts that cancel.

Knows nothing of how scores are made.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from peerwise.records import Score


class Watch:
    """Fed each step's scores, it speaks at most once, when enough of them have been seen.

    Args:
        paid: the parts to look at, a scorer's `paid`; None looks at all.
        steps, samples: look no earlier than after so many of both.
    """

    def __init__(self, paid: frozenset[str] | None = None, *, steps: int = 5, samples: int = 100) -> None:
        self._paid, self._steps, self._samples = paid, steps, samples
        self._seen: dict[str, set[float]] = {}
        self._varied: set[str] = set()
        self._total_varied = self._is_done = False

    def look(self, scores: Sequence[Score]) -> str | None:
        """A warning about parts that were constant in all steps so far, or cancelled in each; None when there is none.

        A part or total varies when it has more than one value within a step, since that is all a step can learn from.
        """
        scores = [score for score in scores if score.failed is None]
        if self._is_done or not scores:
            return None
        self._steps, self._samples = self._steps - 1, self._samples - len(scores)
        for part in {part for score in scores for part in score.parts if self._paid is None or part in self._paid}:
            values = {value for score in scores if (value := score.parts.get(part)) is not None}
            self._seen.setdefault(part, set()).update(values)
            if len(values) > 1:
                self._varied.add(part)
        self._total_varied |= len({score.total for score in scores}) > 1
        self._is_done = self._steps <= 0 and self._samples <= 0
        return " ".join(self._findings()) or None if self._is_done else None

    def _findings(self) -> Iterable[str]:
        if self._varied and not self._total_varied:
            yield (
                f"The parts {', '.join(sorted(self._varied))} vary, but the total is the same for all samples: they "
                "cancel, and nothing is learned; change their weights."
            )
        for part in sorted(self._seen.keys() - self._varied):
            values = self._seen[part]
            if not values:
                yield f"The part {part} applied to no sample so far."
            else:
                value = f"{values.pop():g} for" if len(values) == 1 else "the same within every step for"
                yield f"The part {part} was {value} all samples so far; it teaches nothing."
