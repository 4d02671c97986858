"""The form of a completion apart from its content: is the answer in an explicit form, are there steps, is it a loop.

Each is a function of the text alone, within [-1, 1], or None where it does not apply; whether the answer is right is
not known here.
"""

from __future__ import annotations

import re

from peerwise.rewards.extract import EXPLICIT, extract

FULL_STEPS = 3
"""This many different reasoning steps count as full."""

NGRAM = 8
"""This many words or signs in a row, found again, are a repetition. Shorter ones recur in any worked solution."""

# A word of letters, cut after 16 so that one endless word repeats too; any other sign, a digit or 字, stands alone.
_UNIT = re.compile(r"[A-Za-z]{1,16}|\S")
# The point after a number that opens a line ("2. Add them") ends nothing.
_SEGMENT_END = re.compile(r"\n|(?<=[。；;!！])|(?<=[.?])(?<!\n\d\.)(?<!\n\d\d\.)\s")
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
    lines = "\n".join(["", *(line.strip() for line in text.splitlines())])
    segments = {" ".join(segment.split()) for segment in _SEGMENT_END.split(lines)}
    return min(1.0, sum(map(_is_step, segments)) / FULL_STEPS)


def repetition(text: str) -> float | None:
    """Minus the share of the runs of NGRAM words or signs that occurred before: 0 says nothing twice, -1 is a loop.

    None where the text is too short to hold one. Source: the n-gram penalty of Yeo et al. 2025 (arXiv 2502.03373),
    charged to the answer and not to single tokens.
    """
    units = _UNIT.findall(text)
    count = len(units) - NGRAM + 1
    if count < 1:
        return None
    different = len({tuple(units[start : start + NGRAM]) for start in range(count)})
    return different / count - 1


def _is_step(segment: str) -> bool:
    if _ANSWER_ONLY.match(segment):
        return False
    return bool(_EQUATION.search(segment) or _MARK.match(segment))
