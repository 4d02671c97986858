"""The one table of tasks and the one way to load problems from them.

A task turns a request into problems; splits, duplicates and limits are handled here, the same way for all. Knows
nothing of tokenizers, models or rewards. Libraries that read data sets are imported by the task that needs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from peerwise.errors import DataError, RequestError, nearest
from peerwise.tasks import arithmetic, files, gsm8k, math, procedural, prompts, splits
from peerwise.tasks.source import Pool, ProblemSet, Request, Task
from peerwise.tasks.splits import drop_overlong

__all__ = ["TASKS", "Pool", "ProblemSet", "Request", "Task", "TaskData", "drop_overlong", "load_task"]

TASKS: dict[str, Task] = {
    "arithmetic": arithmetic.load,
    "gsm8k": gsm8k.load,
    "math": math.load,
    "files": files.load,
    "reasoning-gym": procedural.load,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskData:
    """One task's problems; no question is in both sets."""

    train: ProblemSet
    held_out: ProblemSet


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
) -> TaskData:
    """Load the task called `name`; the arguments mean what the recipe's `[task]` fields of the same name mean.

    `held_out` is how many evaluation problems are wanted: taken from `eval_split`, else from the task's own test split
    (None all of it), else held out of `split`. Their questions are removed from the training problems.

    Raises RequestError for an unknown task, template or parameter, DataError for data that cannot be used or when no
    training problem is left.
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
    )
    train, evaluation = splits.hold_out(TASKS[name](request), held_out, seed)
    train = splits.first(train, limit)
    if not train.problems:
        reasons = ", ".join(f"{count} {reason}" for reason, count in train.dropped.items()) or "the source is empty"
        raise DataError(f"task {name!r}: no training problem is left ({reasons}); give more data or hold out fewer")
    return TaskData(train=train, held_out=evaluation)
