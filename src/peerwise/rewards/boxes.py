"""The last \\boxed{...} of a text, by one pass over its braces.

Knows nothing of what is inside a box.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

CUT_OFF: Final = "\0cut off"
"""Returned for a last box that was opened and never closed; no box can contain it."""

_BOX = re.compile(r"\\(?:f?boxed|f(?:rame)?box)(?![A-Za-z])")
_BARE = re.compile(r"[ \t]+(-?\d[\d.,/]*\d|-?\d|[A-Za-z](?![A-Za-z]))")
# What may stand between boxes of one answer: \boxed{-1}, \boxed{2} and x = \boxed{6}
_BETWEEN = re.compile(
    r"[ \t$,，、.。]{0,8}(?:and|or|和|或|以及)?[ \t$]{0,8}(?:([A-Za-z](?:_\w|_\{\w\})?)[ \t]?=[ \t$]{0,4})?"
)
_NAME_BEFORE = re.compile(r"(?<![A-Za-z\\])([A-Za-z](?:_\w|_\{\w\})?)[ \t]?=[ \t$]{0,4}$")
_NAME_ROOM = 16
MOST_JOINED = 20


class _Box(NamedTuple):
    start: int
    end: int
    content: str


def last_box(text: str, *, empty_withdraws: bool = False) -> str | None:
    """Content of the last complete outermost box, a row of boxes joined by commas.

    None when there is no box or only empty ones (an echo of the instruction); CUT_OFF when the last one never closes.
    `empty_withdraws`: an empty last box is "" instead of being passed over.
    """
    if "box" not in text:
        return None
    closing = _matching_braces(text)
    boxes: list[_Box] = []
    end = 0
    for match in _BOX.finditer(text):
        if match.start() < end:
            continue
        box = _content(text, match, closing)
        if box == CUT_OFF:
            return CUT_OFF
        if isinstance(box, _Box):
            end = box.end
            boxes.append(box)
    if boxes and not boxes[-1].content and empty_withdraws:
        return ""
    return _last_row(text, [box for box in boxes if box.content])


def _content(text: str, match: re.Match[str], closing: dict[int, int]) -> _Box | str | None:
    """The box that begins at `match`; CUT_OFF when it never closes, None when it has nothing to hold."""
    start = match.end()
    while text[start : start + 1] in (" ", "\t"):
        start += 1
    if text[start : start + 1] != "{":
        if bare := _BARE.match(text, match.end()):
            return _Box(match.start(), bare.end(), bare[1].rstrip(".,"))
        return None if text[start:] else CUT_OFF
    if start not in closing:
        return CUT_OFF
    end = closing[start] + 1
    return _Box(match.start(), end, text[start + 1 : end - 1].strip())


def _last_row(text: str, boxes: list[_Box]) -> str | None:
    """The last box with those that stand directly before it; the same value said twice is one."""
    if not boxes:
        return None
    row, names = [boxes[-1]], [""]
    for box in reversed(boxes[:-1]):
        between = text[box.end : row[0].start]
        joint = _BETWEEN.fullmatch(between)
        if len(row) == MOST_JOINED or joint is None or not between.strip(" $.。"):
            break
        names[0] = joint[1] or ""
        row.insert(0, box)
        names.insert(0, "")
    before = _NAME_BEFORE.search(text[max(0, row[0].start - _NAME_ROOM) : row[0].start])
    names[0] = before[1] if before else ""
    contents = [_inner(box.content) for box in row]
    if len(row) > 1 and all(names):
        contents = [f"{name}={content}" for name, content in zip(names, contents, strict=True)]
    return ", ".join(dict.fromkeys(contents))


def _inner(content: str) -> str:
    """A box that holds nothing but another box is that box."""
    match = _BOX.match(content)
    while match and content[match.end() : match.end() + 1] == "{" and content.endswith("}"):
        content = content[match.end() + 1 : -1].strip()
        match = _BOX.match(content)
    return content


def _matching_braces(text: str) -> dict[int, int]:
    """Position of each opening brace -> its closing one; \\{ and \\} are no braces, unclosed ones are absent."""
    closing: dict[int, int] = {}
    stack: list[int] = []
    for match in re.finditer(r"\\.|[{}]", text, re.DOTALL):
        if match.group() == "{":
            stack.append(match.start())
        elif match.group() == "}" and stack:
            closing[stack.pop()] = match.start()
    return closing
