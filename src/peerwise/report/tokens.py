"""Figures by token of recorded answers, as a page colours them: read from a row, thinned, laid over harmless texts.

The names are those that `train.trace` writes. Needs no tokenizer: a token is so many characters of its answer's text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import accumulate
from typing import Any

from peerwise.evaluate.pairing import number
from peerwise.report.folder import Row
from peerwise.report.inert import harmless

LENGTHS = "token_lengths"
FIGURES = ("logprobs", "entropies", "ratios")
TOKENS_KEPT = 2_000_000
"""Tokens with figures in one page; beyond it groups lose theirs evenly over the run, because a browser has to hold
them."""

Trace = dict[str, list[Any]]


def trace_of(row: Row) -> Trace | None:
    """The figures of one answer, each as long as its `token_lengths`; None where there are none that fit together."""
    lengths = row.get(LENGTHS)
    if not isinstance(lengths, list) or not all(type(length) is int and length >= 0 for length in lengths):
        return None
    figures = {name: row[name] for name in FIGURES if isinstance(row.get(name), list)}
    if not lengths or any(len(values) != len(lengths) for values in figures.values()):
        return None
    return {LENGTHS: lengths, **{name: _finite(values) for name, values in figures.items()}}


def _finite(values: list[Any]) -> list[Any]:
    """The values, None where one is no finite number. There are millions, so most are looked at together."""
    try:
        if set(map(type, values)) <= {int, float} and math.isfinite(sum(values)):
            return values
    except OverflowError:
        pass
    return list(map(number, values))


def spacing(answers: Iterable[Row]) -> int:
    """n, where every n-th group may have its figures in the page: 1 unless there are more than a page can hold."""
    held = sum(len(lengths) for answer in answers if isinstance(lengths := answer.get(LENGTHS), list))
    return max(1, -(-held // TOKENS_KEPT))


def laid_over(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer with a harmless text, and its trace with lengths over that text, in the units of JavaScript's strings.

    A token that holds a hidden character grows with it; a token that cuts a line end in two shows both halves.
    """
    trace, text = answer["trace"], answer["text"]
    shown = harmless(text)
    if trace is None or (text.isascii() and shown == text):
        return answer | {"text": shown}
    ends = list(accumulate(trace[LENGTHS]))
    pieces = [harmless(text[end - length : end]) for end, length in zip(ends, trace[LENGTHS], strict=True)]
    rest = harmless(text[ends[-1] :])
    lengths = [len(piece.encode("utf-16-le")) // 2 for piece in pieces]
    return answer | {"text": "".join(pieces) + rest, "trace": trace | {LENGTHS: lengths}}
