"""Runs side by side: what each reached and cost, and how far apart they are on the problems that both were measured on.

Reads rows of metrics.jsonl and evals.jsonl, handed in; measures nothing and opens no file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from peerwise.evaluate.estimate import bootstrap_difference, newcombe_difference, sign_test

Row = Mapping[str, Any]

SAME = ("task", "settings", "split", "n", "samples", "temperature", "max_new_tokens", "stop", "seed")
"""What two records of an evaluation must agree in for their problems to be the same ones, in the same order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRows:
    """One run as its files tell it."""

    name: str
    steps: Sequence[Row]
    evaluations: Sequence[Row]


def summary(run: RunRows, goal: float | None = None) -> dict[str, Any]:
    """What a run reached, for each task its evaluations before and last, and what it cost.

    Args:
        goal: an accuracy; the first evaluation of each task that reaches it is told with its cost up to there.
    """
    tasks: dict[str, dict[str, Any]] = {}
    for task in dict.fromkeys(row["task"] for row in run.evaluations):
        rows = [row for row in run.evaluations if row["task"] == task]
        tasks[task] = {"before": _reached(rows[0]), "last": _reached(rows[-1])}
        if goal is not None:
            first = next((row for row in rows if row["accuracy"] >= goal), None)
            tasks[task] |= {"goal": None if first is None else _cost(run, first["global_step"])}
    last = max((row["global_step"] for row in run.steps), default=0)
    return {"run": run.name, "tasks": tasks, **_cost(run, last), "peak_bytes": _most(run.steps, "memory/peak")}


def difference(one: RunRows, other: RunRows) -> list[dict[str, Any]]:
    """For each task that both measured last with one answer a problem: accuracy of `other` minus that of `one`.

    Paired over the problems where both were measured on the same ones; else the two shares are compared.
    """
    found = []
    for task in dict.fromkeys(row["task"] for row in one.evaluations):
        before, after = _last(one, task), _last(other, task)
        if before is None or after is None or before["samples"] != 1 or after["samples"] != 1:
            continue
        paired = all(before.get(key) == after.get(key) for key in SAME)
        right, wrong = [count > 0 for count in before["right"]], [count > 0 for count in after["right"]]
        if paired:
            change, low, high = bootstrap_difference(right, wrong)
            gained = sum(b and not a for a, b in zip(right, wrong, strict=True))
            lost = sum(a and not b for a, b in zip(right, wrong, strict=True))
            signs = {"gained": gained, "lost": lost, "sign_test": sign_test(gained, lost)}
        else:
            change, low, high = newcombe_difference(sum(right), len(right), sum(wrong), len(wrong))
            signs = {}
        found.append({"task": task, "difference": change, "interval": [low, high], "paired": paired, **signs})
    return found


def _last(run: RunRows, task: str) -> Row | None:
    return next((row for row in reversed(run.evaluations) if row["task"] == task), None)


def _reached(row: Row) -> dict[str, Any]:
    return {key: row[key] for key in ("stage", "step", "n", "samples", "accuracy", "interval", "mean_tokens")}


def _cost(run: RunRows, until: int) -> dict[str, Any]:
    """Steps, seconds of steps (evaluations not counted) and tokens sampled up to a global step."""
    steps = [row for row in run.steps if row["global_step"] <= until]
    return {
        "steps": len(steps),
        "seconds": sum(row.get("time/step") or 0.0 for row in steps),
        "sampled_tokens": int(sum(row.get("tokens/sampled") or 0 for row in steps)),
    }


def _most(steps: Sequence[Row], key: str) -> float | None:
    return max((row[key] for row in steps if row.get(key) is not None), default=None)
