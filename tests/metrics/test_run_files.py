"""Pins the row files of a run folder: strict JSON a line, what a kill leaves behind, and going back to a checkpoint."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from peerwise.errors import DataError, PeerwiseError
from peerwise.metrics.write import RunFiles, read_rows
from peerwise.records import Completion, Group, Problem, Score


def a_group(text: str = "42.", total: float = 1.0) -> Group:
    problem = Problem(id="toy/1", task="toy", messages=({"role": "user", "content": "6 × 7 = ?"},), answer="42")
    return Group(
        problem=problem,
        prompt_ids=(5, 6),
        completions=(
            Completion(token_ids=(41, 7, 2), logprobs=(-0.1, -1.3, -0.01), finish="stop", text=text),
            Completion(token_ids=(9,), logprobs=(-2.0,), finish="length", text="四十"),
        ),
        scores=(
            Score(total=total, correct=True, parts={"correct": 1.0, "length": None}, extracted="42"),
            Score(total=0.0, correct=False, parts={"correct": 0.0, "length": None}),
        ),
    )


def strict_lines(path: Path) -> list[dict[str, object]]:
    def refuse(name: str) -> float:
        raise AssertionError(f"{name} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_bytes().decode("utf-8").split("\n")[:-1]]


def test_a_sampled_group_is_written_with_its_scores_and_advantages(tmp_path: Path) -> None:
    RunFiles(tmp_path).group("grpo", 3, a_group(), [1.0, -1.0], global_step=13)
    assert strict_lines(tmp_path / "rollouts.jsonl") == [
        {
            "stage": "grpo",
            "step": 3,
            "global_step": 13,
            "problem": "toy/1",
            "task": "toy",
            "messages": [{"role": "user", "content": "6 × 7 = ?"}],
            "gold": "42",
            "completions": [
                {
                    "text": "42.",
                    "tokens": 3,
                    "finish": "stop",
                    "reward": 1.0,
                    "parts": {"correct": 1.0, "length": None},
                    "correct": True,
                    "extracted": "42",
                    "advantage": 1.0,
                },
                {
                    "text": "四十",
                    "tokens": 1,
                    "finish": "length",
                    "reward": 0.0,
                    "parts": {"correct": 0.0, "length": None},
                    "correct": False,
                    "extracted": None,
                    "advantage": -1.0,
                },
            ],
        }
    ]
    assert "四十" in (tmp_path / "rollouts.jsonl").read_text(encoding="utf-8")


def test_advantages_that_are_not_one_a_completion_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="zip"):
        RunFiles(tmp_path).group("grpo", 1, a_group(), [1.0], global_step=1)


def test_metrics_are_flat_columns_and_unknown_keys_are_refused(tmp_path: Path) -> None:
    files = RunFiles(tmp_path)
    files.metrics("sft", 1, {"loss": 0.5, "reward/part/steps": 1.0}, global_step=1)
    with pytest.raises(KeyError, match="did you mean 'loss'"):
        files.metrics("sft", 2, {"losss": 0.5}, global_step=2)
    assert strict_lines(tmp_path / "metrics.jsonl") == [
        {"stage": "sft", "step": 1, "global_step": 1, "loss": 0.5, "reward/part/steps": 1.0}
    ]


def test_numbers_that_are_not_finite_become_null_and_are_named(tmp_path: Path) -> None:
    files = RunFiles(tmp_path)
    files.metrics("grpo", 1, {"loss": math.nan, "grad_norm": math.inf, "epoch": 0.5}, global_step=1)
    files.group("grpo", 1, a_group(total=-math.inf), [math.nan, 0.0], global_step=1)
    (metrics,) = strict_lines(tmp_path / "metrics.jsonl")
    assert (metrics["loss"], metrics["grad_norm"], metrics["epoch"]) == (None, None, 0.5)
    assert metrics["non_finite"] == ["loss", "grad_norm"]
    (group,) = strict_lines(tmp_path / "rollouts.jsonl")
    assert group["non_finite"] == ["completions.0.reward", "completions.0.advantage"]


@pytest.mark.parametrize("text", ["a\nb\r\n", "\u2028\x85\x0b", "\x00\x1b[31m", '"}\n{"global_step": 0}', "😀"])
def test_a_hostile_text_stays_on_one_line_and_comes_back_unchanged(tmp_path: Path, text: str) -> None:
    RunFiles(tmp_path).group("grpo", 1, a_group(text), [0.0, 0.0], global_step=1)
    assert (tmp_path / "rollouts.jsonl").read_bytes().count(b"\n") == 1
    (row,) = read_rows(tmp_path / "rollouts.jsonl")
    assert row["completions"][0]["text"] == text


def test_half_a_surrogate_pair_is_written_as_the_replacement_character(tmp_path: Path) -> None:
    RunFiles(tmp_path).group("grpo", 1, a_group("a\ud800b"), [0.0, 0.0], global_step=1)
    (row,) = read_rows(tmp_path / "rollouts.jsonl")
    assert row["completions"][0]["text"] == "a\ufffdb"


def test_an_evaluation_without_a_global_step_is_refused(tmp_path: Path) -> None:
    files = RunFiles(tmp_path)
    files.evaluation({"global_step": 0, "at": "before", "accuracy": 0.25, "interval": (0.2, 0.3)})
    with pytest.raises(ValueError, match="global_step"):
        files.evaluation({"accuracy": 0.25})
    assert strict_lines(tmp_path / "evals.jsonl") == [
        {"global_step": 0, "at": "before", "accuracy": 0.25, "interval": [0.2, 0.3]}
    ]


def test_a_last_line_cut_at_any_byte_is_passed_over_and_the_rest_is_read(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    whole, last = b'{"global_step": 1}\n', '{"text": "四十", "global_step": 2}\n'.encode()
    for cut in range(len(last) - 1):
        path.write_bytes(whole + last[:cut])
        assert [row["global_step"] for row in read_rows(path)] == [1]
    # Only the newline is missing: the object is whole.
    path.write_bytes(whole + last[:-1])
    assert [row["global_step"] for row in read_rows(path)] == [1, 2]


@pytest.mark.parametrize("broken", [b'{"a": ', b"", b"[1]", b'{"a": NaN}', b"\xff", b"[" * 100_000])
def test_a_broken_line_that_is_not_the_last_is_an_error_with_its_number(tmp_path: Path, broken: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"global_step": 1}\n' + broken + b'\n{"global_step": 2}\n')
    with pytest.raises(DataError, match="line 2"):
        list(read_rows(path))


def test_a_missing_file_is_a_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file"):
        list(read_rows(tmp_path / "metrics.jsonl"))


def test_rewinding_removes_later_rows_and_a_cut_off_line_and_counts_them(tmp_path: Path) -> None:
    files = RunFiles(tmp_path)
    for step in (1, 2, 3):
        files.metrics("grpo", step, {"loss": float(step)}, global_step=step)
        files.group("grpo", step, a_group(), [0.0, 0.0], global_step=step)
    files.evaluation({"global_step": 0, "at": "before"})
    files.evaluation({"global_step": 2, "at": "during"})
    kept = (tmp_path / "rollouts.jsonl").read_bytes().split(b"\n")[:2]
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"stage": "grpo", "step": 4, "glo')

    assert files.rewind(2) == {"metrics.jsonl": 2, "rollouts.jsonl": 1, "evals.jsonl": 0}
    assert [row["loss"] for row in read_rows(tmp_path / "metrics.jsonl")] == [1.0, 2.0]
    assert (tmp_path / "rollouts.jsonl").read_bytes() == b"\n".join(kept) + b"\n"
    assert [row["at"] for row in read_rows(tmp_path / "evals.jsonl")] == ["before", "during"]
    assert files.rewind(2) == {"metrics.jsonl": 0, "rollouts.jsonl": 0, "evals.jsonl": 0}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["evals.jsonl", "metrics.jsonl", "rollouts.jsonl"]


def test_a_line_written_after_rewinding_does_not_stick_to_one_that_lost_its_newline(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b'{"global_step": 1}')
    files = RunFiles(tmp_path)
    files.rewind(1)
    files.metrics("grpo", 2, {}, global_step=2)
    assert [row["global_step"] for row in read_rows(tmp_path / "metrics.jsonl")] == [1, 2]


@pytest.mark.parametrize("row", [b"{}", b'{"global_step": "1"}', b'{"global_step": true}', b'{"global_step": 1.0}'])
def test_a_row_without_a_global_step_stops_the_rewind_and_leaves_the_file_alone(tmp_path: Path, row: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"global_step": 9}\n' + row + b"\n")
    with pytest.raises(DataError, match="line 2: expected an integer global_step"):
        RunFiles(tmp_path).rewind(1)
    assert path.read_bytes() == b'{"global_step": 9}\n' + row + b"\n"
    assert [file.name for file in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_kill_before_the_new_file_is_in_place_leaves_the_old_one_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = RunFiles(tmp_path)
    files.metrics("grpo", 1, {}, global_step=1)
    before = (tmp_path / "metrics.jsonl").read_bytes()

    def killed(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        files.rewind(0)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_a_file_that_cannot_be_written_is_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(PeerwiseError, match=r"cannot write .*metrics\.jsonl.*--resume"):
        RunFiles(tmp_path).metrics("grpo", 1, {}, global_step=1)
