"""Correctness of a completion: extract its final answer once, compare it with the gold.

Knows neither what a wrong answer is worth nor how it was sampled.
"""

from __future__ import annotations

from peerwise.rewards.equal import equal
from peerwise.rewards.extract import extract


def judge(text: str, gold: str, *, last_number: bool = True) -> tuple[bool, str | None]:
    """(whether the final answer of `text` equals `gold`, that answer as written or None when there is none).

    `last_number`: the last number counts as the answer when the text states none.
    """
    extracted = extract(text, last_number=last_number).answer
    return equal(extracted, gold), extracted
