"""The last \\boxed{...} of a text, by one pass over its braces.

Knows nothing of what is inside a box.
"""

from __future__ import annotations

import re
from typing import Final

CUT_OFF: Final = "\0cut off"
"""Returned for a last box that was opened and never closed; no box can contain it."""

_BOX = re.compile(r"\\(?:f?boxed|fbox)(?![A-Za-z])")
_BARE = re.compile(r"[ \t]+(-?\d[\d.,/]*\d|-?\d|[A-Za-z](?![A-Za-z]))")
# What may stand between boxes of one answer: \boxed{-1}, \boxed{2} and \boxed{6}
_BETWEEN = re.compile(r"[\s$,，、]*(?:and|or|和|或)?[\s$]*")
MOST_JOINED = 20


def last_box(text: str) -> str | None:
    """Content of the last complete outermost box, a row of boxes joined by commas.

    None when there is no box or only empty ones (an echo of the instruction); CUT_OFF when the last one never closes.
    """
    closing = _matching_braces(text)
    boxes: list[tuple[int, int, str]] = []
    end = 0
    for match in _BOX.finditer(text):
        if match.start() < end:
            continue
        start = match.end()
        while text[start : start + 1] in (" ", "\t") and text[start + 1 : start + 2] in (" ", "\t", "{"):
            start += 1
        if text[start : start + 1] != "{":
            if bare := _BARE.match(text, match.end()):
                boxes.append((match.start(), bare.end(), bare[1].rstrip(".,")))
            continue
        if start not in closing:
            return CUT_OFF
        end = closing[start] + 1
        content = text[start + 1 : end - 1].strip()
        if content:
            boxes.append((match.start(), end, content))
    return _last_row(text, boxes)


def _last_row(text: str, boxes: list[tuple[int, int, str]]) -> str | None:
    """The last box with those that stand directly before it; the same value said twice is one."""
    if not boxes:
        return None
    row = [boxes[-1]]
    for box in reversed(boxes[:-1]):
        between = text[box[1] : row[0][0]]
        if len(row) == MOST_JOINED or not between.strip(" $") or not _BETWEEN.fullmatch(between) or "\n" in between:
            break
        row.insert(0, box)
    contents = [_inner(box[2]) for box in row]
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
