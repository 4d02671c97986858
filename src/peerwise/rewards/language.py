"""Whether a completion is written in the language of its prompt, told by the script of its words.

Tells Chinese from English and other scripts from each other, not English from French. Knows nothing of the answer.
"""

from __future__ import annotations

import re
from collections import Counter

# What is no prose in any language: commands of LaTeX with their names, tags, fenced code.
_NOT_PROSE = re.compile(r"\\[A-Za-z]+|</?\w+>|```.*?(?:```|\Z)", re.DOTALL)
# One sign counts as a word where scripts set no spaces. A single Latin letter is a variable, not a word.
_WORD = re.compile(
    r"(?P<latin>[A-Za-zÀ-ɏ]{2,})"
    r"|(?P<chinese>[一-鿿㐀-䶿぀-ヿ])"
    r"|(?P<korean>[가-힣]+)"
    r"|(?P<cyrillic>[Ѐ-ӿ]{2,})"
    r"|(?P<arabic>[؀-ۿ]{2,})"
    r"|(?P<devanagari>[ऀ-ॿ]{2,})"
    r"|(?P<thai>[฀-๿]+)"
)


def consistency(prompt: str, text: str) -> float | None:
    """Share of the words of `text` that are in the script most of `prompt` is in; None where either has no word.

    Source: the language consistency reward of DeepSeek-R1 (2025), section 2.3.2.

    >>> consistency("小明有三个苹果", "first 加 then 减")
    0.5
    """
    asked, answered = _scripts(prompt), _scripts(text)
    if not asked or not answered:
        return None
    (language, _), *_ = asked.most_common(1)
    return answered[language] / answered.total()


def _scripts(text: str) -> Counter[str]:
    return Counter(str(word.lastgroup) for word in _WORD.finditer(_NOT_PROSE.sub(" ", text)))
