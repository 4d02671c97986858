"""Whether the run learned: held-out accuracy before and after each stage, and the gain paired by problem.

Works on the rows of evals.jsonl. Two evaluations are compared in pairs only when they asked the same problems in the
same way; otherwise it says that they did not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from peerwise.evaluate.pairing import Gain, number, paired_gain
from peerwise.report.folder import Row
from peerwise.report.words import points, share


def tasks_of(evals: Sequence[Row]) -> dict[str, list[Row]]:
    """Records by task and split, each in the order they were measured."""
    found: dict[str, list[Row]] = {}
    for row in evals:
        label = "/".join(str(row[key]) for key in ("task", "split") if row.get(key)) or "held-out problems"
        found.setdefault(label, []).append(row)
    return found


def milestones(rows: Sequence[Row]) -> list[Row]:
    """Before the first stage and after each; a stage that has not ended stands with its latest record."""
    kept: dict[str, Row] = {}
    for row in rows:
        name = "before" if row.get("at") == "before" else f"stage {row.get('stage')}"
        kept[name] = row
    return list(kept.values())


def outcome(rows: Sequence[Row]) -> dict[str, Any]:
    """One task's milestones with the gain of each over the one before it, and the gain over the whole run."""
    found = milestones(rows)
    stages = [
        {
            "when": when(row),
            "accuracy": number(row.get("accuracy")),
            "interval": interval(row.get("interval")),
            "n": row.get("n"),
            "gain": _plain(paired_gain(found[index - 1], row)) if index else None,
        }
        for index, row in enumerate(found)
    ]
    whole = paired_gain(found[0], found[-1]) if len(found) > 1 else None
    return {"stages": stages, "gain": _plain(whole), "kind": _kind(whole, len(found))}


def when(row: Row) -> str:
    """When a record was measured, in words."""
    if row.get("at") == "before":
        return "before training"
    return (
        f"after {row.get('stage')}" if row.get("at") == "after" else f"at step {row.get('step')} of {row.get('stage')}"
    )


def interval(value: object) -> list[float] | None:
    """[low, high] if the value is two finite numbers."""
    bounds = [number(bound) for bound in value] if isinstance(value, list) else []
    return [bound for bound in bounds if bound is not None] if len(bounds) == 2 and None not in bounds else None


def sentence(label: str, result: dict[str, Any]) -> str:
    """The outcome of one task for a reader."""
    steps = ", ".join(f"{share(stage['accuracy'], stage['interval'])} {stage['when']}" for stage in result["stages"])
    told = f"{label}: held-out accuracy {steps} ({result['stages'][-1]['n']} problems, 95 % intervals)."
    gain = result["gain"]
    if gain is None:
        return told + (" Their problems or settings differ, so no paired gain." if len(result["stages"]) > 1 else "")
    return f"{told} Paired by problem: {points(gain)}; {gain['gained']} problems gained, {gain['lost']} lost."


def _kind(gain: Gain | None, measured: int) -> str:
    if gain is None:
        return "once" if measured == 1 else "unpaired"
    if not gain.beyond_chance:
        return "unchanged"
    return "better" if gain.difference > 0 else "worse"


def _plain(gain: Gain | None) -> dict[str, Any] | None:
    if gain is None:
        return None
    return {name: getattr(gain, name) for name in ("difference", "low", "high", "gained", "lost", "p")}
