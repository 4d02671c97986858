"""Units after a number: which words are one, which spellings mean the same, and what converts into what.

What could be a variable (7x, 5k) is not a unit.
"""

from __future__ import annotations

import re
from fractions import Fraction

_SAME = r"""
    mm millimeter millimetre 毫米 | cm centimeter centimetre 厘米 公分 | dm decimeter decimetre 分米
    m meter metre 米 | km kilometer kilometre 千米 公里 | nm nanometer | mg milligram 毫克
    g gram 克 | kg kgs kilogram kilo 千克 公斤 | t ton tonne 吨 | oz ounce 盎司 | lb lbs 磅 | 斤 | 两
    ml milliliter millilitre 毫升 | l liter litre 升 | ft foot feet 英尺 | in inch inche 英寸 | yd yard 码
    mile mi 英里 | mph | kph kmh | degree deg 度 ^\circ | radian rad 弧度 | unit 单位 | gal gallon | 亩 | 公顷 hectare
    s sec secs second 秒 秒钟 | min mins minute 分钟 | h hr hrs hour 小时 时 钟头 | day 天 日 | week wk wks 周 星期
    month 月 个月 | year yr yrs 年
    $ dollar buck usd 美元 | cent ¢ 美分
    € euro eur 欧元 | £ gbp 英镑 | ₹ rupee rs inr | ¥ yuan rmb cny 元 人民币 块 块钱 元钱
    jiao 角 毛 毛钱 | w watt 瓦 | kw kilowatt 千瓦 | j joule | n newton | hz hertz | v volt | celsius | fahrenheit
"""
_CANONICAL = {name: names.split()[0] for names in re.split(r"[|\n]", _SAME) for name in names.split()}
_PHRASES = {"degree celsius": "celsius", "degree fahrenheit": "fahrenheit", "degree c": "celsius", "mph": "mile/h"}
_PHRASES |= {"kph": "km/h", "kmh": "km/h", "degree f": "fahrenheit", "摄氏度": "celsius"}
_DEGREES = {"^\\circ": "degree", "^\\circc": "celsius", "^\\circf": "fahrenheit"}
KNOWN = frozenset(_CANONICAL.values())
CURRENCIES = {"US$": "$", "$": "$", "€": "€", "£": "£", "¥": "¥", "￥": "¥", "USD": "$", "EUR": "€", "RMB": "¥"}
CURRENCIES |= {"₹": "₹", "Rs.": "₹", "Rs": "₹", "INR": "₹"}
_EITHER = {"pound": {"£", "lb"}, "分": {"min", "分钱", "point"}, "degree": {"celsius", "fahrenheit"}}
"""Names that stand for several units."""
_SIZES = {
    "length": {"mm": "0.001", "cm": "0.01", "dm": "0.1", "m": "1", "km": "1000", "in": "0.0254", "ft": "0.3048"}
    | {"yd": "0.9144", "mile": "1609.344"},
    "mass": {"mg": "0.001", "g": "1", "kg": "1000", "t": "1000000", "oz": "28.349523125", "lb": "453.59237"}
    | {"斤": "500", "两": "50"},
    "volume": {"ml": "1", "l": "1000"},
    "time": {"s": "1", "min": "60", "h": "3600", "day": "86400", "week": "604800"},
    "dollars": {"cent": "0.01", "$": "1"},
    "yuan": {"分钱": "0.01", "jiao": "0.1", "¥": "1"},
}
_SIZE = {unit: (kind, Fraction(size)) for kind, sizes in _SIZES.items() for unit, size in sizes.items()}

# Words that make what precedes them something else than a counted number.
_NOT_UNITS = re.compile(
    r"and|or|to|plus|minus|times|over|mod|pi|sin|cos|tan|log|ln|exp|sqrt|dozen|half|halves|factorial|squared|cubed"
    r"|is|are|not|than|if|for|when|where|am|pm|a\.m|p\.m|o'clock|but|cap|choose|st|nd|rd|th"
)
_LATIN = re.compile(r"[A-Za-z$€£¥¢][A-Za-z$€£¥¢.'()/ -]*(?:\^[23])?(?:/[A-Za-z]+(?:\^[23])?)?")
_CJK = re.compile(r"[\u4e00-\u9fff]+(?:[/每][\u4e00-\u9fff]+)?")
_NOT_CJK = re.compile(r"[或和与到至加减乘除又分点第样共定起直般切些半比成折舍多几来余]|[零一二三四五六七八九十百万亿]")
_RATE = re.compile(r" ?/ ?| per | an? (?=hour$|minute$|day$|week$|month$|year$)|每")
_TAIL = re.compile(
    r"(.*\S) ((?:square |cubic |sq\.? )?[A-Za-z]{2,12}(?:\^[23])?(?:(?: per |/)[A-Za-z]{1,12})?)"
    r"|(.*[^\u4e00-\u9fff])([\u4e00-\u9fff]{1,8})"
)
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
    if text.startswith("(") and text.endswith(")"):
        return _in_parentheses(text[1:-1])
    if degrees := _DEGREES.get(text.casefold().replace(" ", "")):
        return degrees
    if _CJK.fullmatch(text):
        return _rate(text) if not _begins_otherwise(text) else None
    if not _LATIN.fullmatch(text):
        return None
    text = re.sub(r"\b(?:square|sq\.?) ", "square_", re.sub(r"\b(?:cubic|cu\.?) ", "cubic_", text.casefold()))
    words = text.split()
    if len(words) > 5 or any(_NOT_UNITS.fullmatch(word.strip("().")) for word in words):
        return None
    bare = words[0].split("^")[0].split("/")[0]
    variable = len(bare) in (1, 2) and bare not in _CANONICAL
    if variable or (adjacent and len(bare) == 1 and bare.isalpha() and bare == words[0]):
        return None
    return _rate(text)


def _in_parentheses(text: str) -> str | None:
    """A unit given as a remark, 24（元）; other remarks are none."""
    unit = canonical_unit(text, adjacent=False)
    short = bool(_CJK.fullmatch(text)) and len(text) <= 2
    return unit if unit and (short or measured(unit)) else None


def split_tail(text: str) -> tuple[str, str]:
    """An expression and the known unit behind it ("4\\pi cm" -> "4\\pi", "cm"); unit "" when there is none."""
    if len(text) <= 200 and (match := _TAIL.fullmatch(text)):
        head, tail = match[1] or match[3], match[2] or match[4]
        unit = canonical_unit(tail, adjacent=False)
        if unit and measured(unit):
            return head, unit
    return text, ""


def measured(unit: str) -> bool:
    """Whether a canonical unit is one of measure (cm, km/h, m^2) and no counted noun."""
    return unit.split("^")[0] in KNOWN or "/" in unit or unit in ("celsius", "fahrenheit")


def compatible(one: str, other: str) -> bool:
    """Whether two canonical units may stand for the same: equal, one missing, or one a counted noun's longer form."""
    if not one or not other or one == other:
        return True
    if other in _EITHER.get(one, ()) or one in _EITHER.get(other, ()):
        return True
    for price, currency in ((one, other), (other, one)):
        if currency in CURRENCIES.values() and price.startswith(currency + "/"):
            return True
    if measured(one) or measured(other):
        return False
    if _CJK.fullmatch(one) and _CJK.fullmatch(other):
        return one in other or other in one
    short, long = sorted((one.split(), other.split()), key=len)
    return set(short) <= set(long)


def ratio(one: str, other: str) -> Fraction | None:
    """How many `other` one `one` is (100 for "m", "cm"); None when they do not convert."""
    first, _, power = one.partition("^")
    second, _, other_power = other.partition("^")
    if power != other_power or first not in _SIZE or second not in _SIZE or _SIZE[first][0] != _SIZE[second][0]:
        return None
    return Fraction((_SIZE[first][1] / _SIZE[second][1]) ** int(power or 1))


def part_of(one: str, other: str) -> Fraction | None:
    """How many `other` one smaller `one` is (1/60 for "min", "h"); None when it is no part of one."""
    for name in sorted(_EITHER.get(one, {one})):
        for whole in sorted(_EITHER.get(other, {other})):
            found = ratio(name, whole)
            if found is not None and found < 1:
                return found
    return None


def _rate(text: str) -> str:
    parts = _RATE.split(text, maxsplit=1)
    if len(parts) == 2 and all(parts):
        return "/".join(map(_phrase, parts))
    return _phrase(text)


def _phrase(text: str) -> str:
    for name, mark in (("平方", "^2"), ("立方", "^3")):
        if text.startswith(name) and text != name:
            return _CANONICAL.get(text.removeprefix(name), text.removeprefix(name)) + mark
    if text.startswith("个") and text[1:] in _CANONICAL:
        text = text[1:]
    phrase = " ".join(_word(word) for word in text.split())
    return _PHRASES.get(phrase, phrase)


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


def _begins_otherwise(text: str) -> bool:
    """Whether Chinese text behind a number goes on with the number or with a sentence."""
    return bool(_NOT_CJK.match(text)) and text not in _CANONICAL and not re.match(r"分(?!之)|千[米克瓦]|两$", text)
