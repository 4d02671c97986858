"""Typography out of the way: one spelling for each character, wrapper and spacing command.

Changes how an answer is written, never what it says. Linear in the length of the text.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

_CHARACTERS = str.maketrans(
    {"−": "-", "–": "-", "—": "-", "－": "-", "∞": "\\infty ", "π": "\\pi ", "°": "^\\circ ", "º": "^\\circ "}
    | {"℃": "^\\circ C", "℉": "^\\circ F", "≤": "\\le ", "≥": "\\ge ", "≦": "\\le ", "≧": "\\ge ", "⩽": "\\le "}
    | {"⩾": "\\ge ", "≠": "\\ne ", "∪": "\\cup ", "∩": "\\cap ", "∈": "\\in ", "÷": "/", "∶": ":", "≈": "\\approx "}
    | {
        "\u200b": "",
        "\ufeff": "",
        "∅": "\\emptyset ",
        "±": "\\pm ",
        "∓": "\\mp ",
        "ℝ": "\\mathbb{R}",
        "∛": "\\sqrt[3] ",
    }
    # Marks of statements are no numbers, and the filled ones are not made plain digits of.
    | dict(zip("①②③④⑤⑥⑦⑧⑨⑩", "❶❷❸❹❺❻❼❽❾❿", strict=True))
    | {"√": "\\sqrt ", "“": '"', "”": '"', "‘": "'", "’": "'"}
)
_FRACTION = re.compile("[¼-¾⅐-⅞]")
_RAISED = re.compile("[⁰¹²³⁴-⁹⁺⁻ⁿ]+")
_LOWERED = re.compile("[₀-₉]+")
_TEXT = re.compile(
    r"(?:(?:(?<=[\d})])|(?<=\\circ))())?\\(?:text|textbf|textit|textrm|textnormal|textsf|mathrm|mathbf|mathit|mathsf|mbox|underline|boldsymbol|bm"
    r"|operatorname)"
    r"\s*\{([^{}]*)\}"
)
_DEEPEST_TEXT = 3
_COMMANDS = (
    (re.compile(r"\\(?:displaystyle|limits|left|right|[bB]igg?[lrm]?)(?![A-Za-z])"), ""),
    (re.compile(r"\\[dtc]frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"\\frac {1,3}(\d) {0,3}(\d)"), r"\\frac{\1}{\2}"),
    (
        re.compile(
            r"\\(?:text)?color ?\{[a-z]{1,12}\} ?|\\(?:tiny|small|normalsize|large|Large|LARGE|huge)(?![A-Za-z]) ?"
        ),
        "",
    ),
    (re.compile(r"\\pounds(?![A-Za-z]) ?"), "£"),
    (re.compile(r"\\!|\\(?:rm|bf|it)(?![A-Za-z]) ?"), ""),
    (re.compile(r"(?<=\d)(?:\\,|\\ |~)(?=\d{3}(?!\d))"), ","),
    (re.compile(r"(?<!\\)\\[,;: ]|\\q?quad(?![A-Za-z])|~"), " "),
    (re.compile(r"\\leq?(?:slant)?(?![A-Za-z]) ?"), r"\\le "),
    (re.compile(r"\\geq?(?:slant)?(?![A-Za-z]) ?"), r"\\ge "),
    (re.compile(r"\\neq?(?![A-Za-z]) ?"), r"\\ne "),
    (re.compile(r"\\lt(?![A-Za-z]) ?"), "<"),
    (re.compile(r"\\gt(?![A-Za-z]) ?"), ">"),
    (re.compile(r"\\varnothing(?![A-Za-z])"), r"\\emptyset"),
    (re.compile(r"\^\{ ?\\circ ?\}|\\degree(?![A-Za-z])"), r"^\\circ "),
    (re.compile(r"\{ ?([^{}\\]{1,40}?) ?\\over(?![A-Za-z]) ?([^{}\\]{1,40}?) ?\}"), r"\\frac{\1}{\2}"),
    (re.compile(r"\\dot\{(\d)\}(?:(\d{0,40})\\dot\{(\d)\})?"), r"\\overline{\1\2\3}"),
)
_ALWAYS = (
    (re.compile(r"(?<=\d)\{,\}(?=\d{3}(?!\d))"), ","),
    (re.compile(r"([_^])\{(\w)\}(?!\d)"), r"\1\2"),
    (re.compile(r"^\s*=(?![=<])\s*"), ""),
    (re.compile(r"(?<=\d)(\.\d{0,20}?)(?:(\d)\2{2,20}|(\d{2,6})\3{1,20})(?:\.{3}|\\[lc]?dots)"), r"\1\\overline{\2\3}"),
    (re.compile(r", ?\.{3} ?$"), r", \\ldots"),
    (re.compile(r" ?[,(] ?k ?\\in ?(?:\\mathbb ?)?\{?Z\}? ?\)?$"), ""),
    (re.compile(r"<=|=<"), r"\\le "),
    (re.compile(r">="), r"\\ge "),
    (re.compile(r"!="), r"\\ne "),
    (re.compile(r"\s+"), " "),
)
# Mathematics inside a longer answer: 2又$\\frac{1}{3}$; the dollars of $5 and $6 are no such pair.
_INLINE = re.compile(r"(?<![\\$])\$\$?(?=[^\s$])([^$]{0,200}?[^\s$\\])\$\$?(?![\d$])")
_ROOT_SIGN = re.compile(r"√ ?(\d+(?:\.\d+)?)")
_WRAPPERS = (
    ("$$", "$$"),
    ("$", "$"),
    ("\\(", "\\)"),
    ("\\[", "\\]"),
    ("**", "**"),
    ("`", "`"),
    ('"', '"'),
    ("《", "》"),
)
LONGEST_REMEMBERED = 400
"""Characters of the longest text whose plain form is kept: golds and short answers come again and again."""
_SIMPLE = re.compile(r"-?[0-9A-Za-z]{1,30}")


def plain(text: str) -> str:
    """`text` in half-width characters without math delimiters, text commands, sizing, spacing or final full stop."""
    return _remembered(text) if len(text) <= LONGEST_REMEMBERED else _plain(text)


@lru_cache(maxsize=8192)
def _remembered(text: str) -> str:
    return _plain(text)


def _plain(text: str) -> str:
    if _SIMPLE.fullmatch(text):
        return text
    if not text.isascii():
        text = _half_width(text)
    if "$" in text:
        text = _INLINE.sub(r"\1", text).replace("\\$", "$")
    if "\\" in text or "~" in text:
        for pattern, replacement in _COMMANDS:
            text = pattern.sub(replacement, text)
        for _ in range(_DEEPEST_TEXT):
            text = _TEXT.sub(_unpacked, text)
    for pattern, replacement in _ALWAYS:
        text = pattern.sub(replacement, text)
    return _unwrap(text)


def _half_width(text: str) -> str:
    """One ASCII or LaTeX spelling for each character that has one."""
    text = _FRACTION.sub(lambda match: " " + unicodedata.normalize("NFKC", match[0]).replace("\u2044", "/"), text)
    text = _RAISED.sub(lambda match: f"^{{{unicodedata.normalize('NFKC', match[0]).replace('−', '-')}}}", text)
    text = _LOWERED.sub(lambda match: f"_{{{unicodedata.normalize('NFKC', match[0])}}}", text)
    text = _ROOT_SIGN.sub(r"\\sqrt{\1}", text).translate(_CHARACTERS)
    return unicodedata.normalize("NFKC", text).replace("。", ".").replace("\u2044", "/")


def _unpacked(match: re.Match[str]) -> str:
    """The text of a text command; behind a digit it is a unit and stays apart from the number."""
    return match[2] if match[1] is None else f" {match[2]}"


def _unwrap(text: str) -> str:
    before = None
    while before != text:
        before, text = text, text.strip().rstrip(". ")
        for opening, closing in _WRAPPERS:
            inner = text[len(opening) : -len(closing)]
            if len(text) > len(opening + closing) and text.startswith(opening) and text.endswith(closing):
                text = inner if opening not in inner else text
    return text
