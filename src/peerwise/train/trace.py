"""What is kept of single tokens in the recorded answers: how much of the text each is, and its figures, rounded.

Knows the ids and what the update saw of them; nothing of files and of pages. How much is kept is bounded by step, so
that long answers do not make the record of a run grow with them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from peerwise.records import Completion, Group

TRACED_TOKENS = 4096
"""Tokens of one step's answers, in the order of the groups, whose figures are kept."""
_BROKEN = "\ufffd"
_MOST_FOR_A_CHARACTER = 8
"""Tokens in a row that may wait for a character to be complete; no tokenizer needs as many."""

Trace = dict[str, list[float]]
"""Name of a figure -> its values for the first tokens of an answer, all equally many."""


@dataclass(slots=True)
class Seen:
    """What an update computed for the tokens of its batch: row -> [T]; rows are numbered over all its completions."""

    logprobs: dict[int, Tensor] = field(default_factory=dict)
    """Log-probs of the policy at the last pass over the row, under the temperature that sampled."""
    entropies: dict[int, Tensor] = field(default_factory=dict)
    """Entropies in nats at the first pass, before anything moved."""


class Tracer:
    """Makes the traces of recorded groups. `decode` gives the text of ids, special tokens left out."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._pieces: dict[int, str] = {}

    def traces(self, groups: Sequence[Group], seen: Seen | None) -> list[list[Trace]]:
        """One trace for each answer of each group, {} for answers beyond the bound of a step.

        - token_lengths: characters (code points) of the text that a token stands for; 0 for the end token, and for
          all but the last of the tokens that make one character.
        - logprobs: in nats, by the sampler.
        - entropies: in nats, before the update; absent where the update computed none (nothing to learn there).
        - ratios: probability by the policy at the update's last pass over that by the sampler; absent likewise.
        """
        left, row, made = TRACED_TOKENS, 0, []
        for group in groups:
            of_group: list[Trace] = []
            for completion in group.completions:
                kept = min(left, len(completion.token_ids))
                of_group.append(self._trace(completion, kept, row, seen or Seen()) if kept else {})
                left, row = left - kept, row + 1
            made.append(of_group)
        return made

    def _trace(self, completion: Completion, kept: int, row: int, seen: Seen) -> Trace:
        lengths: list[float] = list(token_lengths(self._texts(completion.token_ids), completion.text)[:kept])
        trace: Trace = {"token_lengths": lengths, "logprobs": _rounded(completion.logprobs[:kept], 2)}
        if row in seen.entropies:
            trace["entropies"] = _rounded(seen.entropies[row][:kept].tolist(), 2)
        if row in seen.logprobs:
            learned = seen.logprobs[row][:kept].double().cpu()
            sampled = torch.tensor(completion.logprobs[:kept], dtype=torch.float64)
            trace["ratios"] = _rounded((learned - sampled).exp().tolist(), 3)
        return trace

    def _texts(self, ids: Sequence[int]) -> list[str]:
        """What each token adds to the text; a character that several make is the last one's."""
        texts: list[str] = []
        held: list[int] = []
        for token in ids:
            if token not in self._pieces:
                self._pieces[token] = self._decode([token])
            text = self._pieces[token]
            if held or _BROKEN in text:
                held.append(token)
                text = self._decode(held)
                if text.endswith(_BROKEN) and len(held) < _MOST_FOR_A_CHARACTER:
                    text = ""
                else:
                    held = []
            texts.append(text)
        if held:
            texts[-1] = self._decode(held)
        return texts


def token_lengths(pieces: Sequence[str], text: str) -> list[int]:
    """[T] how many characters of `text` each piece stands for; they add up to the whole text.

    Some tokenizers leave out the leading blank of a token that is read alone; it belongs to that token. What is not
    found where it should be stands for nothing; what is left at the end belongs to the last piece that is not empty.

    >>> token_lengths(["I", "am", "!", ""], "I am!")
    [1, 3, 1, 0]
    """
    ends: list[int] = []
    at = 0
    for piece in pieces:
        found = text.find(piece, at, at + len(piece) + 1)
        if piece and found >= 0:
            at = found + len(piece)
        ends.append(at)
    if ends:
        last = max((place for place, piece in enumerate(pieces) if piece), default=0)
        ends[last:] = [len(text)] * (len(ends) - last)
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def _rounded(values: Sequence[float], digits: int) -> list[float]:
    """Rounded, and whole numbers as such: a sure token is written as 0, not as -0.0."""
    return [int(short) if (short := round(value, digits)).is_integer() else short for value in values]
