"""A small run folder written by hand, for tests to look at, spoil or grow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

LOG = """\
2026-01-02 10:00:00 tiny (3 M parameters, float32) on cpu, 2 threads, x86_64; run folder /runs/tiny
2026-01-02 10:00:10 stage warm (sft), 2 steps
2026-01-02 10:00:30 warning: sampler and trainer disagree by more than 0.1 nats a token on average
2026-01-02 10:00:40   answer, reward 0, wrong, no answer read: 2026-01-02 10:00:40
    warning: a model said this
2026-01-02 10:02:00 warning, 3 times: sampler and trainer disagree by more than 0.1 nats a token on average
2026-01-02 10:02:05 finished; the model is in /runs/tiny/checkpoints/step-4
"""


def evaluation(at: str, stage: str, global_step: int, right: list[int], **more: Any) -> dict[str, Any]:
    """A record of one answer a problem."""
    share = sum(right) / len(right)
    example = {
        "problem": "p/1",
        "question": "1 + 1",
        "gold": "2",
        "text": f"said {at}",
        "correct": True,
        "extracted": "2",
    }
    return {
        "stage": stage, "step": global_step, "global_step": global_step, "at": at, "task": "sums", "split": "test",
        "n": len(right), "samples": 1, "accuracy": share, "interval": [share / 2, (1 + share) / 2], "mean_tokens": 9.5,
        "reward": share, "truncated": 0.0, "unread": 0.0, "right": right, "examples": [example], "version": "9.9.9",
    } | more  # fmt: skip


def answer(text: str, reward: float, advantage: float, **more: Any) -> dict[str, Any]:
    """One completion of a group."""
    return {
        "text": text, "tokens": len(text), "finish": "stop", "reward": reward, "parts": {"correct": reward},
        "correct": reward > 0, "extracted": text[-1:], "advantage": advantage,
    } | more  # fmt: skip


def group(global_step: int, answers: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """One line of rollouts.jsonl."""
    return {
        "stage": "grpo", "step": global_step - 2, "global_step": global_step, "problem": f"p/{global_step}",
        "task": "sums", "messages": [{"role": "user", "content": "What is 1 + 1?"}], "gold": "2",
        "completions": answers,
    } | more  # fmt: skip


def metrics(global_step: int, stage: str, **values: Any) -> dict[str, Any]:
    """One line of metrics.jsonl; slashes of keys are written as two underscores."""
    named = {key.replace("__", "/"): value for key, value in values.items()}
    return {"stage": stage, "step": 1, "global_step": global_step, "time/step": 30.0, **named}


def lines(rows: list[dict[str, Any]]) -> str:
    """Rows as a file has them."""
    return "".join(json.dumps(row) + "\n" for row in rows)


def write_run(folder: Path, **files: str) -> Path:
    """A complete run of two stages; `files` replaces the content of files by their names without the ending."""
    sampled = {"loss": 0.0, "mismatch/mean": 0.2}
    wrong, right = (0.0, -0.5), (1.0, 0.5)
    one, six, ten = (answer(text, *wrong) for text in ("one 1", "six 6", "ten 0"))
    unread = answer("no", 0.0, -1.5, extracted=None, finish="length")
    whole = {
        "recipe": '[run]\nseed = 7\n[model]\npath = "tiny"\n',
        "metrics": lines([
            metrics(1, "warm", loss=2.0),
            metrics(2, "warm", loss=1.0),
            metrics(3, "grpo", reward__mean=0.25, accuracy__sampled=0.25, length__mean=4.0, tokens__sampled=100.0)
            | sampled,
            metrics(4, "grpo", reward__mean=0.75, accuracy__sampled=0.75, length__mean=6.0, tokens__sampled=50.0)
            | sampled,
        ]),
        "rollouts": lines([
            group(3, [one, answer("two 2", 1.0, 1.5), six, ten]),
            group(4, [answer("is 2", *right), answer("oh 2", *right), answer("so 2", *right), unread]),
        ]),
        "evals": lines([
            evaluation("before", "warm", 0, [0, 0, 0, 1]),
            evaluation("after", "warm", 2, [0, 1, 0, 1]),
            evaluation("during", "grpo", 3, [1, 1, 0, 0]),
            evaluation("after", "grpo", 4, [1, 1, 1, 1]),
        ]),
        "run": LOG,
    } | files  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in whole.items():
        ending = {"recipe": "toml", "run": "log"}.get(name, "jsonl")
        (folder / f"{name}.{ending}").write_text(content, encoding="utf-8")
    for step in (2, 4):
        (folder / "checkpoints" / f"step-{step}").mkdir(parents=True, exist_ok=True)
    return folder
