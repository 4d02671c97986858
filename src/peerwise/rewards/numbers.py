"""Text to an exact number: integers, decimals, fractions, percent, units, full width, number words in two languages.

Reads what a person would call one number, perhaps with a unit; anything else (1,2 or 7x or 1:30) is None. Never
evaluates an expression and never rounds. Linear in the length of the text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from peerwise.rewards import chinese, english
from peerwise.rewards.plain import plain
from peerwise.rewards.units import CURRENCIES, canonical_unit, part_of

LONGEST = 400
"""Characters beyond which text is not one number; also keeps integers far from Python's digit limit."""
LARGEST_EXPONENT = 400

_DIGITS = (
    r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d{1,2}(?:,\d{2})+,\d{3}(?!\d)|[1-9]\d{0,2}(?: \d{3})+(?![\d/.])"
    r"|[1-9]\d{0,2}(?:['_]\d{3})+(?!\d)|\d+)"
)
_DECIMAL = rf"(?:{_DIGITS}(?:\.\d*)?|\.\d+)"
_POWER = r"10\^(?:\{[+-]?\d{1,4}\}|[+-]?\d{1,4})"
_TIMES = r" ?(?:\\times|\\cdot|[*×·x]) ?"
_DECIMAL_PATTERN = re.compile(rf"{_DECIMAL}(?:[eE][+-]?\d{{1,4}})?")
_SCIENTIFIC = re.compile(rf"(?:({_DECIMAL}){_TIMES})?10\^\{{?([+-]?\d{{1,4}})\}}?")
_REPEATING = re.compile(r"(\d*)\.(\d*)(?:\\overline\{(\d+)\}|\((\d+)\))")
_LATEX_FRACTION = re.compile(r"(\d+)? ?\\frac(?:\{(-?\d+(?:\.\d+)?)\}|(\d))(?:\{(-?\d+(?:\.\d+)?)\}|(\d))")
_SLASH = re.compile(rf"(?:(\d+) )?({_DECIMAL}) ?/ ?(-?{_DECIMAL})")
_HEAD = re.compile(
    r"(?:"
    r"\d+ \d+/\d+"
    r"|(?:\d+ ?)?\\frac(?:\{-?[\d.]+\}|\d)(?:\{-?[\d.]+\}|\d)"
    r"|\d*\.\d*\\overline\{\d+\}"
    r"|\d*\.\d*\(\d+\)"
    rf"|(?:{_DECIMAL}{_TIMES})?{_POWER}"
    rf"|{_DECIMAL} ?/ ?-?{_DECIMAL}"
    rf"|{_DECIMAL}(?:[eE][+-]?\d+)?"
    r")"
)
_INTEGER = re.compile(r"-?(?:[1-9][0-9]{0,15}|0)")
_ABOUT = re.compile(
    r"(?:大?约|约等于|about|approximately|approx\.?|around|roughly|\\approx|≈)(?:为|是)? ?", re.IGNORECASE
)
_MINUS = re.compile(r"负|(?:minus|negative) ", re.IGNORECASE)
_ORDINAL = re.compile(r"第(?=[\d零一二三四五六七八九十百])")
_EACH = re.compile(r"(每(?:小时|分钟|分|秒|天|年|人|个|千克|米))(.+)")
_DOTS = re.compile(r"(?<![\d.])\d{1,3}(?:(?:\.\d{3}){2,}(?:,\d{1,2})?|(?:\.\d{3})+,\d{1,2})(?![\d.,])")
_JOINED = re.compile(r"(?<=\d)又(?=\d+/\d|\\frac)")
_GROUPING = re.compile(r"\{([^{}]*)\}")
_PART = re.compile(r"(?<![\d.])(\d{1,9}(?:\.\d{1,9})?) ?([A-Za-z]{1,8}|(?:(?![又零])[\u4e00-\u9fff]){1,3})")
COMPOUND = re.compile(rf"{_PART.pattern}(?:(?:,? and |, ?| |又|零)?{_PART.pattern}){{1,3}}")
_PERCENT = re.compile(
    r"(?:\\?%|percent(?:age)?|per cent|pct)(?: (?:of|increase|decrease|chance|off|more|less)\b.*)?", re.I
)
_MULTIPLIERS = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12}


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number, whether it was written as a percentage, and its unit ("" when none was given).

    Example:
        read("35 %") == Quantity(Fraction(35, 100), True, "")
    """

    value: Fraction
    percent: bool
    unit: str


def parse(text: str) -> Fraction | None:
    """The number that `text` is, percent as hundredths and units left out; None when it is not one number."""
    quantity = read(text)
    return None if quantity is None else quantity.value


def read(text: str) -> Quantity | None:
    """The number that `text` is together with its unit; None when it is not one number."""
    return _read(text) if len(text) <= LONGEST else None


@lru_cache(maxsize=8192)
def _read(text: str) -> Quantity | None:
    if _INTEGER.fullmatch(text):
        return Quantity(Fraction(int(text)), False, "")
    text = plain(text)
    sign, text, currency = _opening(text)
    value, rest = _split_value(text)
    if value is None:
        return None
    percent = text.startswith("百分之")
    value = -value if sign == "-" else value
    adjacent, rest = not rest.startswith(" "), rest.strip()
    if more := english.leading_part(rest):
        value, rest = value + (more[0] if sign != "-" else -more[0]), more[1].strip()
    word, _, tail = rest.partition(" ")
    if word.casefold() in _MULTIPLIERS:
        value, rest = value * _MULTIPLIERS[word.casefold()], tail
    if _PERCENT.fullmatch(rest):
        return Quantity(value / 100, True, "")
    return _with_unit(value, percent, currency, rest, adjacent) or _compound(sign, text)


def _with_unit(value: Fraction, percent: bool, currency: str, rest: str, adjacent: bool) -> Quantity | None:
    unit = canonical_unit(rest, adjacent=adjacent)
    if unit is None and rest.endswith("半") and canonical_unit(rest[:-1], adjacent=adjacent):  # 三天半
        value, unit = value + Fraction(1, 2), canonical_unit(rest[:-1], adjacent=adjacent)
    return None if unit is None else Quantity(value, percent, unit or currency)


def _compound(sign: str, text: str) -> Quantity | None:
    """A quantity in falling units of one kind, 2 hours 30 minutes or 3元5角, in the first of them."""
    if not COMPOUND.fullmatch(text):
        return None
    total, unit = Fraction(0), ""
    for figure, name in _PART.findall(text):
        own = canonical_unit(name, adjacent=False)
        share = part_of(own, unit) if own and unit else Fraction(1)
        if not own or share is None:
            return None
        total, unit = total + Fraction(figure) * share, unit or own
    return Quantity(-total if sign == "-" else total, False, unit)


def _opening(text: str) -> tuple[str, str, str]:
    """Sign, the text from the first figure on, and the currency; what only groups or hedges is left out."""
    text = _ORDINAL.sub("", _ABOUT.sub("", text, count=1) if _ABOUT.match(text) else text, count=1)
    if match := _EACH.fullmatch(text):
        text = match[2] + match[1]
    if match := _GROUPING.fullmatch(text):
        text = match[1].strip()
    text = _JOINED.sub(
        " ", _DOTS.sub(lambda match: match[0].replace(".", "").replace(",", "."), text, count=1), count=1
    )
    sign, text = _sign(text)
    text, currency = _currency(text)
    if not sign:
        sign, text = _sign(text)
    return sign, text, currency


def _sign(text: str) -> tuple[str, str]:
    if word := _MINUS.match(text):
        return "-", text[word.end() :]
    return (text[0], text[1:].lstrip()) if text[:1] in ("+", "-") else ("", text)


def _currency(text: str) -> tuple[str, str]:
    for mark, unit in CURRENCIES.items():
        if text.startswith(mark):
            return text[len(mark) :].lstrip(), unit
    return text, ""


def _split_value(text: str) -> tuple[Fraction | None, str]:
    """The number that `text` starts with and what follows it."""
    spoken = chinese.leading_number(text) if not text.isascii() else english.leading_number(text)
    if spoken is not None:
        return spoken
    bare = text.replace("(", "").replace(")", "")
    if text != bare and re.fullmatch(r"\(*-?\d+\)*/\(*-?\d+\)*|\(-?[\d.,]+\)", text):
        sign, bare = _sign(bare)
        value, rest = _split_value(bare)
        return (-value if value is not None and sign == "-" else value), rest
    head = _HEAD.match(text)
    if head is None:
        return None, text
    return _value(head.group()), text[head.end() :]


def _value(text: str) -> Fraction | None:
    """The value of text that is exactly one unsigned number without a unit."""
    if match := _DECIMAL_PATTERN.fullmatch(text):
        return _decimal(text)
    if match := _SLASH.fullmatch(text):
        whole, top, bottom = match.groups()
        return _mixed(whole, _decimal(top), _decimal(bottom))
    if match := _LATEX_FRACTION.fullmatch(text):
        whole, top, top_digit, bottom, bottom_digit = match.groups()
        return _mixed(whole, Fraction(top or top_digit), Fraction(bottom or bottom_digit))
    if match := _SCIENTIFIC.fullmatch(text):
        return _scaled(_decimal(match[1] or "1"), int(match[2]))
    if match := _REPEATING.fullmatch(text):
        return _repeating(match[1], match[2], match[3] or match[4])
    return None


def _decimal(text: str) -> Fraction | None:
    mantissa, _, exponent = re.sub("[,' _]", "", text).lower().partition("e")
    return _scaled(Fraction(mantissa.removesuffix(".")), int(exponent or 0))


def _scaled(value: Fraction | None, exponent: int) -> Fraction | None:
    if value is None or abs(exponent) > LARGEST_EXPONENT:
        return None
    return value * Fraction(10) ** exponent


def _mixed(whole: str | None, top: Fraction | None, bottom: Fraction | None) -> Fraction | None:
    if top is None or not bottom or (whole and (top < 0 or bottom < 0)):
        return None
    return int(whole or 0) + top / bottom


def _repeating(whole: str, head: str, cycle: str) -> Fraction:
    """0.1(6) = (16 - 1) / 90: all digits less those before the cycle, over nines and zeros."""
    digits, before = int((whole or "0") + head + cycle), int((whole or "0") + head)
    return Fraction(digits - before, (10 ** len(cycle) - 1) * 10 ** len(head))
