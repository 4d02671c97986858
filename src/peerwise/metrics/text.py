"""How texts and numbers are put for a person: hostile text made harmless, long text cut, durations, shares, verdicts.

Whoever shows what a model wrote, on a terminal or in a tracker, takes it through here. Writes nothing itself.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any

LINES_BEFORE_GAP, LINES_AFTER_GAP = 4, 2
CHARACTERS_BEFORE_GAP, CHARACTERS_AFTER_GAP = 160, 60

_HIDDEN_CATEGORIES = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def printable(text: str) -> str:
    """`text` with every character that a terminal would obey or hide spelled out, newlines kept.

    >>> printable("\\x1b[31mred")
    '\\\\x1b[31mred'
    """
    return "".join(_spelled(character) for character in text.expandtabs(4))


def clip(text: str) -> str:
    """The first and the last lines of a text, each shortened in its middle: the final answer is at the end."""
    lines = text.strip().split("\n")
    hidden = len(lines) - LINES_BEFORE_GAP - LINES_AFTER_GAP
    if hidden > 0:
        lines[LINES_BEFORE_GAP : LINES_BEFORE_GAP + hidden] = [f"… ({hidden} more lines)"]
    return "\n".join(clip_line(line) for line in lines)


def clip_line(line: str) -> str:
    """A line without its middle, where it is long."""
    if len(line) <= CHARACTERS_BEFORE_GAP + CHARACTERS_AFTER_GAP:
        return line
    return f"{line[:CHARACTERS_BEFORE_GAP]} … {line[-CHARACTERS_AFTER_GAP:]}"


def duration(seconds: float) -> str:
    """Seconds in the two units a person reads.

    >>> duration(3725)
    '1 h 02 min'
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def percent(share: float) -> str:
    """A share in percent, to a tenth.

    >>> percent(0.418)
    '41.8 %'
    """
    return f"{100 * share:.1f} %"


def number(value: Any, form: str) -> str:
    """A number in a format, or a dash where there is none."""
    return "-" if value is None else form.format(value)


def accuracy(record: Mapping[str, Any]) -> str:
    """The accuracy of an evaluation record with its interval, or a dash."""
    share, interval = record.get("accuracy"), record.get("interval")
    if share is None:
        return "-"
    return percent(share) + (f" [{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]" if interval else "")


def verdict(correct: bool, extracted: str | None) -> str:
    """Whether an answer is right, and what was read in it."""
    read = "no answer read" if extracted is None else f"read {clip_line(extracted)}"
    return f"{'right' if correct else 'wrong'}, {read}"


def _spelled(character: str) -> str:
    if character == "\n" or unicodedata.category(character) not in _HIDDEN_CATEGORIES:
        return character
    return character.encode("unicode_escape").decode("ascii")
