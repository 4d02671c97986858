"""Whether a reward knows a right answer when it sees one, before anything is trained on it.

Knows no model and no prompt template: how an answer is written in the form that its prompt asks for is handed in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from peerwise.records import Completion, Problem, Score
from peerwise.rewards.rubric import Scorer

SAMPLE = 32
"""Problems that are tried, spread evenly over those given."""


def selftest(scorer: Scorer, problems: Sequence[Problem], wrap: Callable[[Problem], str]) -> str | None:
    """What is wrong with the reward, naming the first problem; None when nothing is.

    On each problem of a sample the gold answer in its prompt's own form, `wrap(problem)`, must be correct and get the
    most of every paid part that a bare answer can get it of, and an empty completion must neither be correct nor be
    paid as much. A gold that the reward abstains on is not judged.
    """
    chosen = (
        [problems[place * len(problems) // SAMPLE] for place in range(SAMPLE)] if len(problems) > SAMPLE else problems
    )
    texts = [wrap(problem) for problem in chosen]
    golds = scorer([(problem, _completion(text)) for problem, text in zip(chosen, texts, strict=True)])
    empty = scorer([(problem, _completion("")) for problem in chosen])
    found = [
        (problem, text, fault)
        for problem, text, gold, nothing in zip(chosen, texts, golds, empty, strict=True)
        if (fault := next(_faults(scorer, gold, nothing), None)) is not None
    ]
    if not found:
        return None
    problem, text, fault = found[0]
    return (
        f"reward {scorer.name} does not know a right answer on {len(found)} of {len(chosen)} problems tried; on "
        f"{problem.id}, gold {problem.answer[:80]!r}, answered {text[-80:]!r}: {fault}; check the task's answers, "
        "template and reward"
    )


def _faults(scorer: Scorer, gold: Score, empty: Score) -> Iterator[str]:
    for what, score in (("the gold answer", gold), ("an empty completion", empty)):
        if score.failed is not None:
            yield f"the reward failed on {what}: {score.failed}"
    if gold.parts and all(value is None for value in gold.parts.values()):
        return
    if not gold.correct:
        yield f"it counts as wrong, read as {gold.extracted!r}"
    for part, best in scorer.best.items():
        if (value := gold.parts.get(part)) is not None and value < best:
            yield f"its part {part} is {value:g}, expected {best:g}"
    if empty.correct:
        yield "an empty completion counts as right"
    if empty.total >= gold.total:
        yield f"an empty completion is paid {empty.total:g}, the gold answer {gold.total:g}"


def _completion(text: str) -> Completion:
    """A finished completion with about as many tokens as words; their ids mean nothing."""
    count = len(text.split()) + 1
    return Completion(token_ids=(0,) * count, logprobs=(0.0,) * count, finish="stop", text=text)
