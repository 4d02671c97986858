"""Texts that cannot reorder or hide what stands beside them. Markup is not its business: pages escape or pack texts."""

from __future__ import annotations

import re
from typing import Any

# Control characters but tab and newline, marks and overrides of direction, invisible characters, half surrogate pairs.
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")


def harmless(value: Any) -> Any:
    """A copy with every hidden or reordering character of every text spelled out.

    >>> harmless({"a": ["right\\u202eleft"]})
    {'a': ['right⟨U+202E⟩left']}
    """
    if isinstance(value, str):
        return _HIDDEN.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", value.replace("\r\n", "\n"))
    if isinstance(value, dict):
        return {harmless(key): harmless(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [harmless(item) for item in value]
    return value
