"""Held-out problems, duplicates and contradictions: what keeps evaluation problems out of training.

Works on problems of any task; every problem that is left out is counted by reason.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable

from peerwise.errors import DataError
from peerwise.records import Problem
from peerwise.tasks.prompts import TEMPLATES
from peerwise.tasks.source import Pool, ProblemSet

MOST_HELD_OUT = 256
"""How many problems are held out of a data set without a test split when no number is given."""

DUPLICATE = "duplicate question"
CONTRADICTORY = "contradictory answers to one question"
HELD_OUT = "held out for evaluation"
LIMIT = "beyond the limit"


def question_key(problem: Problem) -> str:
    """Case and white space folded, the template's instruction left out: equal keys ask the same question."""
    text = "\n".join(message["content"] for message in problem.messages)
    for template in TEMPLATES.values():
        if template.instruction and text.endswith(template.instruction):
            text = text.removesuffix(template.instruction)
    return " ".join(text.casefold().split())


def deduplicate(problems: ProblemSet) -> ProblemSet:
    """Keep the first of equal questions with equal answers, none of those whose answers differ."""
    answers: dict[str, set[str]] = defaultdict(set)
    for problem in problems.problems:
        answers[question_key(problem)].add(" ".join(problem.answer.casefold().split()))
    agreeing = tuple(p for p in problems.problems if len(answers[question_key(p)]) == 1)
    problems = problems.without(agreeing, CONTRADICTORY)
    first = {question_key(p): p for p in reversed(agreeing)}
    return problems.without(tuple(p for p in agreeing if first[question_key(p)] is p), DUPLICATE)


def without_questions(problems: ProblemSet, held_out: Iterable[Problem]) -> ProblemSet:
    """`problems` without every question that also occurs in `held_out`, counted."""
    keys = {question_key(p) for p in held_out}
    return problems.without(tuple(p for p in problems.problems if question_key(p) not in keys), HELD_OUT)


def shuffled(problems: Iterable[Problem], seed: int, purpose: str) -> list[Problem]:
    """A permutation that depends on the seed and its purpose only."""
    order = list(problems)
    random.Random(f"{seed}/{purpose}").shuffle(order)
    return order


def hold_out(pool: Pool, count: int | None, seed: int) -> tuple[ProblemSet, ProblemSet]:
    """(train, held out), no question in both.

    With a test split: the first `count` of a seeded shuffle of it, None all of it. Without one: `count` (None 256)
    drawn from the training problems, at most half of them.
    """
    train = deduplicate(pool.train)
    source = pool.test or ProblemSet(problems=train.problems)
    if pool.test is None:
        count = min(MOST_HELD_OUT if count is None else count, len(train.problems) // 2)
    chosen = shuffled(source.problems, seed, "held out")[:count]
    held_out = ProblemSet(problems=tuple(chosen), dropped=source.dropped)
    return without_questions(train, chosen), held_out


def first(problems: ProblemSet, limit: int | None) -> ProblemSet:
    """The first `limit` problems; None keeps all."""
    return problems if limit is None else problems.without(problems.problems[:limit], LIMIT)


def drop_overlong(problems: ProblemSet, num_tokens: Callable[[Problem], int], limit: int) -> ProblemSet:
    """Leave out problems whose prompt has more than `limit` tokens by `num_tokens`, counted.

    Raises DataError when that would leave none of them.
    """
    kept = tuple(p for p in problems.problems if num_tokens(p) <= limit)
    if problems.problems and not kept:
        raise DataError(
            f"every prompt is longer than {limit} tokens ({len(problems.problems)} problems); "
            "raise --rollout.max-prompt-tokens or use shorter problems"
        )
    return problems.without(kept, f"prompt over {limit} tokens")
