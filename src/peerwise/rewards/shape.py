"""The form of a completion apart from its content: is the answer in an explicit form, are there steps.

Each is a function of the text alone, in [0, 1] or None where it does not apply; whether the answer is right is not
known here.
"""

from __future__ import annotations

import re

from peerwise.rewards.extract import EXPLICIT, extract

FULL_STEPS = 3
"""This many different reasoning steps count as full."""

_SEGMENT_END = re.compile(r"\n|(?<=[。；;!！])|(?<=[.?])\s")
_EQUATION = re.compile(r"[\d)}%a-z][ $]{0,3}=[ $]{0,3}[-−\d\\(.a-z$]")
_MARK = re.compile(
    r"[ \t*#>-]{0,6}(?:step\s?\d|\d{1,2}[.)、]\s?[^\d\s]"
    r"|first|second|third|next|then|finally|therefore|since|because|so\b|thus"
    r"|第[一二三四五六七八九十\d]{1,2}步|步骤|首先|其次|然后|接着|最后|因为|由于|所以|因此|故)",
    re.IGNORECASE,
)
_ANSWER_ONLY = re.compile(
    r"[\s$*#]{0,8}(?:(?:so|thus|therefore|所以|因此|故)[,，]? ?)?(?:the )?(?:final )?"
    r"(?:answer is|answer:|答案|<answer>|\\f?boxed|####)",
    re.IGNORECASE,
)


def form(text: str) -> float | None:
    """1 when the text itself says what its answer is (tag, box, marker or statement), else 0; None for empty text."""
    return float(extract(text).rule in EXPLICIT) if text.strip() else None


def steps(text: str) -> float | None:
    """Different reasoning steps (an equation, or a marker such as "Step 2", "then", 首先), 3 or more being 1.

    The line that states the answer is no step, and a step that is repeated counts once. None for empty text.
    """
    if not text.strip():
        return None
    segments = {" ".join(segment.split()) for segment in _SEGMENT_END.split(text)}
    return min(1.0, sum(map(_is_step, segments)) / FULL_STEPS)


def _is_step(segment: str) -> bool:
    if _ANSWER_ONLY.match(segment):
        return False
    return bool(_EQUATION.search(segment) or _MARK.match(segment))
