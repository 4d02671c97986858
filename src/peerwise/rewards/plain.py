"""Typography out of the way: one spelling for each character, wrapper and spacing command.

Changes how an answer is written, never what it says. Linear in the length of the text.
"""

from __future__ import annotations

import re
import unicodedata

_CHARACTERS = str.maketrans(
    {"²": "^2", "³": "^3", "−": "-", "–": "-", "—": "-", "－": "-", "∞": "\\infty ", "π": "\\pi ", "°": "^\\circ"}
    | {
        "≤": "\\le ",
        "≥": "\\ge ",
        "≠": "\\ne ",
        "∪": "\\cup ",
        "√": "\\sqrt ",
        "÷": "/",
        "\u200b": "",
        "∅": "\\emptyset ",
    }
    | {"½": " 1/2", "¼": " 1/4", "¾": " 3/4", "⅓": " 1/3", "⅔": " 2/3", "±": "\\pm "}
)
_COMMANDS = (
    (re.compile(r"\\(?:displaystyle|limits|left|right|big|Big|bigl|bigr)(?![A-Za-z])"), ""),
    (re.compile(r"\\[dt]frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"(?<=\d)(?:\{,\}|\\,|\\!|,\\!)(?=\d{3})"), ","),
    (re.compile(r"\\[,;:! ]|\\q?quad(?![A-Za-z])|~"), " "),
    (re.compile(r"\\leq(?![A-Za-z])|\\leqslant(?![A-Za-z])"), r"\\le"),
    (re.compile(r"\\geq(?![A-Za-z])|\\geqslant(?![A-Za-z])"), r"\\ge"),
    (re.compile(r"\\neq(?![A-Za-z])"), r"\\ne"),
    (re.compile(r"\\varnothing(?![A-Za-z])"), r"\\emptyset"),
    (re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|mbox|operatorname)\s*\{([^{}]*)\}"), r"\1"),
    (re.compile(r"([_^])\{(\w)\}"), r"\1\2"),
    (re.compile(r"\s+"), " "),
)
_WRAPPERS = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("**", "**"), ("`", "`"), ('"', '"'))


def plain(text: str) -> str:
    """`text` in half-width characters without math delimiters, text commands, sizing, spacing or final full stop."""
    text = unicodedata.normalize("NFKC", text.translate(_CHARACTERS)).replace("。", ".").replace("\\$", "$")
    for pattern, replacement in _COMMANDS:
        text = pattern.sub(replacement, text)
    return _unwrap(text)


def _unwrap(text: str) -> str:
    before = None
    while before != text:
        before, text = text, text.strip().rstrip(".").rstrip()
        for opening, closing in _WRAPPERS:
            inner = text[len(opening) : -len(closing)]
            if len(text) > len(opening + closing) and text.startswith(opening) and text.endswith(closing):
                text = inner if opening not in inner else text
    return text
