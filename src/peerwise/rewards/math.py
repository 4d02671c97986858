"""Correctness of a completion: extract its final answer once, compare it with the gold.

Knows neither what a wrong answer is worth nor how it was sampled.
"""

from __future__ import annotations

from dataclasses import dataclass

from peerwise.rewards.equal import Verdict, compare, readable
from peerwise.rewards.extract import Extraction, Outcome, extract
from peerwise.rewards.policy import DEFAULT, Policy


@dataclass(frozen=True, slots=True)
class Judgement:
    """What was read out of a completion and how it compares with the gold.

    Example:
        grade("so \\\\boxed{41}", "42").outcome == "read"
    """

    extraction: Extraction
    verdict: Verdict
    outcome: Outcome
    """"read"; "unreadable" when an answer was begun, is cut off, empty, or prose; "absent" when there is none."""

    @property
    def right(self) -> bool:
        """Whether the answer equals the gold."""
        return self.verdict.same

    @property
    def rule(self) -> str:
        """The rule of extraction and that of comparison, as in "box, number"; the first alone without an answer."""
        compared = "" if self.extraction.answer is None else f", {self.verdict.rule}"
        return f"{self.extraction.rule}{compared}"


def grade(
    text: str, gold: str, *, last_number: bool = True, truncated: bool = False, policy: Policy = DEFAULT
) -> Judgement:
    """Read the final answer of `text` and compare it with `gold`.

    `last_number`: the last number counts as the answer when the text states none. `truncated`: the text was cut off at
    the length limit, which matters only where the policy says so.
    """
    extraction = extract(text, last_number=last_number, policy=policy)
    if truncated and not policy.cut_off_answers:
        extraction = Extraction(None, "cut off")
    return _judgement(extraction, gold, policy)


def grade_answer(answer: str, gold: str, *, policy: Policy = DEFAULT) -> Judgement:
    """Compare `answer` as it is with `gold`; nothing is looked for in it."""
    return _judgement(Extraction(answer, "given") if answer.strip() else Extraction(None, "empty"), gold, policy)


def _judgement(extraction: Extraction, gold: str, policy: Policy) -> Judgement:
    verdict = compare(extraction.answer, gold, policy=policy)
    outcome = extraction.outcome
    if extraction.answer is not None and not verdict.same and not readable(extraction.answer):
        outcome = "unreadable"
    return Judgement(extraction, verdict, outcome)


def judge(text: str, gold: str, *, last_number: bool = True) -> tuple[bool, str | None]:
    """(whether the final answer of `text` equals `gold`, that answer as written or None when there is none).

    `last_number`: the last number counts as the answer when the text states none.
    """
    found = grade(text, gold, last_number=last_number)
    return found.right, found.extraction.answer
