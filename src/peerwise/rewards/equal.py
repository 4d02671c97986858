"""Whether two answers are the same: `equal(prediction, gold)`, the same both ways.

Numbers are compared exactly and here; units must agree when both sides give one. Choices, dates, times, ratios and
words are compared as such; shapes (lists, sets, tuples, intervals, matrices) part by part. Only what is left reaches a
worker process, under a deadline. Nothing never equals anything. Where graders differ, `policy` decides.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from peerwise.rewards import asking, forms, moments, numbers, quantities, relations, units, words
from peerwise.rewards.asking import Allowance
from peerwise.rewards.plain import plain
from peerwise.rewards.policy import DEFAULT, Policy

LONGEST = 2000
"""Characters beyond which answers are compared as text only."""
MOST_WORDS = 12
MOST_CJK = 40
"""A gold of more words, or more Chinese characters, is a solution rather than an answer."""

Rule = Literal[
    "nothing", "text", "too long", "number", "choice", "moment", "ratio", "base", "words", "form", "symbolic"
]

_CJK = re.compile(r"[\u4e00-\u9fff]")
_IN_BASE = re.compile(r"\(?(\d[\dA-Fa-f]*)\)?_\{?\(?(\d{1,2}|[a-z]{3,7})\)?\}?")
_DIGIT_GROUPS = re.compile(r"\d+(?: \d+)+|\d+(?:\.\d+){2,}")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether two answers are the same, the rule that decided, and whether time ran out on the way.

    Example:
        compare("0.5", "1/2") == Verdict(True, "number")
    """

    same: bool
    rule: Rule
    timed_out: bool = False


def equal(prediction: str | None, gold: str | None, *, policy: Policy = DEFAULT) -> bool:
    """Whether two answers are the same. None and empty text equal nothing, not even each other."""
    return compare(prediction, gold, policy=policy).same


def compare(prediction: str | None, gold: str | None, *, policy: Policy = DEFAULT) -> Verdict:
    """Whether two answers are the same, and by which rule; never raises, and ends within the deadline."""
    if prediction is None or gold is None:
        return Verdict(False, "nothing")
    one, other = plain(prediction), plain(gold)
    if not one.strip("$. ") or not other.strip("$. "):
        return Verdict(False, "nothing")
    allowance = Allowance(policy)
    same, rule = _decide(one, other, allowance)
    return Verdict(same, rule, allowance.ran_out)


def readable(answer: str) -> bool:
    """Whether an answer can be compared at all: it equals itself and is neither empty, nor prose, nor endless."""
    text = plain(answer)
    if len(text) > LONGEST or not equal(answer, answer):
        return False
    found = re.findall(r"[A-Za-z]{2,}", re.sub(r"\\[A-Za-z]+", " ", text))
    return len(found) <= MOST_WORDS and len(_CJK.findall(text)) <= MOST_CJK


def _same(one: str, other: str, allowance: Allowance) -> bool:
    return _decide(one, other, allowance)[0]


def _decide(one: str, other: str, allowance: Allowance) -> tuple[bool, Rule]:
    """The first rule that applies to both texts, and what it says."""
    left, right = numbers.read(one), numbers.read(other)
    if left and right:
        return quantities.same(left, right, allowance.policy), "number"
    if _text(one) == _text(other):
        return True, "text"
    if max(len(one), len(other)) > LONGEST:
        return False, "too long"
    if (found := _special(one, other, allowance)) is not None:
        return found
    return _same_form(one, other, allowance)


def _special(one: str, other: str, allowance: Allowance) -> tuple[bool, Rule] | None:
    """The rules for answers that are no mathematics; None when none of them applies."""
    policy = allowance.policy
    letters, other_letters = words.choice(one), words.choice(other)
    if letters and other_letters:
        return letters == other_letters, "choice"
    for text, rest in ((one, other), (other, one)):
        if (value := words.value_of_choice(text)) is not None and _same(plain(value), rest, allowance):
            return True, "choice"
    moment, other_moment = moments.read(one), moments.read(other)
    if moment and other_moment and moments.same(moment, other_moment):
        return True, "moment"
    if (found := quantities.same_ratio(one, other, policy)) is not None:
        return found, "ratio"
    if moment or other_moment:
        return False, "moment"
    bases = _IN_BASE.fullmatch(one), _IN_BASE.fullmatch(other)
    if any(bases):
        digits = [match[1].upper() if match else text for match, text in zip(bases, (one, other), strict=True)]
        radix = {numbers.parse(match[2]) for match in bases if match}
        return digits[0] == digits[1] and (policy.bare_base if not all(bases) else len(radix) == 1), "base"
    if any(_is_words(text) or _DIGIT_GROUPS.fullmatch(text) for text in (one, other)):
        return words.same(one, other), "words"
    return None


def _is_words(text: str) -> bool:
    """Whether a text, apart from the name it is given to and the unit behind it, is words."""
    return words.is_words(units.split_tail(relations.split_outside(text, "=")[-1])[0])


def _text(text: str) -> str:
    """Without blanks that separate nothing: 2 \\pi is 2\\pi, but 1 2 is not 12."""
    return re.sub(r"(?<!\w)(?<!\d,) | (?!\w)", "", text)


def _same_form(one: str, other: str, allowance: Allowance) -> tuple[bool, Rule]:
    left, right = forms.parse(one), forms.parse(other)
    if {left.kind, right.kind} == {"list", "()"}:
        left, right = forms.coordinates(left), forms.coordinates(right)
    if _another_equation(one, left, other, right):
        both_atoms = left.kind == right.kind == "atom" and not (words.is_words(left.name) or words.is_words(right.name))
        return (_same_atom(one, other, allowance), "symbolic") if both_atoms else (False, "form")
    if left.kind == right.kind == "atom":
        if _opened(one, left) or _opened(other, right):
            return _decide(left.parts[0], right.parts[0], allowance)
        return _same_atom(left.parts[0], right.parts[0], allowance), "symbolic"
    return _same_parts(left, right, allowance), "form"


def _another_equation(one: str, left: forms.Form, other: str, right: forms.Form) -> bool:
    """Whether two equations do not give the same thing a value, so that only the whole of them can be compared."""
    if left.name and right.name:
        return left.name != right.name
    return any(
        named.name and "=" in text and bare.parts == (text,)
        for named, bare, text in ((left, right, other), (right, left, one))
    )


def _opened(text: str, form: forms.Form) -> bool:
    """Whether an atom is less than the text it was read from: a name or a calculation was taken off."""
    return form.kind == "atom" and form.parts[0] != text


def _same_parts(one: forms.Form, other: forms.Form, allowance: Allowance) -> bool:
    kinds = {one.kind, other.kind}
    turned = allowance.policy.either_vector and all(re.fullmatch(r"matrix (1x\d+|\d+x1)", kind) for kind in kinds)
    if len(kinds) > 1 and kinds != {"list", "{}"} and not turned:
        return False

    def same(a: str, b: str) -> bool:
        return _same(a, b, allowance)

    parts, other_parts = ([*form.parts] if form.kind != "{}" else _distinct(form.parts, same) for form in (one, other))
    if len(parts) != len(other_parts):
        return False
    if one.ordered:
        return all(same(a, b) for a, b in zip(parts, other_parts, strict=True))
    return _matched(parts, other_parts, same)


def _distinct(parts: Sequence[str], same: Callable[[str, str], bool]) -> list[str]:
    """The members of a set, each once."""
    kept: list[str] = []
    for part in parts:
        if not any(same(part, earlier) for earlier in kept):
            kept.append(part)
    return kept


def _matched(parts: Sequence[str], others: Sequence[str], same: Callable[[str, str], bool]) -> bool:
    """Whether the parts can be paired off one to one, whichever order they are looked at in."""
    partner: dict[int, int] = {}

    def pair(i: int, tried: set[int]) -> bool:
        for j, other in enumerate(others):
            if j not in tried and same(parts[i], other):
                tried.add(j)
                if j not in partner or pair(partner[j], tried):
                    partner[j] = i
                    return True
        return False

    return all(pair(i, set()) for i in range(len(parts)))


def _same_atom(one: str, other: str, allowance: Allowance) -> bool:
    if len({len(relations.split_outside(text, "=")) for text in (one, other)}) > 1:
        return False
    expressions = quantities.expressions(one, other, allowance.policy)
    if expressions is None:
        return False
    return asking.same_expression(*expressions, allowance, quantities.tolerance(one, other, allowance.policy))
