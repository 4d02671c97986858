"""Runs side by side: what each reached and cost, and how far apart they are on the problems that both were measured on.

Reads rows of metrics.jsonl and evals.jsonl, handed in, as they are found; measures nothing and opens no file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from peerwise.evaluate.estimate import newcombe_difference
from peerwise.evaluate.pairing import Row, number, paired_gain, right_of, samples_of


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRows:
    """One run as its files tell it; rows carry `global_step`."""

    name: str
    steps: Sequence[Row]
    evaluations: Sequence[Row]

    def tasks(self) -> dict[str, list[Row]]:
        """The evaluations that tell task and accuracy, by task, in the order they were measured."""
        found: dict[str, list[Row]] = {}
        for row in self.evaluations:
            if isinstance(row.get("task"), str) and number(row.get("accuracy")) is not None:
                found.setdefault(row["task"], []).append(row)
        return found


def common_goals(runs: Sequence[RunRows]) -> dict[str, float]:
    """Task -> the highest accuracy that every run which measured it has reached, so that costs can be compared."""
    best: dict[str, list[float]] = {}
    for run in runs:
        for task, rows in run.tasks().items():
            best.setdefault(task, []).append(max(row["accuracy"] for row in rows))
    return {task: min(reached) for task, reached in best.items()}


def summary(run: RunRows, goals: Mapping[str, float]) -> dict[str, Any]:
    """What a run reached, for each task its evaluations before and last, and what it cost.

    Args:
        goals: task -> an accuracy; the first evaluation that reaches it is told with its cost up to there, None when
            none does.
    """
    tasks: dict[str, dict[str, Any]] = {}
    for task, rows in run.tasks().items():
        tasks[task] = {"before": _reached(rows[0]), "last": _reached(rows[-1])}
        if task in goals:
            first = next((row for row in rows if row["accuracy"] >= goals[task]), None)
            tasks[task] |= {"goal": None if first is None else cost(run, first["global_step"])}
    last = max((row["global_step"] for row in run.steps), default=0)
    return {"run": run.name, "tasks": tasks, **cost(run, last), "peak_bytes": _most(run.steps, "memory/peak")}


def difference(one: RunRows, other: RunRows) -> list[dict[str, Any]]:
    """For each task that both measured: the last accuracy of `other` minus that of `one`.

    Paired over the problems where both were measured on the same ones; else, with one answer a problem, the two shares
    are compared.
    """
    found = []
    tasks, others = one.tasks(), other.tasks()
    for task in (task for task in tasks if task in others):
        before, after = tasks[task][-1], others[task][-1]
        gain = paired_gain(before, after)
        if gain is not None:
            signs = {"gained": gain.gained, "lost": gain.lost, "sign_test": gain.p}
            change, low, high = gain.difference, gain.low, gain.high
        elif samples_of(before) == samples_of(after) == 1 and (shares := _shares(before, after)) is not None:
            (change, low, high), signs = shares, {}
        else:
            continue
        found.append({"task": task, "difference": change, "interval": [low, high], "paired": gain is not None, **signs})
    return found


def together(members: Sequence[RunRows]) -> dict[str, dict[str, Any]]:
    """Task -> mean, lowest and highest of the accuracies that runs of one recipe ended with, and how many they are."""
    last: dict[str, list[float]] = {}
    for member in members:
        for task, rows in member.tasks().items():
            last.setdefault(task, []).append(rows[-1]["accuracy"])
    return {
        task: {"mean": fmean(found), "lowest": min(found), "highest": max(found), "runs": len(found)}
        for task, found in last.items()
    }


def between(ones: Sequence[RunRows], others: Sequence[RunRows]) -> dict[str, dict[str, Any]]:
    """Task -> mean, lowest and highest of the gains from runs of one recipe to runs of another, and how many pairs.

    The pairs are those whose last evaluations asked the same problems in the same way, so runs that draw their held-out
    problems by their seed are compared seed by seed.
    """
    gains: dict[str, list[float]] = {}
    for one in ones:
        for other in others:
            tasks = other.tasks()
            for task, rows in one.tasks().items():
                if task in tasks and (gain := paired_gain(rows[-1], tasks[task][-1])) is not None:
                    gains.setdefault(task, []).append(gain.difference)
    return {
        task: {"mean": fmean(found), "lowest": min(found), "highest": max(found), "pairs": len(found)}
        for task, found in gains.items()
    }


def cost(run: RunRows, until: int) -> dict[str, Any]:
    """Steps, seconds of steps (evaluations not counted) and tokens sampled up to a global step."""
    steps = [row for row in run.steps if row["global_step"] <= until]
    return {
        "steps": len(steps),
        "seconds": sum(number(row.get("time/step")) or 0.0 for row in steps),
        "sampled_tokens": int(sum(number(row.get("tokens/sampled")) or 0.0 for row in steps)),
    }


def _reached(row: Row) -> dict[str, Any]:
    return {key: row.get(key) for key in ("stage", "step", "n", "samples", "accuracy", "interval", "mean_tokens")}


def _shares(before: Row, after: Row) -> tuple[float, float, float] | None:
    right, other = right_of(before), right_of(after)
    return newcombe_difference(sum(right), len(right), sum(other), len(other)) if right and other else None


def _most(steps: Sequence[Row], key: str) -> float | None:
    return max((found for row in steps if (found := number(row.get(key))) is not None), default=None)
