"""Where reward, judge and gold disagree about an answer: the first places to look for a reward that is gamed, or for an
answer that the judge cannot read.

Looks at one group's answers as `samples` has them. Judges nothing itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_LONGEST_GOLD = 60
_CLOSING = " \t.。!)]}>$*\\`\"'"
"""What may stand behind an answer at the end of a line."""


def disagreements(answer: dict[str, Any], gold: str | None, group: Sequence[dict[str, Any]]) -> list[str]:
    """Names of what is at odds with an answer of a group; none for an answer whose reward failed.

    - "paid": it is wrong and earned at least as much as a right answer to the same problem.
    - "judged": the same extracted answer was judged otherwise in this group.
    - "gold": it counts as wrong, and its last line ends with the gold, letter for letter.
    """
    if answer["failed"] is not None:
        return []
    others = [other for other in group if other["failed"] is None and other["correct"] != answer["correct"]]
    found = []
    if not answer["correct"] and any(_earned(answer) >= _earned(other) for other in others):
        found.append("paid")
    if answer["extracted"] is not None and any(other["extracted"] == answer["extracted"] for other in others):
        found.append("judged")
    if not answer["correct"] and _ends_with(answer["text"], gold):
        found.append("gold")
    return found


def _earned(answer: dict[str, Any]) -> float:
    return float(answer["reward"] or 0.0)


def _ends_with(text: str, gold: str | None) -> bool:
    """Whether the text ends with the gold as a word of its own, commas within numbers and closing marks apart."""
    wanted = (gold or "").strip().replace(",", "")
    if not wanted or len(wanted) > _LONGEST_GOLD:
        return False
    ending = text.rstrip()[-4 * _LONGEST_GOLD :].rsplit("\n", 1)[-1].replace(",", "").rstrip(_CLOSING)
    if not ending.endswith(wanted.rstrip(_CLOSING) or wanted):
        return False
    before = ending[: len(ending) - len(wanted.rstrip(_CLOSING))][-1:]
    return not (before.isalnum() or before in {".", "-", "/", "_"})
