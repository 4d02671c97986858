"""What a rule has to say about a recipe. Knows no setting."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from peerwise.errors import nearest


class Finding(NamedTuple):
    """One thing to say about a recipe."""

    text: str
    fatal: bool = True


def warning(text: str) -> Finding:
    """Something that can run and usually goes wrong."""
    return Finding(text, fatal=False)


def unknown(key: str, given: str, known: Iterable[str]) -> Finding:
    """A name that does not exist, with the nearest that does."""
    return Finding(f"{key}: unknown name {given!r}; {nearest(given, known)}")
