"""The named parts of a rubric: each a number for one judged answer, or None where it does not apply.

Knows neither weights nor steps of training, and judges no answer itself.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from peerwise.records import Completion, Problem
from peerwise.rewards import language, shape

COSINE_RIGHT = (2.0, 1.0)
"""A right answer's worth at length 0 and at the longest (r_0^c, r_L^c in the paper): short is better."""
COSINE_WRONG = (-10.0, 0.0)
"""A wrong answer's worth at length 0 and at the longest (r_0^w, r_L^w): thinking on is better."""
COSINE_EXCEEDED = -10.0
"""The worth of an answer that reached the longest length (r_e), right or wrong."""
BUFFER_SHARE = 5
"""Soft overlong: the cost begins this fraction, one fifth, of the longest length before it."""
MOST_FOR_INTERMEDIATE = 0.5
MOST_FOR_A_WRONG_ANSWER = 0.9
"""`shaped` never pays a wrong answer like a right one, whatever it holds on the way."""

_NUMBER = re.compile(r"\d+(?:[,，]\d{3})*(?:\.\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One answer with the verdict on it, all that a part may look at."""

    problem: Problem
    completion: Completion
    correct: bool
    extracted: str | None = None
    rule: str | None = None
    longest: int | None = None
    """Tokens that an answer may have; `length` and `cosine` need it."""
    tests: float | None = None
    """What running its program was worth; None where none was run."""
    parts: Mapping[str, float | None] = field(default_factory=dict)
    """What else the judge of programs measured."""
    failed: str | None = None


def correct(judged: Judged) -> float:
    """1 right, 0 wrong."""
    return float(judged.correct)


def levels(judged: Judged) -> float:
    """1 right; 0.2 wrong, in form, with steps; 0.1 steps without a stated answer; 0 wrong, in form, no steps;
    -0.5 neither form nor steps; -1 empty."""
    form, steps = shape.form(judged.completion.text), shape.steps(judged.completion.text)
    if form is None:
        return -1.0
    if judged.correct:
        return 1.0
    if form:
        return 0.2 if steps else 0.0
    return 0.1 if steps else -0.5


def shaped(judged: Judged) -> float:
    """min(1, base + 0.3 format + 0.2 steps); the base is 1 for a right answer, else what `intermediate` says.

    A wrong answer earns at most MOST_FOR_A_WRONG_ANSWER.
    """
    base = 1.0 if judged.correct else intermediate(judged) or 0.0
    form, steps = shape.form(judged.completion.text) or 0.0, shape.steps(judged.completion.text) or 0.0
    return min(1.0 if judged.correct else MOST_FOR_A_WRONG_ANSWER, base + 0.3 * form + 0.2 * steps)


def intermediate(judged: Judged) -> float | None:
    """0.5 times the share of the values in the problem's meta["intermediate"] that stand in the text.

    Numbers are compared as numbers (1,200 = 1200.0) and never found within longer ones; other values are looked for as
    text, without regard to case and spacing. None where the problem gives no values.
    """
    given = judged.problem.meta.get("intermediate")
    values = given if isinstance(given, list | tuple) else [] if given is None else [given]
    if not values:
        return None
    numbers = {_plain(match) for match in _NUMBER.findall(judged.completion.text)}
    words = " ".join(judged.completion.text.split()).casefold()
    found = sum(_is_found(" ".join(str(value).split()).casefold(), numbers, words) for value in values)
    return MOST_FOR_INTERMEDIATE * found / len(values)


def length(judged: Judged) -> float:
    """0 up to four fifths of the longest length, from there falling linearly to -1 at it and beyond.

    Source: DAPO (Yu et al. 2025), eq. 13, "soft overlong punishment".
    """
    longest = _longest(judged)
    buffer = max(1, longest // BUFFER_SHARE)
    return max(-1.0, min(0.0, (longest - buffer - len(judged.completion.token_ids)) / buffer))


def cosine(judged: Judged) -> float:
    """Correctness and length in one: from the worth at length 0 to that at the longest along half a cosine.

    Source: Yeo et al. 2025 (arXiv 2502.03373), section 4, with the values given there.
    """
    longest, tokens = _longest(judged), len(judged.completion.token_ids)
    if tokens >= longest:
        return COSINE_EXCEEDED
    at_nothing, at_longest = COSINE_RIGHT if judged.correct else COSINE_WRONG
    return at_longest + (at_nothing - at_longest) * (1 + math.cos(math.pi * tokens / longest)) / 2


def _longest(judged: Judged) -> int:
    assert judged.longest is not None, "a rubric with parts of length is built with the longest length"
    return judged.longest


def _plain(number: str) -> str:
    """A number's digits in one form: no separators, no leading or closing zeros."""
    whole, _, fraction = number.replace(",", "").replace("，", "").partition(".")
    return f"{whole.lstrip('0') or '0'}.{fraction.rstrip('0')}"


def _is_found(value: str, numbers: set[str], words: str) -> bool:
    unsigned = value.removeprefix("-")
    if _NUMBER.fullmatch(unsigned):
        return _plain(unsigned) in numbers
    return bool(value) and re.search(rf"(?<![0-9a-z]){re.escape(value)}(?![0-9a-z])", words) is not None


def _language(judged: Judged) -> float | None:
    prompt = "\n".join(message["content"] for message in judged.problem.messages if message["role"] == "user")
    return language.consistency(prompt, judged.completion.text)


class Part(NamedTuple):
    """How a part is computed, and what it says of a bare right answer in the form that its prompt asks for."""

    value: Callable[[Judged], float | None]
    best: float | None = None
    """None where a bare answer need not reach the most."""


PARTS: dict[str, Part] = {
    "correct": Part(correct, 1.0),
    "levels": Part(levels, 1.0),
    "shaped": Part(shaped, 1.0),
    "intermediate": Part(intermediate),
    "format": Part(lambda judged: shape.form(judged.completion.text), 1.0),
    "steps": Part(lambda judged: shape.steps(judged.completion.text)),
    "length": Part(length),
    "cosine": Part(cosine),
    "repetition": Part(lambda judged: shape.repetition(judged.completion.text)),
    "language": Part(_language),
    "programs": Part(lambda judged: judged.tests, 1.0),
}
LENGTH_PARTS = frozenset(("length", "cosine"))
"""Parts that measure against the longest length."""
