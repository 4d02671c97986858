"""The outer shape of an answer: a list, set, tuple, interval, union, matrix, or something that has none.

Splits text and never looks at what the parts mean, except that bounds and excluded points are put in order.
Inequalities in one variable become intervals. Linear time.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace

from peerwise.rewards import numbers, relations
from peerwise.rewards.relations import split_outside

MOST_PARTS = 40
_OPENING, _CLOSING = "([{", ")]}"
_REALS = re.compile(
    r"\\mathbb ?\{?R\}?|(?-i:R)|全体实数|一切实数|实数集|(?:all |the )?(?:real numbers|reals)", re.IGNORECASE
)
_PUNCTURED = re.compile(r"(?:\\mathbb ?\{?R\}?) ?(?:\\setminus|\\backslash|\\|-) ?\\?\{(.*?)\\?\}")
_EMPTY = re.compile(r"\\emptyset|空集|(?:the )?empty set|\\?\{ ?\\?\}", re.IGNORECASE)
_WORDS = re.compile(r",? (?:and|or) |\\(?:and|or|lor|land)(?![A-Za-z])|[或和、;]|以及")
_BEGIN = r"\\begin\{(?:([bpvBV]|small)?matrix|array)\}(?:\{[lcr| ]*\})?"
_MATRIX = re.compile(rf"([\[(|])? ?{_BEGIN}(.*)\\end\{{(?:[bpvBV]|small)?(?:matrix|array)\}} ?[\])|]?")
_UNION = re.compile(r"(?<=[)\]}]) ?[Uu] ?(?=[(\[{\\])")
_NAME = re.compile(
    r"(?:\\?[A-Za-z\u4e00-\u9fff][\w\\ {}'△∠]{0,40}|[△∠|][A-Za-z]{1,4}\|?)(?:\([A-Za-z](?:[,=][ \w]{1,4})?\))?"
    r"|\([A-Za-z](?:_\w)?(?:, ?[A-Za-z](?:_\w)?)+\)"
)
_BUILDER = re.compile(r"\\?\{ ?[A-Za-z](?:\\in ?\\mathbb ?\{?R\}?)? ?(?:\||\\mid|:) ?([^{}]{1,200}?) ?\\?\}")
_COORDINATE = re.compile(r"([xyz]) ?= ?([^=]+)")
_MEMBER = re.compile(r"\\in(?![A-Za-z])")
_FUNCTION = re.compile(r"[fy](?:\(x\))?")
_COMMANDS = re.compile(r"\\[A-Za-z]+")


@dataclass(frozen=True, slots=True)
class Form:
    """A kind, its parts, and the name that was given to it.

    Example:
        parse("x \\\\in [2, 5)") == Form("[)", ("2", "5"), "x")
    """

    kind: str
    """"atom", "list", "{}", "()", "[)", "(]", "[]", "union", "punctured" or "matrix RxC"."""
    parts: tuple[str, ...]
    name: str = ""

    @property
    def ordered(self) -> bool:
        """Whether the order of the parts matters."""
        return self.kind not in ("list", "{}", "union", "punctured")


def parse(text: str) -> Form:
    """The form of `text`, which must be plain (see `plain`)."""
    text = _UNION.sub(r"\\cup ", text.strip())
    name, body = _named(text)
    if name:
        form = _unnamed(body)
        return replace(form, name=name)
    if builder := _BUILDER.fullmatch(body):
        body = builder[1].strip()
    if relation := relations.parse(body):
        return Form(*relation)
    return _unnamed(body)


def coordinates(form: Form) -> Form:
    """x=3, y=7 as the tuple (3, 7), where the names are in the order of the alphabet; any other form as it is."""
    named = [_COORDINATE.fullmatch(part) for part in form.parts] if form.kind == "list" else []
    names = [match[1] for match in named if match]
    if not names or len(names) < len(named) or any(a >= b for a, b in itertools.pairwise(names)):
        return form
    return Form("()", tuple(match[2] for match in named if match))


def _named(text: str) -> tuple[str, str]:
    """What an equation or membership gives a name to ("x=5" -> "x", "5"); the name is "" where there is none.

    Of worked arithmetic (3*4 = 12, m+n = 3+4 = 7) the body is the result.
    """
    if (member := _MEMBER.search(text)) and _NAME.fullmatch(text[: member.start()].strip()):
        return _tidy_name(text[: member.start()]), text[member.end() :].strip()
    sides = [side.strip() for side in split_outside(text, "=")]
    first, last = sides[0], sides[-1]
    if len(sides) == 1 or not first or not last or any(map(_has_letters, sides[1:-1])):
        return "", text
    if _NAME.fullmatch(first):
        return _tidy_name(first), last
    if len(sides) > 2 and not _has_letters(last):
        return "", last
    if not any(map(_has_letters, sides[:-1])):
        if _NAME.fullmatch(last):
            return _tidy_name(last), first
        if not _has_letters(last) and re.search(r"[\d)}] ?(?:[-+*/×÷^]|\\times|\\cdot|\\div)", first):
            return "", last
    return "", text


def _has_letters(text: str) -> bool:
    return bool(re.search(r"[A-Za-z]", _COMMANDS.sub("", text)))


def _tidy_name(name: str) -> str:
    name = re.sub(r"[\s{}]", "", name)
    return "y" if _FUNCTION.fullmatch(name) else name


def _unnamed(text: str) -> Form:
    if _REALS.fullmatch(text):
        return Form("()", ("-\\infty", "\\infty"))
    if _EMPTY.fullmatch(text):
        return Form("{}", ())
    if punctured := _PUNCTURED.fullmatch(text):
        return Form(*relations.punctured(split_outside(punctured[1], ","), ""))
    if matrix := _MATRIX.fullmatch(text):
        return _matrix(matrix)
    union = text.split("\\cup")
    if len(union) > 1:
        return Form("union", tuple(part.strip() for part in union))
    return _listed(text)


def _matrix(match: re.Match[str]) -> Form:
    rows = [[cell.strip() for cell in row.split("&")] for row in re.split(r"\\\\", match[3]) if row.strip()]
    bars = "|" if match[1] == "|" or match[2] in ("v", "V") else ""
    shape = f"{bars}matrix {len(rows)}x{len(rows[0]) if rows else 0}"
    return Form(shape, tuple(cell for row in rows for cell in row))


def _listed(text: str) -> Form:
    escaped = text.startswith("\\{")
    text = text.replace("\\{", "{").replace("\\}", "}").replace("\\langle", "(").replace("\\rangle", ")")
    parts = (text,) if numbers.read(text) else split(text)
    if len(parts) > 1:
        return Form("list", parts)
    if text[:1] in _OPENING and text[-1:] in _CLOSING and text and _closes_at_end(text):
        inner = split(text[1:-1]) if text[1:-1].strip() else ()
        if rows := _nested_rows(text, inner):
            return Form(f"matrix {len(rows)}x{len(rows[0])}", tuple(cell for row in rows for cell in row))
        if (text[0] == "{" and escaped) or len(inner) > 1:
            return Form(text[0] + text[-1], tuple(part.removeprefix("+") for part in inner))
    return _either(text)


def _nested_rows(text: str, inner: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The rows of a matrix in square brackets, [[1,2],[3,4]]; empty when `text` is none."""
    if not text.startswith("[[") or not all(part.startswith("[") and part.endswith("]") for part in inner):
        return []
    rows = [split(part[1:-1]) for part in inner]
    return rows if len({len(row) for row in rows}) == 1 and len(rows) * len(rows[0]) <= MOST_PARTS else []


def _either(text: str) -> Form:
    """1 \\pm 2 as the list of both its values; what has no such sign is an atom."""
    if "\\pm" not in text and "\\mp" not in text:
        return Form("atom", (text,))
    first = re.sub(r"\\pm ?", "+", text).replace("\\mp", "-").removeprefix("+")
    second = re.sub(r"\\pm ?", "-", text).replace("\\mp", "+")
    return Form("list", (first.strip(), second.strip()))


def split(text: str) -> tuple[str, ...]:
    """The parts between the commas, "and" and "or" that stand outside all brackets; one part when there are too many.

    A comma that separates thousands separates nothing: 1,000 and 2,000.
    """
    pieces = [piece for piece in split_outside(_WORDS.sub(";", text), ";") if piece]
    if len(pieces) > 1:
        parts = [part for piece in pieces for part in ([piece] if numbers.read(piece) else split_outside(piece, ","))]
    else:
        parts = split_outside(text, ",")
    parts = [part for part in parts if part]
    return tuple(parts) if len(parts) <= MOST_PARTS else (text,)


def _closes_at_end(text: str) -> bool:
    depth = 0
    for i, char in enumerate(text):
        depth += (char in _OPENING) - (char in _CLOSING)
        if depth == 0:
            return i == len(text) - 1
    return False
