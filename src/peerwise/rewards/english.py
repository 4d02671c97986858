"""English number words: seven, twenty-one, two hundred and five, one half, three and a quarter.

Knows numbers only; an ordinal (third, twenty-first) counts only as the lower part of a fraction.
"""

from __future__ import annotations

import re
from fractions import Fraction

_UNITS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_DECADES = "twenty thirty forty fifty sixty seventy eighty ninety"
_SMALL = {word: value for value, word in enumerate(_UNITS.split())}
_TENS = {word: 10 * value for value, word in enumerate(_DECADES.split(), 2)}
_LARGE = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_PARTS = {"half": 2, "halve": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7}
_PARTS |= {"eighth": 8, "ninth": 9, "tenth": 10, "hundredth": 100, "thousandth": 1000}
_WORD = re.compile(r"([A-Za-z]+)(?:[ -]+|(?=[^A-Za-z])|$)")
MOST_WORDS = 16


def leading_number(text: str) -> tuple[Fraction, str] | None:
    """The number in words that `text` starts with and what follows it; None when it starts with none."""
    words = _words(text)
    if not words or words[0][0] not in _STARTS:
        return None
    value, used = _whole([word for word, _ in words])
    part, more = _part([word for word, _ in words[used:]], value if used else None)
    if part is not None:
        value, used = part, used + more
    return (value, text[words[used - 1][1] :]) if used else None


def leading_part(text: str) -> tuple[Fraction, str] | None:
    """The " and a half" that follows a number, and what comes after it; None when `text` starts otherwise."""
    words = _words(text.lstrip())
    offset = len(text) - len(text.lstrip())
    names = [word for word, _ in words[:3]]
    if len(names) == 3 and names[0] == "and" and names[1] in ("a", "one") and names[2] in _PARTS:
        return Fraction(1, _PARTS[names[2]]), text[offset + words[2][1] :]
    return None


def _words(text: str) -> list[tuple[str, int]]:
    """The words that `text` starts with, plural s taken off, each with the place where it ends."""
    found: list[tuple[str, int]] = []
    at = 0
    while len(found) < MOST_WORDS and (match := _WORD.match(text, at)):
        word = match[1].lower()
        found.append((word if word in _SMALL else word.removesuffix("s"), match.end(1)))
        at = match.end()
    return found


def _whole(words: list[str]) -> tuple[Fraction, int]:
    """The whole number at the start of `words` and how many of them it takes; (0, 0) without one."""
    total = current = used = 0
    room = 10**15
    if len(words) > 1 and words[0] == "a" and (words[1] == "hundred" or words[1] in _LARGE):
        words = ["one", *words[1:]]
    for place, word in enumerate(words):
        following = words[place + 1] if place + 1 < len(words) else ""
        if word in _SMALL and room > 9 and not (current % 100 and (current % 10 or _SMALL[word] > 9)):
            current, room = current + _SMALL[word], 1
        elif word in _TENS and not current % 100:
            current, room = current + _TENS[word], 10
        elif word == "hundred" and 0 < current < 100:
            current, room = 100 * current, 100
        elif word in _LARGE and current:
            total, current, room = total + current * _LARGE[word], 0, 10**15
        elif word == "and" and used and (following in _SMALL or following in _TENS) and words[used - 1] not in _SMALL:
            continue
        else:
            break
        used = place + 1
    return Fraction(total + current), used


def _part(words: list[str], count: Fraction | None) -> tuple[Fraction | None, int]:
    """The value of a fraction in words whose upper part is `count`, or of a part that is added to it."""
    if count is None:
        if words[:1] == ["half"]:
            return Fraction(1, 2), 1
        if words[:1] == ["a"] and len(words) > 1 and words[1] in _PARTS:
            return Fraction(1, _PARTS[words[1]]), 2
        return None, 0
    if words and words[0] in _PARTS:
        return count / _PARTS[words[0]], 1
    if len(words) > 2 and words[0] == "and":
        above = Fraction(1) if words[1] == "a" else Fraction(_SMALL.get(words[1], 0))
        if above and words[2] in _PARTS:
            return count + above / _PARTS[words[2]], 3
    return None, 0


_STARTS = frozenset(_SMALL) | frozenset(_TENS) | {"half", "a"}
