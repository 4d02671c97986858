"""Whether two answers are the same: `equal(prediction, gold)`, the same both ways.

Numbers are compared exactly and here; a percentage equals its hundredths and its bare figure (25 % is 0.25 and 25),
units must agree when both sides give one. Shapes (lists, sets, tuples, intervals, matrices) are compared part by part.
Only what is left reaches a worker process, under a deadline. Nothing never equals anything.
"""

from __future__ import annotations

import logging
import re
import time
from functools import cache

from peerwise.rewards import forms, numbers
from peerwise.rewards.plain import plain
from peerwise.rewards.units import compatible
from peerwise.sandbox.pool import DeadlineExceeded, Pool, WorkerFailed

DEADLINE_S = 3.0
"""For one comparison, all its parts together."""
LONGEST = 2000
"""Characters beyond which answers are compared as text only."""
MOST_WORDS = 12
MOST_CJK = 40
"""A gold of more words, or more Chinese characters, is a solution rather than an answer."""

_log = logging.getLogger(__name__)
_CHOICE = re.compile(r"\(?([A-Ja-j])\)?|([A-J](?:[、,， ]{0,2}[A-J]){1,9})|([A-J])[:.)] ?\D.*")
_WORDS = re.compile(r"[A-Za-z][A-Za-z'-]{3,}|[A-Za-z][A-Za-z'-]*(?: [A-Za-z][A-Za-z'-]*)+")
_CJK = re.compile(r"[\u4e00-\u9fff]")
_IN_BASE = re.compile(r"\d+_(?:\d|\{\d+\})")
_DIGIT_GROUPS = re.compile(r"\d+(?:[: ]\d+)+|\d+(?:\.\d+){2,}")
_NAMED = re.compile(r"([A-Za-z](?:_\w)?|[A-Za-z]\([A-Za-z]\)) ?(?:=|\\in ) ?([^=]+)")


def equal(prediction: str | None, gold: str | None) -> bool:
    """Whether two answers are the same. None and empty text equal nothing, not even each other."""
    if prediction is None or gold is None:
        return False
    one, other = plain(prediction), plain(gold)
    if not one.strip("$. ") or not other.strip("$. "):
        return False
    return _same(one, other, time.monotonic() + DEADLINE_S)


def readable(answer: str) -> bool:
    """Whether an answer can be compared at all: it equals itself and is neither empty, nor prose, nor endless."""
    text = plain(answer)
    if len(text) > LONGEST or not equal(answer, answer):
        return False
    words = re.findall(r"[A-Za-z]{2,}", re.sub(r"\\[A-Za-z]+", " ", text))
    return len(words) <= MOST_WORDS and len(_CJK.findall(text)) <= MOST_CJK


def _same(one: str, other: str, end: float) -> bool:
    if _text(one) == _text(other):
        return True
    if max(len(one), len(other)) > LONGEST:
        return False
    left, right = numbers.read(one), numbers.read(other)
    if left and right:
        return _same_quantity(left, right)
    if (choice := _choice(one)) and (choice == _choice(other)):
        return True
    if any(_is_words(text) or _IN_BASE.fullmatch(text) or _DIGIT_GROUPS.fullmatch(text) for text in (one, other)):
        return _text(one).casefold() == _text(other).casefold()
    return _same_form(forms.parse(one), forms.parse(other), end)


def _text(text: str) -> str:
    """Without blanks that separate nothing: 2 \\pi is 2\\pi, but 1 2 is not 12."""
    return re.sub(r"(?<!\w) | (?!\w)", "", text)


def _same_quantity(one: numbers.Quantity, other: numbers.Quantity) -> bool:
    if not compatible(one.unit, other.unit):
        return False
    if one.percent != other.percent:
        percent, figure = (one, other) if one.percent else (other, one)
        return figure.value in (percent.value, percent.value * 100)
    return one.value == other.value


def _choice(text: str) -> str | None:
    """The letters of a single or multiple choice, sorted; None when `text` is none."""
    match = _CHOICE.fullmatch(text)
    return "".join(sorted(set(re.findall("[A-J]", (match[1] or match[2] or match[3]).upper())))) if match else None


def _is_words(text: str) -> bool:
    return bool(_WORDS.fullmatch(text)) or (bool(_CJK.search(text)) and not re.search(r"[\d=<>或和、实]", text))


def _same_form(one: forms.Form, other: forms.Form, end: float) -> bool:
    braces = {one.kind, other.kind} == {"list", "{}"}
    if (one.kind != other.kind and not braces) or len(one.parts) != len(other.parts):
        return False
    if one.kind == "atom":
        return _same_atom(one.parts[0], other.parts[0], end)
    if one.ordered:
        return all(_same(a, b, end) for a, b in zip(one.parts, other.parts, strict=True))
    left = list(other.parts)
    for part in one.parts:
        twin = next((candidate for candidate in left if _same(part, candidate, end)), None)
        if twin is None:
            return False
        left.remove(twin)
    return True


def _same_atom(one: str, other: str, end: float) -> bool:
    named_one, named_other = _NAMED.fullmatch(one), _NAMED.fullmatch(other)
    if named_one and named_other and named_one[1] == named_other[1]:
        return _same(named_one[2], named_other[2], end)
    if named_one and "=" not in other:
        return _same(named_one[2], other, end)
    if named_other and "=" not in one:
        return _same(one, named_other[2], end)
    if ("=" in one) != ("=" in other):
        return False
    return _symbolic(one, other, end)


@cache
def _workers() -> Pool:
    return Pool(2)


def _symbolic(one: str, other: str, end: float) -> bool:
    """Ask a worker. Running out of time or failing to compare is "not equal", and logged."""
    first, second = sorted((one, other))  # the same question whichever way round it is asked
    try:
        return bool(_workers().run("peerwise.rewards.symbolic:same", (first, second), max(0.0, end - time.monotonic())))
    except (DeadlineExceeded, WorkerFailed) as error:
        _log.warning("counted as different: %.80r and %.80r (%s)", one, other, error)
        return False
