"""The one table of tasks and the one way to load problems from them.

A task turns a request into problems; splits, duplicates and limits are handled here, the same way for all. Knows
nothing of tokenizers, models or rewards. Libraries that read data sets are imported by the task that needs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from peerwise.errors import DataError, RequestError, nearest
from peerwise.tasks import arithmetic, files, gsm8k, inspect, math, procedural, programs, prompts, splits
from peerwise.tasks.source import Pool, ProblemSet, Request, Task
from peerwise.tasks.splits import drop_overlong, without_questions

__all__ = [
    "TASKS",
    "Pool",
    "ProblemSet",
    "Request",
    "Task",
    "TaskData",
    "drop_overlong",
    "load_evaluation",
    "load_task",
    "without_questions",
]

TASKS: dict[str, Task] = {
    "arithmetic": arithmetic.load,
    "gsm8k": gsm8k.load,
    "math": math.load,
    "files": files.load,
    "reasoning-gym": procedural.load,
    "mbpp": programs.mbpp,
    "humaneval": programs.humaneval,
    "programs": programs.load,
}
GENERATED = frozenset({"arithmetic", "reasoning-gym"})
"""Tasks that make their problems; the others read them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskData:
    """One task's problems; no question is in both sets."""

    train: ProblemSet
    held_out: ProblemSet
    split: str
    """What the held-out problems are: the name of their split, or "held out of <split>"."""


def load_task(
    name: str,
    *,
    path: str | None = None,
    split: str = "train",
    eval_split: str | None = None,
    template: str = "boxed",
    columns: Mapping[str, str] | None = None,
    params: Mapping[str, Any] | None = None,
    limit: int | None = None,
    held_out: int | None = 256,
    seed: int = 0,
    encoding: str = "utf-8",
    max_faulty: float = inspect.MOST_FAULTY,
    same: splits.Same = splits.same_text,
) -> TaskData:
    """Load the task called `name`; the arguments mean what the recipe's `[task]` fields of the same name mean.

    `held_out` is how many evaluation problems are wanted: taken from `eval_split`, else from the task's own test split
    (None all of it), else held out of `split`. Their questions are removed from the training problems. `same` says
    whether two golds of one question agree.

    Raises RequestError for an unknown task, template or parameter, DataError for data that cannot be used or when no
    training problem is left, or when too many rows cannot be read.
    """
    if name not in TASKS:
        raise RequestError(f"unknown task {name!r}; {nearest(name, TASKS)}")
    request = Request(
        path=path,
        split=split,
        eval_split=eval_split,
        template=prompts.get(template),
        columns=columns or {},
        params=params or {},
        held_out=held_out,
        seed=seed,
        encoding=encoding,
    )
    pool = TASKS[name](request)
    for part in filter(None, (pool.train, pool.test)):
        inspect.refuse_above(f"task {name!r}", part, share=max_faulty, reasons=inspect.UNREADABLE)
    train, evaluation = splits.hold_out(pool, held_out, seed, same)
    train = splits.first(train, limit)
    if not train.problems:
        reasons = ", ".join(f"{count} {reason}" for reason, count in train.dropped.items()) or "the source is empty"
        raise DataError(f"task {name!r}: no training problem is left ({reasons}); give more data or hold out fewer")
    own = eval_split or "test" if pool.test is not None else f"held out of {split}"
    return TaskData(train=train, held_out=evaluation, split=own)


def load_evaluation(
    name: str,
    *,
    path: str | None = None,
    split: str | None = None,
    template: str = "boxed",
    columns: Mapping[str, str] | None = None,
    params: Mapping[str, Any] | None = None,
    held_out: int | None = None,
    seed: int = 0,
    encoding: str = "utf-8",
) -> ProblemSet:
    """Problems to measure a model on, with nothing set aside for training.

    A single file is taken whole; of a folder or a hub data set `split` (None: "test"); of a generated task the problems
    that a training run with the same seed holds out. `held_out` takes the first so many of a seeded shuffle, as a
    training run does; None takes all.

    Raises RequestError for an unknown task, template or parameter, DataError for data that cannot be used.
    """
    if name not in TASKS:
        raise RequestError(f"unknown task {name!r}; {nearest(name, TASKS)}")
    generated = name in GENERATED
    request = Request(
        path=path,
        split="train" if generated else split or "test",
        eval_split=split if generated else None,
        template=prompts.get(template),
        columns=columns or {},
        params=params or {},
        held_out=held_out,
        seed=seed,
        encoding=encoding,
    )
    pool = TASKS[name](request)
    problems = pool.test if generated and pool.test is not None else pool.train
    inspect.refuse_above(f"task {name!r}", problems, reasons=inspect.UNREADABLE)
    chosen = splits.shuffled(problems.problems, seed, "held out")[:held_out]
    return ProblemSet(problems=tuple(chosen), dropped=problems.dropped, examples=problems.examples)
