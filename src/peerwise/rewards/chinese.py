"""Chinese numerals: 二百四十七万, 三分之二, 百分之二十五, 零点五, 两个半, and digits with 万 or 亿.

Knows numerals only; what unit follows is not looked at, except that 千 of 千米 and the like is no thousand.
"""

from __future__ import annotations

import re
from fractions import Fraction

_DIGIT = {char: value for value, char in enumerate("零一二三四五六七八九")} | {"〇": 0, "两": 2}
_SMALL = {"十": 10, "百": 100, "千": 1000}
_LARGE = {"万": 10**4, "亿": 10**8}
_EQUIVALENTS = str.maketrans(
    dict(zip("壹贰叁肆伍陆柒捌玖拾佰仟萬億貳參陸兩點負", "一二三四五六七八九十百千万亿二三六两点负", strict=True))
    | {"俩": "两", "仨": "三", "廿": "二十", "卅": "三十"}
)
LONGEST = 60
"""Characters beyond which nothing is one number."""

# 千 may begin a unit (千米, 千克) instead of ending a number; no number begins with 万 or 亿.
_NO_UNIT = "(?![米克瓦卡帕])"
_RUN = rf"(?![万亿])(?:千{_NO_UNIT}|[零〇一二两三四五六七八九十百万亿])+"
_WHOLE = re.compile(_RUN)
_NUMBER = re.compile(rf"({_RUN}(?:点[零〇一二三四五六七八九]+)?)([万亿]*)")
_ANY = rf"(?:\d{{1,20}}(?:\.\d{{1,20}})?|{_RUN}(?:点[零〇一二三四五六七八九]+)?)"
_FRACTION = re.compile(rf"(?:({_ANY})又)?({_ANY})分之({_ANY})")
_SCALED = re.compile(rf"(\d{{1,20}}(?:\.\d{{1,20}})?)\s*((?:[百万亿]|千{_NO_UNIT})+)")
_AND_HALF = re.compile(rf"({_ANY})个半")
_HALF = re.compile(r"(?:一半|半(?=个|小时|天|年|月|米|千米|公里|千克|公斤|斤|吨|升|元|块|圈|分钟|杯|瓶|只|张|$))")


def leading_number(text: str) -> tuple[Fraction, str] | None:
    """The number in Chinese numerals that `text` starts with and what follows it; None when it starts with none.

    Digits count only where they are part of such a numeral: 3.5万, 5分之3, 3个半.
    """
    text = text.translate(_EQUIVALENTS)
    if match := _AND_HALF.match(text):
        return _any(match[1]) + Fraction(1, 2), "个" + text[match.end() :]
    if match := _FRACTION.match(text):
        return _fraction(match, text[match.end() :])
    if match := _SCALED.match(text):
        value = Fraction(match[1])
        for char in match[2]:
            value *= {**_SMALL, **_LARGE}[char]
        return value, text[match.end() :]
    if match := _HALF.match(text):
        return Fraction(1, 2), text[match.end() :]
    if match := _NUMBER.match(text):
        value = _decimal(match[1])
        for char in match[2]:
            value *= _LARGE[char]
        return value, text[match.end() :]
    return None


def whole_number(text: str) -> int | None:
    """The whole number that all of `text` is, in digits or numerals; None when it is none."""
    if text.isascii() and text.isdigit() and len(text) <= LONGEST:
        return int(text)
    return int(_whole(text)) if len(text) <= LONGEST and _WHOLE.fullmatch(text) else None


def _fraction(match: re.Match[str], rest: str) -> tuple[Fraction, str] | None:
    whole, bottom, top = match.groups()
    denominator = _any(bottom) if bottom not in _SMALL else Fraction(_SMALL[bottom])
    return ((_any(whole) if whole else 0) + _any(top) / denominator, rest) if denominator else None


def _any(text: str) -> Fraction:
    return Fraction(text) if text[0].isascii() else _decimal(text)


def _decimal(text: str) -> Fraction:
    whole, _, fraction = text.partition("点")
    digits = "".join(str(_DIGIT[char]) for char in fraction)
    return _whole(whole) + (Fraction(int(digits), 10 ** len(digits)) if digits else 0)


def _whole(text: str) -> Fraction:
    """Sections of four digits between 万 and 亿; a 万 section is multiplied again by a following 亿.

    A digit that ends the number right behind a mark of a hundred or more counts tenths of it: 一百五 is 150.
    """
    if all(char in _DIGIT for char in text):
        return Fraction(int("".join(str(_DIGIT[char]) for char in text)))
    total = section = digit = 0
    mark = last = 1
    for char in text:
        mark, last = last, {**_SMALL, **_LARGE}.get(char, 1)
        if char in _DIGIT:
            digit = _DIGIT[char]
        elif char in _SMALL:
            section, digit = section + (digit or 1) * _SMALL[char], 0
        elif char == "亿":
            total, section, digit = (total + section + digit) * _LARGE[char], 0, 0
        else:
            total, section, digit = total + (section + digit) * _LARGE[char], 0, 0
    return Fraction(total + section + digit * (mark // 10 if mark >= 100 else 1))
