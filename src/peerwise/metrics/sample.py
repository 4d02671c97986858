"""A sampled group as it is shown: its question, its gold, and its answers, the best paid first.

Made of a group that was just sampled or of its row in rollouts.jsonl, so that a run and whoever reads its folder show
the same. Judges nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from peerwise.metrics.text import verdict
from peerwise.records import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer with what was made of it.

    Example:
        Answer(text="6 * 7 = 42", reward=1.0, correct=True, extracted="42")
    """

    text: str
    reward: float
    correct: bool
    extracted: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A question with its answers, sorted by reward, highest first; answers of equal reward as they were drawn."""

    problem: str
    question: str
    gold: str
    answers: tuple[Answer, ...]

    def ends(self) -> tuple[Answer, ...]:
        """The answers with the highest and the lowest reward; one where all are paid alike."""
        first, last = self.answers[0], self.answers[-1]
        return (first,) if first.reward == last.reward else (first, last)

    def labelled(self) -> Iterator[tuple[str, str]]:
        """(label, text) of the question, the gold and the answers at both ends."""
        yield "question", self.question
        yield "gold", self.gold
        for answer in self.ends():
            yield f"answer, reward {answer.reward:.3g}, {verdict(answer.correct, answer.extracted)}", answer.text


def of_group(group: Group) -> Sample:
    """A group that was just sampled and scored."""
    answers = [
        Answer(text=completion.text, reward=score.total, correct=score.correct, extracted=score.extracted)
        for completion, score in zip(group.completions, group.scores, strict=True)
    ]
    return _sorted(group.problem.id, group.problem.messages, group.problem.answer, answers)


def of_row(row: Mapping[str, Any]) -> Sample | None:
    """A row of rollouts.jsonl; None where it is not a group with answers."""
    try:
        answers = [
            Answer(
                text=str(answer["text"]),
                reward=float(answer["reward"] or 0.0),
                correct=bool(answer["correct"]),
                extracted=None if answer["extracted"] is None else str(answer["extracted"]),
            )
            for answer in row["completions"]
        ]
        return _sorted(str(row["problem"]), row["messages"], str(row["gold"]), answers) if answers else None
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _sorted(problem: str, messages: Sequence[Mapping[str, Any]], gold: str, answers: list[Answer]) -> Sample:
    asked = [str(message["content"]) for message in messages if message["role"] == "user"]
    answers.sort(key=lambda answer: -answer.reward)
    return Sample(problem=problem, question=asked[-1] if asked else "", gold=gold, answers=tuple(answers))
