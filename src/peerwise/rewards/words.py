"""Answers in words: names, yes and no, days of the week, and the letters of a choice.

Decides by spelling, capitals and articles apart, and by one short table of words that mean the same in both languages.
"""

from __future__ import annotations

import re

_WORDS = re.compile(r"[A-Za-z][A-Za-z'-]{3,}|[A-Za-z][A-Za-z'.-]*(?:,? [A-Za-z][A-Za-z'-]*)+|no|on|up|in|it")
_CJK = re.compile(r"[\u4e00-\u9fff]")
_CJK_MATHS = re.compile(r"[\d=<>\\+*/^]|根号|全体实数|一切实数|实数集|空集")
_MATHS_WORDS = re.compile(r"(?:all |the )?(?:real numbers|reals)|(?:the )?empty set", re.IGNORECASE)
_NAMES = re.compile(
    r"\\[A-Za-z]+|(?<![A-Za-z])(?:a?(?:sin|cos|tan)h?|arc(?:sin|cos|tan)|cot|sec|csc|log|exp|sqrt|det|gcd|lcm|max|min|mod|inf"
    r"|oo|and|or|theta|alpha|beta|gamma|delta|lambda|omega|begin|end)(?![A-Za-z])|(?:b|p|v|B|V|small)?matrix|array"
)
_FUNCTION = re.compile(r"(?:a?(?:sin|cos|tan)h?|arc(?:sin|cos|tan)|cot|sec|csc|log|ln|exp) [A-Za-z]$")
_LETTERS = re.compile(r"[A-Za-z]{3,}")
_VARIABLES = re.compile(r"[abc]+|[xyz]+|[mnpq]+|[A-Z]{1,4}")
_CHOICE = re.compile(
    r"\(?([A-Ja-j])\)?"
    r"|([A-J](?:(?:[、,， ]{0,2}|,? and |和)[A-J]){1,9})|([A-J])(?:[:)]|\.(?!\d)) ?\S.*|\(([A-J])\) ?\S.*"
)
_CIRCLED = re.compile("[❶-❿]")
_CIRCLED_ROW = re.compile("[❶-❿](?:[、,和 ]{0,2}[❶-❿]){0,9}")
_WITH_VALUE = re.compile(r"(?:[A-J][:.)]|\([A-J]\)) ?(\S.*)")
_CHOICE_WORD = re.compile(r"(?:option|choice|answer|选项?) ?(?=\(?[A-J]\)?$)|(?<=[A-J])选?项$", re.IGNORECASE)
_AND = re.compile(r" and |[,、和与]| & ")
_ARTICLE = re.compile(r"(?:the|an?) (?=\w)")
_SAME = """
yes, 是, 是的; no, 否, 不是; true, 对, 正确; false, 错, 错误; odd, 奇数; even, 偶数; prime, 质数, 素数, prime number
composite, 合数, composite number; no solution, no solutions, 无解; no real solution, no real solutions, 无实数解
does not exist, dne, 不存在; impossible, 不可能; increasing, 递增; decreasing, 递减; monday, 星期一, 周一, 礼拜一
tuesday, 星期二, 周二, 礼拜二; wednesday, 星期三, 周三, 礼拜三; thursday, 星期四, 周四, 礼拜四
friday, 星期五, 周五, 礼拜五; saturday, 星期六, 周六, 礼拜六; sunday, 星期日, 星期天, 周日, 周天, 礼拜天
infinity, \\infty, +\\infty, 无穷大, 正无穷
"""
_ROWS = [row.strip().split(", ") for row in re.split(r"[;\n]", _SAME.strip())]
_CANONICAL = {name: row[0] for row in _ROWS for name in row}


def choice(text: str) -> str | None:
    """The letters of a single or multiple choice, sorted; None when a plain `text` is none."""
    if _CIRCLED_ROW.fullmatch(text):
        return "".join(sorted(set(_CIRCLED.findall(text))))
    match = _CHOICE.fullmatch(_CHOICE_WORD.sub("", text))
    if match is None:
        return None
    return "".join(sorted(set(re.findall("[A-J]", next(filter(None, match.groups())).replace("and", "").upper()))))


def value_of_choice(text: str) -> str | None:
    """What stands behind the letter of a choice ("(C) 24" -> "24"); None when nothing does."""
    match = _WITH_VALUE.fullmatch(text)
    return match[1] if match else None


def is_words(text: str) -> bool:
    """Whether a plain text is a name or phrase rather than mathematics."""
    if _CJK.search(text) and not _CJK_MATHS.search(text):
        return True
    if _MATHS_WORDS.fullmatch(text):
        return False
    if _WORDS.fullmatch(text) and not _FUNCTION.match(text):
        return True
    rest = _NAMES.sub(" ", text)
    return any(not _VARIABLES.fullmatch(word) for word in _LETTERS.findall(rest))


def same(one: str, other: str) -> bool:
    """Whether two texts say the same; the members of a row ("red and blue") may change places."""
    return sorted(_members(one)) == sorted(_members(other))


def _members(text: str) -> list[str]:
    return [_canonical(part) for part in _AND.split(text) if part.strip()]


def _canonical(text: str) -> str:
    text = re.sub(r"[\s\"'《》「」]+", " ", text.casefold()).strip(" .,!;:。！；：")
    text = _ARTICLE.sub("", text, count=1) if _ARTICLE.match(text) else text
    text = re.sub(r"(?<!\w) | (?!\w)", "", text)
    return _CANONICAL.get(text, text)
