"""Units after a number: which words are one, and which spellings mean the same.

Never converts between units. What could be a variable (7x, 5k) is not a unit.
"""

from __future__ import annotations

import re

_SAME = r"""
    mm millimeter millimetre 毫米 | cm centimeter centimetre 厘米 | m meter metre 米 | km kilometer kilometre 千米 公里
    g gram 克 | kg kilogram 千克 公斤 | t ton tonne 吨 | oz ounce | lb lbs | ml milliliter millilitre 毫升
    l liter litre 升 | ft foot feet 英尺 | in inch inche 英寸 | mile mi 英里 | mph | degree 度 ^\circ | unit 单位
    s sec second 秒 | min minute 分钟 | h hr hour 小时 | day 天 日 | week 周 星期 | month 月 个月 | year 年
    $ dollar usd 美元 | cent 美分 | € euro eur 欧元 | £ pound gbp 英镑 | ¥ yuan rmb cny 元 人民币
"""
_CANONICAL = {name: names.split()[0] for names in re.split(r"[|\n]", _SAME) for name in names.split()}
KNOWN = frozenset(_CANONICAL.values())
CURRENCIES = {"US$": "$", "$": "$", "€": "€", "£": "£", "¥": "¥", "￥": "¥", "USD": "$", "EUR": "€", "RMB": "¥"}

# Words that make what precedes them something else than a counted number.
_NOT_UNITS = re.compile(
    r"and|or|to|plus|minus|times|over|mod|pi|sin|cos|tan|log|ln|exp|sqrt|dozen|half|halves|factorial|squared|cubed"
    r"|is|are|not|than|if|for|when|where"
)
_LATIN = re.compile(r"[A-Za-z$€£¥^\\][A-Za-z$€£¥.'()/ -]*(?:\^[23])?(?:/[A-Za-z]+)?")
_CJK = re.compile(r"[\u4e00-\u9fff]+(?:/[\u4e00-\u9fff]+)?")
_NOT_CJK = re.compile(r"[或和与到至加减乘除又分点第样共定起直般切些半]|[零一二三四五六七八九十百万亿]")
LONGEST_UNIT = 40


def canonical_unit(text: str, *, adjacent: bool) -> str | None:
    """One spelling for the unit `text`; "" for no unit, None when `text` is no unit at all.

    `adjacent`: it stood right behind the digits, where a single letter is more likely a variable.
    """
    text = text.strip().strip(".,;").strip()
    if not text:
        return ""
    if len(text) > LONGEST_UNIT:
        return None
    if _CJK.fullmatch(text):
        return _chinese(text)
    if text != "^\\circ" and (not _LATIN.fullmatch(text) or "\\" in text):
        return None
    words = text.casefold().replace("square ", "square_").replace("sq. ", "square_").replace("cubic ", "cubic_").split()
    if len(words) > 5 or any(map(_NOT_UNITS.fullmatch, words)):
        return None
    bare = words[0].split("^")[0].split("/")[0]
    variable = len(bare) in (1, 2) and bare not in _CANONICAL
    if variable or (adjacent and len(bare) == 1 and bare.isalpha() and bare == words[0]):
        return None
    return " ".join(_word(word) for word in words)


def _word(word: str) -> str:
    word = word.strip("().")
    power = ""
    if word.endswith(("^2", "^3")):
        word, power = word[:-2], word[-2:]
    for name, mark in (("square_", "^2"), ("cubic_", "^3")):
        if word.startswith(name):
            word, power = word.removeprefix(name), mark
    singular = word if word in _CANONICAL or len(word) < 4 or word.endswith("ss") else word.removesuffix("s")
    return _CANONICAL.get(singular, singular) + power


def _chinese(text: str) -> str | None:
    if _NOT_CJK.match(text) and text not in _CANONICAL and not text.startswith("分"):
        return None
    for name, mark in (("平方", "^2"), ("立方", "^3")):
        if text.startswith(name):
            rest = text.removeprefix(name)
            return _CANONICAL.get(rest, rest) + mark
    return _CANONICAL.get(text, text)


def compatible(one: str, other: str) -> bool:
    """Whether two canonical units may stand for the same: equal, one missing, or one an unknown unit's longer form."""
    if not one or not other or one == other:
        return True
    return not {one, other} & KNOWN and (one in other or other in one)
