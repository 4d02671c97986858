"""Inequalities in one variable as intervals: x > 3, 1 <= x < 5, x < 1 or x > 2, x \\ne 3.

Reads notation; bounds are compared only where they are plain numbers. Linear time.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from peerwise.rewards import numbers

Shape = tuple[str, tuple[str, ...], str]
"""Kind, parts and name, as `forms.Form` takes them."""

_SIGN = re.compile(r" ?(<|>|\\le |\\ge |\\ne ) ?")
_VARIABLE = re.compile(r"[A-Za-z](?:_\w)?|\\(?:theta|alpha|beta|lambda|mu|phi|varphi)")
_JOINT = re.compile(r" or |或|\\lor(?![A-Za-z])|,? and |且|\\land(?![A-Za-z])|[,;、]")
_OR = (" or ", "或", "\\lor")
_FLIPPED = {"<": ">", ">": "<", "\\le ": "\\ge ", "\\ge ": "\\le ", "\\ne ": "\\ne "}
_UP, _DOWN = ("<", "\\le "), (">", "\\ge ")
MOST_RELATIONS = 6
LONGEST = 300


def parse(text: str) -> Shape | None:
    """The set that a plain text of one or several relations of one variable describes; None when it is none."""
    if len(text) > LONGEST or not _SIGN.search(text):
        return None
    pieces = _JOINT.split(text)
    found = [_single(piece.strip()) for piece in pieces]
    if len(found) > MOST_RELATIONS or any(shape is None for shape in found):
        return None
    shapes = [shape for shape in found if shape is not None]
    if len(shapes) == 1:
        return _closed(shapes[0])
    joints = {match.group() in _OR for match in _JOINT.finditer(text)}
    if len({name for *_, name in shapes}) > 1 or len(joints) > 1:
        return None
    return _joined(shapes, either=joints == {True})


def punctured(points: Sequence[str], name: str) -> Shape:
    """The reals without `points`: a union of intervals where the points can be put in order."""
    values = [numbers.parse(point) for point in points]
    order = sorted(zip(points, values, strict=True), key=lambda pair: pair[1] or 0)
    if len(points) > 1 and None in values:
        return "punctured", tuple(points), name
    ends = ["-\\infty", *(point for point, _ in order), "\\infty"]
    return "union", tuple(f"({low},{high})" for low, high in itertools.pairwise(ends)), name


def split_outside(text: str, mark: str) -> list[str]:
    """The pieces between the marks (single characters) that stand outside all brackets."""
    pieces, depth, start = [], 0, 0
    for i, char in enumerate(text):
        if char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif char == mark and depth == 0:
            pieces.append(text[start:i].strip())
            start = i + 1
    pieces.append(text[start:].strip())
    return pieces


def _single(text: str) -> Shape | None:
    """An interval ("(]", (low, high), variable), or ("ne", (point,), variable)."""
    parts = _SIGN.split(text)
    if len(parts) == 5:
        low, left, variable, right, high = parts
        if left in _DOWN and right in _DOWN:
            low, left, right, high = high, _FLIPPED[right], _FLIPPED[left], low
        if left not in _UP or right not in _UP or not _VARIABLE.fullmatch(variable) or not low or not high:
            return None
        kind = ("[" if left == "\\le " else "(") + ("]" if right == "\\le " else ")")
        return kind, (low.removeprefix("+"), high.removeprefix("+")), variable
    if len(parts) != 3:
        return None
    variable, sign, bound = parts
    if not _VARIABLE.fullmatch(variable):
        variable, sign, bound = bound, _FLIPPED[sign], variable
    if not _VARIABLE.fullmatch(variable) or not bound or "=" in bound:
        return None
    return _ray(sign, bound.removeprefix("+"), variable)


def _ray(sign: str, bound: str, variable: str) -> Shape:
    if sign == "\\ne ":
        return "ne", (bound,), variable
    if sign in _UP:
        return ("(]" if sign == "\\le " else "()"), ("-\\infty", bound), variable
    return ("[)" if sign == "\\ge " else "()"), (bound, "\\infty"), variable


def _closed(shape: Shape) -> Shape:
    kind, parts, name = shape
    return punctured(parts, name) if kind == "ne" else shape


def _joined(shapes: Sequence[Shape], *, either: bool) -> Shape | None:
    """The union of relations joined by "or"; of two rays joined otherwise what both leave; excluded points together."""
    name = shapes[0][2]
    kinds = {kind for kind, *_ in shapes}
    if kinds == {"ne"} and not either:
        return punctured([parts[0] for _, parts, _ in shapes], name)
    if "ne" in kinds:
        return None
    if either:
        return "union", tuple(f"{kind[0]}{parts[0]},{parts[1]}{kind[1]}" for kind, parts, _ in shapes), name
    lower = [shape for shape in shapes if shape[1][1] == "\\infty"]
    upper = [shape for shape in shapes if shape[1][0] == "-\\infty"]
    if len(shapes) != 2 or len(lower) != 1 or len(upper) != 1:
        return None
    low, high = numbers.parse(lower[0][1][0]), numbers.parse(upper[0][1][1])
    if low is None or high is None or low >= high:
        return None
    return lower[0][0][0] + upper[0][0][1], (lower[0][1][0], upper[0][1][1]), name
