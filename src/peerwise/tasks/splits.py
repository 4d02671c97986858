"""Held-out problems, duplicates and contradictions: what keeps evaluation problems out of training.

Works on problems of any task; every problem that is left out is counted by reason. Knows nothing of grading: whether
two golds are the same is asked of a function that is handed in.
"""

from __future__ import annotations

import random
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable

from peerwise.errors import DataError
from peerwise.records import Problem
from peerwise.tasks.prompts import TEMPLATES
from peerwise.tasks.source import Pool, ProblemSet

MOST_HELD_OUT = 256
"""How many problems are held out of a data set without a test split when no number is given."""

DUPLICATE = "duplicate"
CONTRADICTORY = "contradictory"
HELD_OUT = "held out for evaluation"
LIMIT = "beyond the limit"
OVERLONG = "overlong"

Same = Callable[[str, str], bool]
"""Whether two gold answers are the same."""

CJK = "\u3040-\u30ff\u3400-\u9fff"
"""Kana and Chinese characters, for a character class: scripts without blanks between words."""
_AROUND_CJK = re.compile(f" ?([{CJK}、。]) ?")
_ALIKE = str.maketrans(
    {code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}
    | dict(zip("\u3000\u2018\u2019\u201c\u201d", " ''\"\"", strict=True))
    | dict.fromkeys("\ufeff\u200b\u2060\u00ad", None)
)
"""Full-width forms and curly quotation marks as their plain twins, characters without width as nothing."""


def question_text(problem: Problem) -> str:
    """What is asked: the messages without the template's instruction."""
    text = "\n".join(message["content"] for message in problem.messages)
    for template in TEMPLATES.values():
        if template.instruction and text.endswith(template.instruction):
            text = text.removesuffix(template.instruction)
    return text


def normalised(text: str) -> str:
    """Case, white space, full width, quotation marks, closing punctuation and ways to write an accent folded."""
    text = " ".join(unicodedata.normalize("NFC", text).translate(_ALIKE).casefold().split())
    return _AROUND_CJK.sub(r"\1", text).rstrip(" .?!。")


def question_key(problem: Problem) -> str:
    """Equal keys ask the same question."""
    return normalised(question_text(problem))


def same_text(one: str, other: str) -> bool:
    """Whether two golds are the same but for spelling: case, spacing, thousands separators, a dollar sign."""
    return _bare(one) == _bare(other)


def _bare(answer: str) -> str:
    return re.sub(r"(?<=\d),(?=\d{3})", "", normalised(answer)).strip("$ ")


def deduplicate(problems: ProblemSet, same: Same = same_text) -> ProblemSet:
    """Keep the first of equal questions with equal golds, none of those whose golds differ by `same`."""
    groups: dict[str, list[Problem]] = defaultdict(list)
    for problem in problems.problems:
        groups[question_key(problem)].append(problem)
    torn = {id(p): group for group in groups.values() if not _agree(group, same) for p in group}
    agreeing = tuple(p for p in problems.problems if id(p) not in torn)
    problems = problems.without(agreeing, CONTRADICTORY, lambda p: _golds(torn[id(p)]))
    again = {id(p): group[0] for group in groups.values() for p in group[1:]}
    first = tuple(p for p in agreeing if id(p) not in again)
    return problems.without(first, DUPLICATE, lambda p: f"asks the same as {_place(again[id(p)])}")


def _agree(group: list[Problem], same: Same) -> bool:
    golds = list(dict.fromkeys(problem.answer for problem in group))
    return all(same(golds[0], gold) for gold in golds[1:])


def _golds(group: list[Problem]) -> str:
    """The first of each of the golds, with where it stands."""
    first = {problem.answer: problem for problem in reversed(group)}
    stated = [f"{p.answer[:40]!r} at {_place(p)}" for p in group if first[p.answer] is p]
    return "; ".join(stated[:4]) + (f" and {len(stated) - 4} more golds" if len(stated) > 4 else "")


def _place(problem: Problem) -> str:
    line = problem.meta.get("line")
    return problem.id if line is None else f"line {line}"


def without_questions(problems: ProblemSet, held_out: Iterable[Problem], reason: str = HELD_OUT) -> ProblemSet:
    """`problems` without every question that also occurs in `held_out`, counted under `reason`."""
    asked = {question_key(p): p for p in held_out}
    keys = {id(p): question_key(p) for p in problems.problems}
    kept = tuple(p for p in problems.problems if keys[id(p)] not in asked)
    return problems.without(kept, reason, lambda p: f"asks the same as {asked[keys[id(p)]].id}")


def shuffled(problems: Iterable[Problem], seed: int, purpose: str) -> list[Problem]:
    """A permutation that depends on the seed and its purpose only."""
    order = list(problems)
    random.Random(f"{seed}/{purpose}").shuffle(order)
    return order


def hold_out(pool: Pool, count: int | None, seed: int, same: Same = same_text) -> tuple[ProblemSet, ProblemSet]:
    """(train, held out), no question in both.

    With a test split: the first `count` of a seeded shuffle of it, None all of it. Without one: `count` (None 256)
    drawn from the training problems, at most half of them.
    """
    train = deduplicate(pool.train, same)
    source = pool.test or ProblemSet(problems=train.problems)
    if pool.test is None:
        count = min(MOST_HELD_OUT if count is None else count, len(train.problems) // 2)
    chosen = shuffled(source.problems, seed, "held out")[:count]
    held_out = ProblemSet(problems=tuple(chosen), dropped=source.dropped, examples=source.examples)
    return without_questions(train, chosen), held_out


def first(problems: ProblemSet, limit: int | None) -> ProblemSet:
    """The first `limit` problems; None keeps all."""
    return problems if limit is None else problems.without(problems.problems[:limit], LIMIT)


def without_overlong(problems: ProblemSet, num_tokens: Callable[[Problem], int], limit: int) -> ProblemSet:
    """`problems` without those whose prompt has more than `limit` tokens by `num_tokens`, counted."""
    lengths = {id(p): num_tokens(p) for p in problems.problems}
    kept = tuple(p for p in problems.problems if lengths[id(p)] <= limit)
    return problems.without(kept, OVERLONG, lambda p: f"{lengths[id(p)]} tokens, more than {limit}")


def drop_overlong(problems: ProblemSet, num_tokens: Callable[[Problem], int], limit: int) -> ProblemSet:
    """`without_overlong`. Raises DataError when that would leave none of them."""
    kept = without_overlong(problems, num_tokens, limit)
    if problems.problems and not kept.problems:
        raise DataError(
            f"every prompt is longer than {limit} tokens ({len(problems.problems)} problems); "
            "raise --rollout.max-prompt-tokens or use shorter problems"
        )
    return kept
