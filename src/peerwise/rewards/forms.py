"""The outer shape of an answer: a list, set, tuple, interval, union, matrix, or something that has none.

Splits text and never looks at what the parts mean. Inequalities in one variable become intervals. Linear time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MOST_PARTS = 40
_OPENING, _CLOSING = "([{", ")]}"
_REALS = re.compile(r"\\mathbb ?\{?R\}?|全体实数|(?:all )?real numbers")
_WORDS = re.compile(r",? (?:and|or) |\\(?:and|or|lor|land)(?![A-Za-z])|[或和、;]|以及")
_MATRIX = re.compile(r"\[?\\begin\{(?:[bpvB]?matrix|array)\}(?:\{[lcr|]*\})?(.*)\\end\{(?:[bpvB]?matrix|array)\}\]?")
_BOUND = r"([^<>=]{1,40}?)"
_BETWEEN = re.compile(rf"{_BOUND} ?(<|\\le|\\lt) ?([a-zA-Z]) ?(<|\\le|\\lt) ?{_BOUND}")
_ABOVE = re.compile(rf"([a-zA-Z]) ?(<|>|\\le|\\ge|\\lt|\\gt|\\ne) ?{_BOUND}")
_BELOW = re.compile(rf"{_BOUND} ?(<|>|\\le|\\ge|\\lt|\\gt) ?([a-zA-Z])")
_FLIPPED = {"<": ">", ">": "<", "\\le": "\\ge", "\\ge": "\\le", "\\lt": "\\gt", "\\gt": "\\lt"}


@dataclass(frozen=True, slots=True)
class Form:
    """A kind and its parts.

    Example:
        parse("[2, 5)") == Form("[)", ("2", "5"))
    """

    kind: str
    """"atom", "list", "{}", "()", "[)", "(]", "[]", "union" or "matrix RxC"."""
    parts: tuple[str, ...]

    @property
    def ordered(self) -> bool:
        """Whether the order of the parts matters."""
        return self.kind not in ("list", "{}", "union")


def parse(text: str) -> Form:
    """The form of `text`, which must be plain (see `plain`)."""
    text = text.strip()
    if _REALS.fullmatch(text):
        return Form("()", ("-\\infty", "\\infty"))
    if matrix := _MATRIX.fullmatch(text):
        rows = [[cell.strip() for cell in row.split("&")] for row in re.split(r"\\\\", matrix[1]) if row.strip()]
        return Form(f"matrix {len(rows)}x{len(rows[0]) if rows else 0}", tuple(cell for row in rows for cell in row))
    text = _relation(text)
    if text == "\\emptyset":
        return Form("{}", ())
    union = text.split("\\cup")
    if len(union) > 1:
        return Form("union", tuple(part.strip() for part in union))
    return _listed(text)


def _listed(text: str) -> Form:
    text = text.replace("\\{", "{").replace("\\}", "}")
    parts = split(_WORDS.sub(",", text))
    if len(parts) > 1:
        return Form("list", parts)
    if text[:1] in _OPENING and text[-1:] in _CLOSING and text and _closes_at_end(text):
        inner = split(text[1:-1]) if text[1:-1].strip() else ()
        if text[0] == "{" or len(inner) > 1:
            return Form(text[0] + text[-1], inner)
    if text.startswith("\\pm"):
        size = text.removeprefix("\\pm").strip()
        return Form("list", (size, f"-{size}"))
    return Form("atom", (text,))


def split(text: str) -> tuple[str, ...]:
    """The parts between the commas that stand outside all brackets; one part when there are too many."""
    parts, depth, start = [], 0, 0
    for i, char in enumerate(text):
        if char in _OPENING:
            depth += 1
        elif char in _CLOSING:
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    parts.append(text[start:].strip())
    parts = [part for part in parts if part]
    return tuple(parts) if len(parts) <= MOST_PARTS else (text,)


def _closes_at_end(text: str) -> bool:
    depth = 0
    for i, char in enumerate(text):
        depth += (char in _OPENING) - (char in _CLOSING)
        if depth == 0:
            return i == len(text) - 1
    return False


def _relation(text: str) -> str:
    """An inequality in one variable as an interval; other text unchanged."""
    if match := _BETWEEN.fullmatch(text):
        low, left, _, right, high = match.groups()
        return f"{'[' if left == chr(92) + 'le' else '('}{low},{high}{']' if right == chr(92) + 'le' else ')'}"
    if match := _ABOVE.fullmatch(text):
        return _ray(match[2], match[3].strip())
    if match := _BELOW.fullmatch(text):
        return _ray(_FLIPPED[match[2]], match[1].strip())
    return text


def _ray(relation: str, bound: str) -> str:
    return {
        "<": f"(-\\infty,{bound})",
        "\\lt": f"(-\\infty,{bound})",
        "\\le": f"(-\\infty,{bound}]",
        ">": f"({bound},\\infty)",
        "\\gt": f"({bound},\\infty)",
        "\\ge": f"[{bound},\\infty)",
        "\\ne": f"(-\\infty,{bound})\\cup({bound},\\infty)",
    }[relation]
