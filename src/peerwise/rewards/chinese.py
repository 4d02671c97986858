"""Chinese numerals: 二百四十七万, 三分之二, 百分之二十五, 零点五, and digits with 万 or 亿.

Knows numerals only; what unit follows is not looked at, except that 千 of 千米 and the like is no thousand.
"""

from __future__ import annotations

import re
from fractions import Fraction

_DIGIT = {char: value for value, char in enumerate("零一二三四五六七八九")} | {"〇": 0, "两": 2, "俩": 2}
_SMALL = {"十": 10, "百": 100, "千": 1000}
_LARGE = {"万": 10**4, "亿": 10**8}
# 千 may begin a unit (千米, 千克) instead of ending a number; no number begins with 万 or 亿.
_RUN = r"(?![万亿])(?:千(?![米克瓦卡帕])|[零〇一二两三四五六七八九十百万亿])+"
_NUMBER = re.compile(rf"负?({_RUN}(?:点[零〇一二三四五六七八九]+)?)([万亿]*)")
_FRACTION = re.compile(rf"(?:({_RUN})又)?({_RUN})分之({_RUN}(?:点[零〇一二三四五六七八九]+)?)")
_SCALED = re.compile(r"(\d{1,20}(?:\.\d{1,20})?)\s*((?:[百万亿]|千(?![米克瓦卡帕]))+)")


def leading_number(text: str) -> tuple[Fraction, str] | None:
    """The number in Chinese numerals that `text` starts with and what follows it; None when it starts with none."""
    if match := _SCALED.match(text):
        value = Fraction(match[1])
        for char in match[2]:
            value *= {**_SMALL, **_LARGE}[char]
        return value, text[match.end() :]
    if match := _FRACTION.match(text):
        whole, bottom, top = match.groups()
        denominator = _whole(bottom) if bottom != "百" else 100
        if denominator:
            return _whole(whole or "零") + _decimal(top) / denominator, text[match.end() :]
    if match := _NUMBER.match(text):
        value = _decimal(match[1])
        for char in match[2] or "":
            value *= _LARGE[char]
        return (-value if text.startswith("负") else value), text[match.end() :]
    return None


def _decimal(text: str) -> Fraction:
    whole, _, fraction = text.partition("点")
    digits = "".join(str(_DIGIT[char]) for char in fraction)
    return _whole(whole) + (Fraction(int(digits), 10 ** len(digits)) if digits else 0)


def _whole(text: str) -> Fraction:
    """Sections of four digits between 万 and 亿; a 万 section is multiplied again by a following 亿."""
    if all(char in _DIGIT for char in text):
        return Fraction(int("".join(str(_DIGIT[char]) for char in text)))
    total = section = digit = 0
    for char in text:
        if char in _DIGIT:
            digit = _DIGIT[char]
        elif char in _SMALL:
            section, digit = section + (digit or 1) * _SMALL[char], 0
        elif char == "亿":
            total, section, digit = (total + section + digit) * _LARGE[char], 0, 0
        else:
            total, section, digit = total + (section + digit) * _LARGE[char], 0, 0
    return Fraction(total + section + digit)
