"""Pins how a run deals with its rewards: weights follow the stage's step, a failure costs its sample, rewards that
teach nothing or do not know a right answer are said, programs are run behind walls that are named first.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import RECIPE, rows, start

from peerwise.errors import DataError
from peerwise.metrics.console import Console
from peerwise.recipe.load import loads
from peerwise.train.stages import train

PARTS = ["--task.reward", "parts", "--task.last-number", "false"]
LENGTHS = """
def even(text, step):
    if step == 1 and len(text) % 2:
        raise ValueError("odd")
    return {"correct": float(sum(map(ord, text)) % 2)}
"""


def said_by(recipe: str, folder: Path, *words: str) -> str:
    out = io.StringIO()
    train(loads(recipe, words), folder, Console(file=out))
    return " ".join(out.getvalue().split())


def answers(folder: Path) -> list[tuple[int, dict[str, Any]]]:
    """(step of the grpo stage, counted from 0, and the answer's row)."""
    found = [row for row in rows(folder, "rollouts.jsonl") if row["stage"] == "grpo"]
    return [(row["step"] - 1, answer) for row in found for answer in row["completions"]]


def test_weights_follow_the_steps_of_the_stage(files: Path, tmp_path: Path) -> None:
    weights = 'reward_weights = { correct = 1.0, repetition = { "0" = 0.0, "2" = 0.5 }, steps = 0.25 }'
    recipe = (files / "recipe.toml").read_text().replace('template = "plain"', f'template = "plain"\n{weights}')
    said_by(recipe, tmp_path / "run", *PARTS)
    at = [0.0, 0.25, 0.5, 0.5]
    seen = set()
    for step, answer in answers(tmp_path / "run"):
        parts = {name: value or 0.0 for name, value in answer["parts"].items()}
        expected = parts["correct"] + at[step] * parts["repetition"] + 0.25 * parts["steps"]
        assert answer["reward"] == pytest.approx(expected)
        seen.add((step, parts["repetition"] != 0))
    assert {step for step, _ in seen} == {0, 1, 2, 3}


def test_a_reward_that_fails_costs_the_sample_and_is_counted(files: Path, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(LENGTHS)
    words = ["--task.reward", f"{tmp_path / 'own.py'}:even", "--task.reward-failures", "1"]
    said = start(files, tmp_path / "run", "full", *words)
    assert "ValueError: odd" in said
    for step, answer in answers(tmp_path / "run"):
        failed = step == 1 and len(answer["text"]) % 2 == 1
        assert answer.get("failed") == ("raised ValueError" if failed else None)
        if failed:
            assert (answer["reward"], answer["advantage"]) == (0.0, 0.0)
    steps = [row for row in rows(tmp_path / "run", "metrics.jsonl") if row["stage"] == "grpo"]
    shares = [sum(len(answer["text"]) % 2 for at, answer in answers(tmp_path / "run") if at == 1) / 8]
    assert [row["reward/failed"] for row in steps] == [0.0, *shares, 0.0, 0.0]
    assert shares[0] > 0


def test_a_reward_of_ones_own_that_pays_nothing_is_warned_of_before_and_while_training(
    files: Path, tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text("def never(text):\n    return 0.0\n")
    words = ["--task.reward", f"{tmp_path / 'own.py'}:never", "--stage.grpo.steps", "6", "--rollout.group-size", "12"]
    said = " ".join(start(files, tmp_path / "run", "full", *words).split())
    assert "does not know a right answer" in said
    assert "constant-part: task arithmetic: The part never was 0 for all samples so far; it teaches nothing." in said


def test_golds_that_the_reward_does_not_know_are_refused_before_anything_is_written(
    files: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data.jsonl"
    rows_of_it = [{"prompt": f"why {n}", "answer": "word " * 30 + str(n)} for n in range(40)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows_of_it))
    words = ["--task.name", "files", "--task.path", str(data), "--task.reward", "correctness"]
    recipe = RECIPE.replace("[task.params]\nsize = 60\nmax_ops = 2\n", "").replace("{model}", str(files / "model"))
    with pytest.raises(DataError, match="rows cannot be used, more than 5%"):
        said_by(recipe.replace("{reward}", "none.py"), tmp_path / "run", *words)
    assert not (tmp_path / "run").exists()


def test_programs_are_run_behind_walls_that_are_named_first(files: Path, tmp_path: Path) -> None:
    data = tmp_path / "programs.jsonl"
    made = [
        {
            "prompt": f"Write plus{n}(x).",
            "tests": [f"assert plus{n}(1) == {n + 1}", f"assert plus{n}(2) == {n + 2}"],
            "solution": f"def plus{n}(x):\n    return x + {n}",
        }
        for n in range(12)
    ]
    data.write_text("".join(json.dumps(row) + "\n" for row in made))
    recipe = RECIPE.replace("[task.params]\nsize = 60\nmax_ops = 2\n", "").replace("{model}", str(files / "model"))
    recipe = recipe[: recipe.index("[stage.sft]")] + "[stage.grpo]\nmethod = 'grpo'\nsteps = 1\n"
    words = [
        "--task.name",
        "programs",
        "--task.path",
        str(data),
        "--task.reward",
        "programs",
        "--task.template",
        "code",
    ]
    words += ["--rollout.max-prompt-tokens", "128", "--evaluation.problems", "2"]
    said = said_by(recipe.replace("{reward}", "none.py"), tmp_path / "run", *words)
    assert "answers are run as programs; walls: " in said and "limits: " in said
    # A random model writes no program.
    assert {answer["reward"] for _, answer in answers(tmp_path / "run")} == {-0.5}
    assert {answer["parts"]["compiles"] for _, answer in answers(tmp_path / "run")} == {0.0}
