"""Curves of several runs over each other: one line for each recipe, with a band where it has several runs.

A line is the mean of its runs at each step, over those that got so far, and the band reaches from the lowest of them to
the highest. Knows no recipe: which runs belong together is handed in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import Any

from peerwise.evaluate.pairing import number
from peerwise.report.curves import charts_by_key, curves
from peerwise.report.folder import Row, RunFolder, step_of
from peerwise.report.measured import evaluations

_AXES = ("tokens", "seconds")
_HEADLINES = (
    "accuracy/sampled",
    "reward/mean",
    "length/mean",
    "length/truncated",
    "groups/informative",
    "entropy/mean",
    "kl/mean",
    "grad_norm",
    "loss",
)
"""Metrics that are shown first."""


def overlay(groups: Sequence[Sequence[RunFolder]]) -> dict[str, Any]:
    """The runs' metrics as lines over common charts, a line for each group of runs.

    `lines` [L] hold the steps of each line (global_step, stage, and mean tokens and seconds up to there); `series` has
    for each key [L] lines of `mean`, `low` and `high` over these steps, None for a line without the key; `low` and
    `high` are None for one run. `held_out` has for each task [L] lists of points.
    """
    drawn = [[curves(run.metrics, []) for run in group] for group in groups]
    keys = dict.fromkeys(key for group in drawn for found in group for key in found["series"])
    charts = charts_by_key(keys)
    charts.sort(key=lambda chart: _HEADLINES.index(chart["key"]) if chart["key"] in _HEADLINES else len(_HEADLINES))
    return {
        "lines": [_line(group) for group in drawn],
        "charts": [chart | {"headline": chart["key"] in _HEADLINES} for chart in charts],
        "series": {key: [_series(group, key) for group in drawn] for key in keys},
        "held_out": _held_out(groups),
    }


def _line(group: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Where the steps of a line lie: those that any of its runs did."""
    steps = _steps(group)
    stages: dict[int, str] = {}
    for found in group:
        stages |= dict(zip(found["steps"]["global_step"], found["steps"]["stage"], strict=True))
    axes = {axis: _means(steps, [_by_step(found, found["steps"][axis]) for found in group]) for axis in _AXES}
    return {"global_step": steps, "stage": [stages[step] for step in steps], **axes}


def _series(group: Sequence[dict[str, Any]], key: str) -> dict[str, list[float | None] | None] | None:
    members = [_by_step(found, found["series"][key]) for found in group if key in found["series"]]
    if not members:
        return None
    steps, band = _steps(group), len(group) > 1
    return {
        "mean": _means(steps, members),
        "low": _combined(steps, members, min) if band else None,
        "high": _combined(steps, members, max) if band else None,
    }


def _steps(group: Sequence[dict[str, Any]]) -> list[int]:
    return sorted({step for found in group for step in found["steps"]["global_step"]})


def _by_step(found: dict[str, Any], values: Iterable[float | None]) -> dict[int, float | None]:
    return dict(zip(found["steps"]["global_step"], values, strict=True))


def _means(steps: Sequence[int], members: Sequence[dict[int, float | None]]) -> list[float | None]:
    return _combined(steps, members, fmean)


def _combined(
    steps: Sequence[int], members: Sequence[dict[int, float | None]], how: Callable[[list[float]], float]
) -> list[float | None]:
    at = ([value for member in members if (value := member.get(step)) is not None] for step in steps)
    return [how(values) if values else None for values in at]


def _held_out(groups: Sequence[Sequence[RunFolder]]) -> dict[str, list[list[dict[str, Any]]]]:
    """Task -> for each line its points: accuracy, and its 95 % interval or, for several runs, lowest and highest."""
    measured = [[row for run in group for row in evaluations(run.evals)] for group in groups]
    tasks = dict.fromkeys(row["task"] for rows in measured for row in rows if row["accuracy"] is not None)
    return {
        task: [
            _points(
                [row for row in rows if row["task"] == task and row["accuracy"] is not None], several=len(group) > 1
            )
            for rows, group in zip(measured, groups, strict=True)
        ]
        for task in tasks
    }


def _points(rows: Sequence[Row], *, several: bool) -> list[dict[str, Any]]:
    points = []
    for step in sorted({step_of(row) for row in rows}):
        here = [row for row in rows if step_of(row) == step]
        found = [number(row["accuracy"]) or 0.0 for row in here]
        bounds = [min(found), max(found)] if several else here[-1]["interval"]
        points.append({"global_step": step, "accuracy": fmean(found), "bounds": bounds, "runs": len(found)})
    return points
