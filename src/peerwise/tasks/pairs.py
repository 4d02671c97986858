"""Pairs of a better and a worse answer from a file: jsonl, csv or parquet with prompt, chosen and rejected.

Reads and cleans; knows nothing of how pairs are learned from. Rows that cannot teach are left out and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from peerwise.errors import DataError
from peerwise.records import Message
from peerwise.tasks import rows
from peerwise.tasks.files import chat
from peerwise.tasks.prompts import Template

COLUMNS = ("prompt", "chosen", "rejected")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two answers to one prompt.

    Example:
        Pair(id="pairs/7", messages=({"role": "user", "content": "6 * 7 = ?"},), chosen="42", rejected="41")
    """

    id: str
    messages: tuple[Message, ...]
    chosen: str
    rejected: str


def load_pairs(path: str, template: Template, *, encoding: str = "utf-8") -> tuple[tuple[Pair, ...], Mapping[str, int]]:
    """The pairs of a file, in its order, and how many rows were left out by reason.

    Raises:
        DataError: the file cannot be read, a column is missing or holds something else, or no pair is left.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise DataError(f"dpo.pairs: there is no file {path!r}; give a jsonl, csv or parquet file of pairs")
    pairs: dict[tuple[str, str, str], Pair] = {}
    dropped: Counter[str] = Counter()
    for row in rows.read(file, encoding):
        chosen, rejected = row.text("chosen"), row.text("rejected")
        messages = chat(row, "prompt") or template.ask(row.filled("prompt"))
        key = (repr(messages), chosen, rejected)
        if not chosen or not rejected:
            dropped["empty answer"] += 1
        elif chosen == rejected:
            dropped["chosen and rejected alike"] += 1
        elif key in pairs:
            dropped["duplicate pair"] += 1
        else:
            pairs[key] = Pair(id=f"{file.stem}/{row.line}", messages=messages, chosen=chosen, rejected=rejected)
    if not pairs:
        reasons = ", ".join(f"{count} {reason}" for reason, count in dropped.items())
        raise DataError(f"dpo.pairs: {path} has no pair left to learn from ({reasons})")
    return tuple(pairs.values()), dict(dropped)
