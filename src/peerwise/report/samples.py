"""The recorded groups of a run as a reader meets them, and how their rewards were spread over the steps.

Works on rows of rollouts.jsonl. What a model wrote is passed on as text; making it harmless is `page.py`'s work.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from typing import Any

from peerwise.evaluate.pairing import number
from peerwise.report.disagreement import disagreements
from peerwise.report.folder import Row, step_of
from peerwise.report.tokens import LENGTHS, spacing, trace_of

CHARACTERS_KEPT = 150_000_000
"""Characters of answers in one report; beyond it long answers are cut, because a browser has to hold them all."""
SHORTEST_CUT = 500
REWARD_BINS, STEP_BINS = 20, 200
"""Rows and columns of the heat map at most."""


def groups(rollouts: Sequence[Row], missing: list[str]) -> list[dict[str, Any]]:
    """Every recorded group, its answers sorted by advantage, highest first; what is left out goes to `missing`.

    A group's `id` is its step and its place within the step, the same in every report of the run; `line` is its line
    in rollouts.jsonl.
    """
    whole = [(row, answers) for row in rollouts if (answers := _completions(row))]
    if broken := len(rollouts) - len(whole):
        missing.append(f"rollouts.jsonl: {broken} groups are left out (no completions in them).")
    apart = spacing(answer for _, answers in whole for answer in answers)
    if apart > 1:
        missing.append(f"Only one group in {apart} has its tokens coloured; rollouts.jsonl has the figures of all.")
    seen: Counter[int] = Counter()
    found: list[dict[str, Any]] = []
    unfit = 0
    for place, (row, answers) in enumerate(whole):
        seen[step_of(row)] += 1
        found.append(_group(row, answers, seen[step_of(row)], traced=place % apart == 0))
        if place % apart == 0:
            unfit += sum(LENGTHS in answer for answer in answers)
            unfit -= sum(answer["trace"] is not None for answer in found[-1]["answers"])
    if unfit:
        missing.append(f"rollouts.jsonl: the tokens of {unfit} answers are not coloured (their figures do not fit).")
    _cut(found, missing)
    return found


def index(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The groups without their texts; `line` tells where those are."""
    return [
        {key: value for key, value in group.items() if key not in ("messages", "gold", "answers")} for group in found
    ]


def reward_map(found: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Shares of rewards by step: `steps` [S], `rewards` [R] and `shares` [R][S]; None without rewards.

    Few different rewards have a row each; many are put into bins of equal width, `rewards` their middles. Neighbouring
    steps share a column where there are many, `steps` the first of each.
    """
    pairs = [
        (group["global_step"], answer["reward"])
        for group in found
        for answer in group["answers"]
        if answer["reward"] is not None and answer["failed"] is None
    ]
    if not pairs:
        return None
    edges, rewards = _bins(sorted({reward for _, reward in pairs}))
    steps = sorted({step for step, _ in pairs})
    width = -(-len(steps) // STEP_BINS)
    columns = steps[::width]
    counts = [[0] * len(columns) for _ in rewards]
    for step, reward in pairs:
        counts[bisect_right(edges, reward) - 1][bisect_right(columns, step) - 1] += 1
    totals = [sum(column) for column in zip(*counts, strict=True)]
    shares = [[count / total for count, total in zip(row, totals, strict=True)] for row in counts]
    return {"steps": columns, "rewards": rewards, "shares": shares}


def _bins(distinct: list[float]) -> tuple[list[float], list[float]]:
    """(lower edge, shown value) of each row of the map."""
    if len(distinct) <= REWARD_BINS:
        return distinct, distinct
    low, width = distinct[0], (distinct[-1] - distinct[0]) / REWARD_BINS
    edges = [low + place * width for place in range(REWARD_BINS)]
    return edges, [edge + width / 2 for edge in edges]


def _completions(row: Row) -> list[Row]:
    """The answers of a group; empty where there are none, or anything else among them."""
    answers = row.get("completions")
    return answers if isinstance(answers, list) and all(isinstance(answer, dict) for answer in answers) else []


def _group(row: Row, answers: list[Row], place: int, *, traced: bool) -> dict[str, Any]:
    shown = sorted(
        (_answer(answer, traced=traced) for answer in answers), key=lambda answer: -(answer["advantage"] or 0.0)
    )
    messages, gold = row.get("messages"), _text(row.get("gold"))
    for answer in shown:
        answer["disagrees"] = disagreements(answer, gold, shown)
    return {
        "id": f"{step_of(row)}-{place}",
        "line": row.get("line"),
        "stage": str(row.get("stage", "")),
        "step": number(row.get("step")),
        "global_step": step_of(row),
        "problem": str(row.get("problem", "")),
        "task": str(row.get("task", "")),
        "size": len(shown),
        "right": sum(answer["correct"] for answer in shown),
        "truncated": sum(answer["finish"] == "length" for answer in shown),
        "unread": sum(answer["extracted"] is None for answer in shown),
        "failed": sum(answer["failed"] is not None for answer in shown),
        "disagreement": sum(bool(answer["disagrees"]) for answer in shown),
        "longest": max(answer["tokens"] or 0 for answer in shown),
        "messages": [_message(message) for message in messages] if isinstance(messages, list) else [],
        "gold": gold,
        "answers": shown,
    }


def _answer(row: Row, *, traced: bool) -> dict[str, Any]:
    parts = row.get("parts")
    return {
        "text": _text(row.get("text")) or "",
        "tokens": number(row.get("tokens")),
        "finish": _text(row.get("finish")),
        "reward": number(row.get("reward")),
        "parts": {str(name): number(part) for name, part in parts.items()} if isinstance(parts, dict) else {},
        "correct": row.get("correct") is True,
        "extracted": _text(row.get("extracted")),
        "rule": _text(row.get("rule")),
        "failed": _text(row.get("failed")),
        "advantage": number(row.get("advantage")),
        "trace": trace_of(row) if traced else None,
    }


def _message(message: object) -> dict[str, Any]:
    if not isinstance(message, dict):
        return {"role": "", "content": _text(message)}
    return {"role": _text(message.get("role")), "content": _text(message.get("content"))}


def _text(value: object) -> str | None:
    return value if value is None or isinstance(value, str) else str(value)


def _cut(found: Sequence[dict[str, Any]], missing: list[str]) -> None:
    """Shorten the longest answers when there is more text than one page can hold."""
    answers = [answer for group in found for answer in group["answers"]]
    if sum(len(answer["text"]) for answer in answers) <= CHARACTERS_KEPT:
        return
    most = max(SHORTEST_CUT, CHARACTERS_KEPT // len(answers))
    long = [answer for answer in answers if len(answer["text"]) > most]
    for answer in long:
        answer["text"] = answer["text"][:most]
    missing.append(f"{len(long)} answers are cut to {most:,} characters; rollouts.jsonl has all of them whole.")
