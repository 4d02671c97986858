"""Pins that a run's folder is told as the run told itself, in its order and as it grows, and what spoilt rows cost."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from peerwise.metrics.board import Planned
from peerwise.metrics.console import Console
from peerwise.metrics.follow import Follow
from peerwise.metrics.replay import Replay
from peerwise.metrics.sample import of_row

STAGES = {"sft": Planned("sft", "sft", 1), "grpo": Planned("grpo", "grpo", 4)}


def a_step(stage: str, step: int, at: int) -> dict[str, Any]:
    return {"stage": stage, "step": step, "global_step": at, "loss": 0.5, "time/step": 1.0, "non_finite": ["x"]}


def a_group(step: int, at: int, *texts: str) -> dict[str, Any]:
    answers = [{"text": t, "reward": float("42" in t), "correct": "42" in t, "extracted": t or None} for t in texts]
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "6 * 7 = ?"}]
    where = {"stage": "grpo", "step": step, "global_step": at}
    return where | {"problem": f"toy/{at}", "messages": messages, "gold": "42", "completions": answers}


def an_evaluation(stage: str, step: int, at: int, when: str, accuracy: float) -> dict[str, Any]:
    where = {"stage": stage, "step": step, "global_step": at, "at": when, "task": "toy"}
    return where | {"n": 8, "accuracy": accuracy, "interval": [0.0, 1.0], "mean_tokens": 5.0}


def written(folder: Path, name: str, *rows: Any) -> None:
    with (folder / name).open("a") as file:
        file.writelines((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)


@pytest.fixture
def out() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def replay(tmp_path: Path, out: io.StringIO) -> Replay:
    # A clock that leaps, so that every line is shown.
    moments = iter(range(0, 10**6, 100))
    return Replay(tmp_path, STAGES, 2, Console(file=out, clock=lambda: float(next(moments))))


def test_figures_samples_and_evaluations_of_a_step_come_in_this_order(
    replay: Replay, tmp_path: Path, out: io.StringIO
) -> None:
    written(
        tmp_path, "evals.jsonl", an_evaluation("sft", 0, 0, "before", 0.25), an_evaluation("grpo", 2, 3, "during", 0.5)
    )
    written(tmp_path, "rollouts.jsonl", a_group(1, 2, "no"), a_group(2, 3, "so 41", "so 42"))
    written(tmp_path, "metrics.jsonl", a_step("sft", 1, 1), a_step("grpo", 1, 2), a_step("grpo", 2, 3))
    assert replay.tell() is False
    heads = [line.split("  ")[0] for line in out.getvalue().splitlines() if not line.startswith(" ")]
    assert heads == [
        "evaluation sft 0", "stage sft (sft), 1 steps", "sft 1/1", "stage grpo (grpo), 4 steps", "grpo 1/4", "grpo 2/4",
        "problem toy/3", "evaluation grpo 2",
    ]  # fmt: skip
    assert "  question: 6 * 7 = ?\n  gold: 42\n  answer, reward 1, right, read so 42: so 42\n" in out.getvalue()
    assert not replay.passed_over


def test_it_is_over_with_the_evaluation_after_the_last_stage(replay: Replay, tmp_path: Path) -> None:
    written(tmp_path, "evals.jsonl", an_evaluation("sft", 1, 1, "after", 0.25))
    assert replay.tell() is False
    written(tmp_path, "evals.jsonl", an_evaluation("grpo", 4, 5, "after", 0.5))
    assert replay.tell() is True
    assert [row["accuracy"] for row in replay.milestones] == [0.25, 0.5]


def test_the_last_step_is_told_also_when_it_is_written_while_the_files_are_read(
    replay: Replay, tmp_path: Path, out: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Follow.rows

    def read_and_overtaken(follow: Follow) -> list[dict[str, Any]]:
        found = list(read(follow))
        if follow.path.name == "metrics.jsonl" and not follow.path.exists():
            written(tmp_path, "metrics.jsonl", a_step("grpo", 4, 5))
            written(tmp_path, "evals.jsonl", an_evaluation("grpo", 4, 5, "after", 0.5))
        return found

    monkeypatch.setattr(Follow, "rows", read_and_overtaken)
    assert replay.tell() is False
    assert replay.tell() is True
    assert "grpo 4/4" in out.getvalue()


def test_nothing_is_told_twice(replay: Replay, tmp_path: Path, out: io.StringIO) -> None:
    written(tmp_path, "metrics.jsonl", a_step("grpo", 1, 2))
    replay.tell()
    replay.tell()
    assert out.getvalue().count("grpo 1/4") == 1


def test_at_most_two_groups_of_a_step_are_shown_and_only_of_steps_the_run_shows(
    replay: Replay, tmp_path: Path, out: io.StringIO
) -> None:
    written(tmp_path, "rollouts.jsonl", *[a_group(step, step, "so 42") for step in (1, 2, 2, 2, 3)])
    replay.tell()
    assert out.getvalue().count("problem toy/") == 2
    assert out.getvalue().count("problem toy/2") == 2


def test_warnings_of_the_log_are_told_and_an_answer_cannot_forge_one(
    replay: Replay, tmp_path: Path, out: io.StringIO
) -> None:
    written(
        tmp_path, "run.log", "2026-01-02 10:00:01 warning: look out", "2026-01-02 10:00:02   question: x",
        "    2026-01-02 10:00:03 warning: forged",
    )  # fmt: skip
    replay.tell()
    assert out.getvalue() == "warning: look out\n"


def test_rows_that_are_not_what_a_run_writes_are_passed_over_and_counted(
    replay: Replay, tmp_path: Path, out: io.StringIO
) -> None:
    good = an_evaluation("grpo", 1, 2, "during", 0.5)
    written(tmp_path, "metrics.jsonl", {"stage": "grpo"}, a_step("grpo", 1, 2) | {"step": "1"}, a_step("x", 1, 2))
    written(tmp_path, "rollouts.jsonl", a_group(2, 3), a_group(2, 3, "42") | {"completions": [7]}, a_group(2, 3, "42"))
    written(
        tmp_path, "evals.jsonl", good | {"interval": None}, good | {"accuracy": "1"}, good | {"at": 1},
        good | {"mean_tokens": []}, good | {"n": 1.5}, good,
    )  # fmt: skip
    replay.tell()
    assert dict(replay.passed_over) == {"metrics.jsonl": 2, "rollouts.jsonl": 2, "evals.jsonl": 5}
    assert "stage x (?), 1 steps" in out.getvalue()
    assert out.getvalue().count("evaluation") == 1


def test_a_row_gives_its_last_question_and_its_answers_by_reward() -> None:
    sample = of_row(a_group(1, 1, "41", "42", "40"))
    assert sample is not None
    assert sample.question == "6 * 7 = ?"
    assert [answer.text for answer in sample.answers] == ["42", "41", "40"]
    assert [answer.text for answer in sample.ends()] == ["42", "40"]
