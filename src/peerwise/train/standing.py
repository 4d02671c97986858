"""What the records of evaluations say of a run: which was the best, how accuracy changed from stage to stage.

Records are rows of evals.jsonl. Nothing is measured here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from peerwise.evaluate.estimate import bootstrap_difference


def best_evaluation(records: list[dict[str, Any]]) -> tuple[int, int]:
    """The global step with the highest accuracy (mean over tasks, the earliest of equals), and evaluations since."""
    by_step: dict[int, list[dict[str, Any]]] = {}
    for record in records:
        by_step.setdefault(record["global_step"], []).append(record)
    accuracy = {step: mean_accuracy(rows) for step, rows in sorted(by_step.items())}
    best = max(accuracy, key=lambda step: (accuracy[step], -step))
    return best, sum(step > best for step in accuracy)


def mean_accuracy(records: list[dict[str, Any]]) -> float:
    """The accuracy of one evaluation, as a mean over its tasks."""
    return float(sum(row["accuracy"] for row in records) / len(records))


def differences(records: list[dict[str, Any]]) -> Iterator[str]:
    """One line per task and stage: how accuracy changed over the stage, paired over the same problems."""
    previous: dict[str, dict[str, Any]] = {}
    for record in records:
        before = previous.get(record["task"])
        previous[record["task"]] = record
        if before is None or record["samples"] != 1:
            continue
        change, low, high = bootstrap_difference([r > 0 for r in before["right"]], [r > 0 for r in record["right"]])
        yield (
            f"{record['task']}, stage {record['stage']}: accuracy {100 * change:+.1f} points "
            f"[{100 * low:+.1f}, {100 * high:+.1f}], paired over {record['n']} held-out problems"
        )
