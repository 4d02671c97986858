"""The evaluations of a run as a report shows them: points on the curves, the table of steps, answers side by side.

Works on rows of evals.jsonl and metrics.jsonl; knows no chart.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from peerwise.evaluate.pairing import number
from peerwise.report.folder import Row, step_of
from peerwise.report.verdict import interval, tasks_of, when

SIDE_BY_SIDE = 8
"""Evaluations whose answers are shown beside each other: the first, the last and those evenly between."""
TEXT_SHOWN = 4_000
"""Characters of an answer that are shown beside others; the file has the rest."""
_FIELDS = ("accuracy", "reward", "mean_tokens", "truncated", "unread", "failed")


def evaluations(evals: Sequence[Row]) -> list[dict[str, Any]]:
    """Every record without its answers: numbers, intervals, pass@k and maj@k."""
    return [
        {
            "task": label,
            "stage": str(row.get("stage", "")),
            "global_step": step_of(row),
            "step": number(row.get("step")),
            "at": str(row.get("at", "")),
            "when": when(row),
            "n": number(row.get("n")),
            "samples": number(row.get("samples")),
            "interval": interval(row.get("interval")),
            **{name: number(row.get(name)) for name in _FIELDS},
            **{name: _by_k(row.get(name)) for name in ("pass_at_k", "maj_at_k")},
        }
        for label, rows in tasks_of(evals).items()
        for row in rows
    ]


def table(metrics: Sequence[Row], evals: Sequence[Row]) -> list[dict[str, Any]]:
    """Steps, response length and accuracy: one row an evaluation, with the training steps since the one before.

    `sampled_accuracy` and `sampled_length` are means over those steps; None where nothing was sampled.
    """
    rows = []
    for label, records in tasks_of(evals).items():
        since = -1
        for row in records:
            upto = step_of(row)
            between = [metric for metric in metrics if since < step_of(metric) <= upto]
            rows.append(
                {
                    "task": label,
                    "when": when(row),
                    "global_step": upto,
                    "length": number(row.get("mean_tokens")),
                    "accuracy": number(row.get("accuracy")),
                    "interval": interval(row.get("interval")),
                    "truncated": number(row.get("truncated")),
                    "sampled_length": _mean(between, "length/mean"),
                    "sampled_accuracy": _mean(between, "accuracy/sampled"),
                }
            )
            since = upto
    return rows


def side_by_side(evals: Sequence[Row]) -> list[dict[str, Any]]:
    """The held-out examples by task: each problem with its answers through training, the same columns for all."""
    shown = []
    for label, rows in tasks_of(evals).items():
        with_examples = [row for row in rows if isinstance(row.get("examples"), list)]
        chosen = _evenly(with_examples, SIDE_BY_SIDE)
        problems: dict[str, dict[str, Any]] = {}
        for row in chosen:
            answers_of(problems, row, when(row))
        if problems:
            left_out = len(with_examples) - len(chosen)
            shown.append({"task": label, "problems": list(problems.values()), "left_out": left_out})
    return shown


def answers_of(problems: dict[str, dict[str, Any]], row: Row, label: str) -> None:
    """Add the examples of a record to the problems they answer, by the problem's name, each under a label."""
    for example in row["examples"]:
        if isinstance(example, dict):
            _add(problems, example, label)


def _add(problems: dict[str, dict[str, Any]], example: Row, label: str) -> None:
    name, text = str(example.get("problem")), str(example.get("text", ""))
    problem = problems.setdefault(
        name,
        {
            "problem": name,
            "question": str(example.get("question", "")),
            "gold": str(example.get("gold", "")),
            "answers": [],
        },
    )
    problem["answers"].append(
        {
            "when": label,
            "text": text[:TEXT_SHOWN],
            "hidden": max(0, len(text) - TEXT_SHOWN),
            "correct": example.get("correct") is True,
            "extracted": None if example.get("extracted") is None else str(example["extracted"]),
        }
    )


def _by_k(value: object) -> dict[str, dict[str, Any]]:
    if not isinstance(value, dict):
        return {}
    return {
        str(k): {"value": number(found.get("value")), "interval": interval(found.get("interval"))}
        for k, found in value.items()
        if isinstance(found, dict)
    }


def _mean(rows: Sequence[Row], key: str) -> float | None:
    values = [value for row in rows if (value := number(row.get(key))) is not None]
    return fmean(values) if values else None


def _evenly(rows: list[Row], most: int) -> list[Row]:
    if len(rows) <= most:
        return rows
    return [rows[round(place * (len(rows) - 1) / (most - 1))] for place in range(most)]
