"""Pins `evaluation.patience`: when a stage ends early, with which weights, what the folder says of it, and that the
next stage and a resumed process go on from there.

The accuracies of evaluations are scripted by global step; everything else is a real run.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny_runs import assert_same_run, digests, go_on, killed_at, rows, start

from peerwise.metrics.write import RunFiles
from peerwise.train.checkpoint import State, checkpoints, prune
from peerwise.train.grpo import Grpo
from peerwise.train.session import Session
from peerwise.train.sft import Sft
from peerwise.train.standing import best_evaluation

Script = Callable[[Mapping[int, float]], None]

# The choice of the best


def record(step: int, accuracy: float, task: str = "t") -> dict[str, Any]:
    return {"global_step": step, "accuracy": accuracy, "task": task}


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([record(5, 0.2)], (5, 0)),
        ([record(5, 0.2), record(10, 0.3)], (10, 0)),
        ([record(5, 0.3), record(10, 0.2), record(15, 0.1)], (5, 2)),
        # Of equals the earliest: to do as well again is no gain.
        ([record(5, 0.1), record(10, 0.3), record(15, 0.3), record(20, 0.3)], (10, 2)),
        ([record(5, 0.0), record(10, 0.0)], (5, 1)),
        # In whatever order they come.
        ([record(20, 0.2), record(5, 0.1), record(15, 0.4), record(10, 0.3)], (15, 1)),
        # The mean over tasks: 0.5, then (0.9 + 0.2) / 2 = 0.55, then (0.1 + 0.8) / 2 = 0.45.
        ([record(5, 0.5, "a"), record(5, 0.5, "b"), record(10, 0.9, "a"), record(10, 0.2, "b"), record(15, 0.1, "a"),
          record(15, 0.8, "b")], (10, 1)),
    ],
)  # fmt: skip
def test_the_best_evaluation_is_the_first_with_the_highest_mean_accuracy(records, expected):
    assert best_evaluation(records) == expected


def test_the_best_checkpoint_is_not_pruned_and_does_not_count_among_the_latest(tmp_path):
    for step in (1, 2, 3, 4, 5):
        folder = tmp_path / "checkpoints" / f"step-{step}" / "trainer"
        folder.mkdir(parents=True)
        state = State(stage="s", step=step, stage_steps=9 if step != 2 else 2, global_step=step, position=0)
        (folder / "state.json").write_text(json.dumps(asdict(state)))
    prune(tmp_path, 1, best=3)
    # 2 ends a stage, 3 is the best, 5 is the latest.
    assert [state.global_step for _, state in checkpoints(tmp_path)] == [2, 3, 5]
    prune(tmp_path, 1)
    assert [state.global_step for _, state in checkpoints(tmp_path)] == [2, 5]


# A stage that ends early


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    """`script({global step: accuracy})` is what evaluations find from then on; any other step is an error."""
    measure = Session.measure

    def use(accuracies: Mapping[int, float]) -> None:
        def scripted(self: Session, *, stage: str, step: int, global_step: int) -> list[dict[str, Any]]:
            found = measure(self, stage=stage, step=step, global_step=global_step)
            return [row | {"accuracy": accuracies[global_step]} for row in found]

        monkeypatch.setattr(Session, "measure", scripted)

    return use


LONG = ["--stage.sft.steps", "8", "--stage.grpo.steps", "3", "--evaluation.every", "1", "--run.checkpoint-every", "0"]
PATIENT = [*LONG, "--evaluation.patience", "2"]
EARLY = {0: 0.9, 1: 0.2, 2: 0.5, 3: 0.4, 4: 0.5, 5: 0.1, 6: 0.3, 7: 0.2}
"""Sft is best at 2; 3 and 4 are no gain (4 is only as good), so it ends at 4 of 8. Grpo takes 5, 6 and 7, all it has,
and is best at 6. What was measured before training is better than all of it and decides nothing."""


def weights(folder: Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(folder / "checkpoints" / f"step-{step}" / "model.safetensors")


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a | b)


def timeline(folder: Path) -> list[tuple[str, int, int, str, float]]:
    return [
        (row["stage"], row["step"], row["global_step"], row["at"], row["accuracy"])
        for row in rows(folder, "evals.jsonl")
    ]


@pytest.mark.parametrize("variant", ["full", "lora-kl", "bfloat16"])
def test_a_stage_without_gain_ends_with_its_best_weights_and_the_next_goes_on_from_them(
    files, tmp_path, script, monkeypatch, variant
):
    script(EARLY)
    begins: list[dict[str, torch.Tensor]] = []
    original = Grpo.step

    def spying(self: Grpo, step: int) -> Any:
        if step == 0:
            begins.append({n: p.detach().float().clone() for n, p in self.session.policy.model.named_parameters()})
        return original(self, step)

    monkeypatch.setattr(Grpo, "step", spying)
    folder = tmp_path / "run"
    said = start(files, folder, variant, *PATIENT, "--run.keep-checkpoints", "9")
    assert "stage sft ends after step 4 with the weights of step-2" in said
    assert "(50.0 %)" in said
    steps = [(row["stage"], row["step"], row["global_step"]) for row in rows(folder, "metrics.jsonl")]
    assert steps == [("sft", n, n) for n in (1, 2, 3, 4)] + [("grpo", n, n + 4) for n in (1, 2, 3)]
    assert timeline(folder) == [
        ("sft", 0, 0, "before", 0.9),
        ("sft", 1, 1, "during", 0.2),
        ("sft", 2, 2, "during", 0.5),
        ("sft", 3, 3, "during", 0.4),
        ("sft", 4, 4, "during", 0.5),
        ("sft", 4, 4, "after", 0.5),
        ("grpo", 1, 5, "during", 0.1),
        ("grpo", 2, 6, "during", 0.3),
        ("grpo", 3, 7, "during", 0.2),
        ("grpo", 3, 7, "after", 0.3),
    ]
    # What is said of the end of a stage is what was measured at its best step.
    by_step = {(row["global_step"], row["at"]): row for row in rows(folder, "evals.jsonl")}
    for best, end in ((2, 4), (6, 7)):
        assert by_step[end, "after"]["examples"] == by_step[best, "during"]["examples"]
        assert by_step[end, "after"]["right"] == by_step[best, "during"]["right"]
        assert same(weights(folder, end), weights(folder, best))
    assert not same(weights(folder, 4), weights(folder, 1))
    states = {state.global_step: state for _, state in checkpoints(folder)}
    assert states[4].ends_stage
    assert not (folder / "checkpoints" / "step-4" / "trainer" / "optimizer.safetensors").exists()
    assert states[7].ends_stage
    if variant != "lora-kl":  # adapters have other names in the model than in the checkpoint
        (found,) = begins
        saved = weights(folder, 2)
        for name, p in found.items():
            assert torch.equal(p, saved[name].bfloat16().float() if variant == "bfloat16" else saved[name]), name


def test_a_stage_that_went_on_would_have_had_other_weights(files, tmp_path, script):
    # What the test above calls the best weights differ from those that the stage had when it ended.
    script(EARLY | {8: 0.1, 9: 0.1, 10: 0.1, 11: 0.1})
    start(files, tmp_path / "early", "full", *PATIENT)
    words = [*LONG[:-1], "2", "--run.keep-checkpoints", "9"]
    start(files, tmp_path / "all", "full", *words)
    assert same(weights(tmp_path / "early", 2), weights(tmp_path / "all", 2))
    assert not same(weights(tmp_path / "early", 4), weights(tmp_path / "all", 4))


@pytest.mark.parametrize(("patience", "end"), [(1, 3), (2, 6), (3, 8)])
def test_it_is_evaluations_in_a_row_since_the_best_that_are_counted(files, tmp_path, script, patience, end):
    # Gains at 1, 2 and 4. One without gain: 3. Two in a row: 5 and 6. Three in a row: 5, 6 and 7, but for 7.
    accuracies = {0: 0.0, 1: 0.1, 2: 0.2, 3: 0.1, 4: 0.3, 5: 0.2, 6: 0.2, 7: 0.4, 8: 0.5}
    script(accuracies | {n: 1.0 - n / 100 for n in range(end + 1, end + 4)})
    folder = tmp_path / "run"
    start(files, folder, "full", *LONG, "--evaluation.patience", str(patience))
    assert max(row["step"] for row in rows(folder, "metrics.jsonl") if row["stage"] == "sft") == end
    (after,) = [row for row in rows(folder, "evals.jsonl") if row["stage"] == "sft" and row["at"] == "after"]
    assert (after["step"], after["accuracy"]) == (end, {3: 0.2, 6: 0.3, 8: 0.5}[end])
    assert next(state.step for _, state in checkpoints(folder) if state.ends_stage) == end


def test_patience_is_counted_in_evaluations_and_not_in_steps(files, tmp_path, script):
    script({0: 0.0, 2: 0.5, 4: 0.4, 6: 0.4, 8: 0.6, 9: 0.6})
    words = [
        "--stage.sft.steps",
        "8",
        "--stage.grpo.steps",
        "3",
        "--evaluation.every",
        "2",
        "--evaluation.patience",
        "2",
    ]
    start(files, tmp_path / "run", "full", *words)
    # Best at 2; 4 and 6 are no gain. Grpo: steps 7, 8 and 9, evaluated after its step 2 and at its end.
    assert [(row[2], row[3]) for row in timeline(tmp_path / "run")] == [
        (0, "before"), (2, "during"), (4, "during"), (6, "during"), (6, "after"), (8, "during"), (9, "during"),
        (9, "after"),
    ]  # fmt: skip
    assert same(weights(tmp_path / "run", 6), weights(tmp_path / "run", 2))


def test_a_last_evaluation_that_is_the_best_ends_the_stage_as_ever(files, tmp_path, script):
    script({0: 0.0, 1: 0.1, 2: 0.2, 3: 0.3, 4: 0.1, 5: 0.2, 6: 0.3, 7: 0.4})
    words = ["--evaluation.every", "1"]
    start(files, tmp_path / "patient", "full", *words, "--evaluation.patience", "2")
    start(files, tmp_path / "plain", "full", *words)
    for name in ("metrics.jsonl", "rollouts.jsonl", "evals.jsonl"):
        assert rows(tmp_path / "patient", name) == rows(tmp_path / "plain", name)
    assert [row[3] for row in timeline(tmp_path / "patient")].count("after") == 2
    for step in (3, 7):
        assert same(weights(tmp_path / "patient", step), weights(tmp_path / "plain", step))


@pytest.fixture(scope="session")
def plain_run(straight) -> Path:
    """Made before any script replaces what a run measures, since others compare with the same run."""
    return straight("full")


def test_without_patience_accuracies_decide_nothing(files, plain_run, tmp_path, script):
    falling = {0: 0.9, 2: 0.5, 3: 0.4, 5: 0.2, 7: 0.1}
    script(falling)
    start(files, tmp_path / "run", "full", "--evaluation.patience", "0")
    for name in ("metrics.jsonl", "rollouts.jsonl"):
        assert rows(tmp_path / "run", name) == rows(plain_run, name)
    for ours, theirs in zip(rows(tmp_path / "run", "evals.jsonl"), rows(plain_run, "evals.jsonl"), strict=True):
        assert ours == theirs | {"accuracy": falling[ours["global_step"]]}
    assert digests(tmp_path / "run" / "checkpoints") == digests(plain_run / "checkpoints")


# Checkpoints of the best


def test_the_best_checkpoint_outlives_those_that_come_after_it(files, tmp_path, script):
    script({0: 0.0, 1: 0.2, 2: 0.5, 3: 0.4, 4: 0.3, 5: 0.2, 6: 0.3, 7: 0.2, 8: 0.1})
    words = ["--stage.sft.steps", "8", "--stage.grpo.steps", "3", "--evaluation.every", "1", "--evaluation.patience",
             "3", "--run.checkpoint-every", "1", "--run.keep-checkpoints", "1"]  # fmt: skip
    start(files, tmp_path / "run", "full", *words)
    kept = [state.global_step for _, state in checkpoints(tmp_path / "run")]
    # Sft ends at 5 with the weights of 2; grpo takes 6, 7 and 8 and ends with those of 6.
    assert {5, 6, 8} <= set(kept)
    assert same(weights(tmp_path / "run", 8), weights(tmp_path / "run", 6))
    sft = [row for row in timeline(tmp_path / "run") if row[0] == "sft"]
    assert sft[-1] == ("sft", 5, 5, "after", 0.5)


def test_a_better_evaluation_is_saved_whatever_the_recipe_says_of_checkpoints(files, tmp_path, script):
    script(EARLY)
    start(files, tmp_path / "run", "full", *PATIENT, "--run.keep-checkpoints", "5")
    # 1 and 2 were the best in their time; 3 was not, 4 and 7 end a stage; of grpo 5, then 6.
    assert [state.global_step for _, state in checkpoints(tmp_path / "run")] == [1, 2, 4, 5, 6, 7]


@pytest.fixture
def without_best(files, tmp_path, script, monkeypatch) -> tuple[Path, str]:
    """A run whose best checkpoint someone removed before its stage ended, and what it said."""
    script(EARLY)
    folder = tmp_path / "run"
    original = Sft.step

    def removing(self: Sft, step: int) -> Any:
        if step == 3:
            shutil.rmtree(folder / "checkpoints" / "step-2")
        return original(self, step)

    monkeypatch.setattr(Sft, "step", removing)
    return folder, " ".join(start(files, folder, "full", *PATIENT).split())


def test_when_the_best_checkpoint_is_gone_the_run_says_so_and_goes_on_with_the_latest(without_best):
    folder, said = without_best
    assert "the best checkpoint of the stage, is gone" in said
    assert [row["global_step"] for row in rows(folder, "metrics.jsonl")] == [1, 2, 3, 4, 5, 6, 7]
    assert [row[0] for row in timeline(folder) if row[3] == "after"][-1] == "grpo"


def test_when_the_best_checkpoint_is_gone_what_holds_after_the_stage_is_recorded_all_the_same(without_best):
    folder, _ = without_best
    assert [row[0] for row in timeline(folder) if row[3] == "after"] == ["sft", "grpo"]


# A kill


@pytest.fixture(scope="module")
def undisturbed(files, tmp_path_factory):
    made: dict[tuple[str, ...], Path] = {}

    def run(*words: str) -> Path:
        if words not in made:
            made[words] = tmp_path_factory.mktemp("undisturbed") / "run"
            start(files, made[words], "full", *words)
        return made[words]

    return run


SAVED = ["--stage.sft.steps", "8", "--stage.grpo.steps", "3", "--evaluation.every", "1", "--evaluation.patience", "2",
         "--run.checkpoint-every", "1", "--run.keep-checkpoints", "1"]  # fmt: skip


@pytest.mark.parametrize("words", [PATIENT, SAVED], ids=["saved when best", "saved at every step"])
@pytest.mark.parametrize(
    ("owner", "method", "call"),
    [
        *[(Sft, "step", n) for n in (2, 3, 4)],
        *[(Grpo, "step", n) for n in (1, 2, 3)],
        # The evaluation rows: before, 1, 2, 3, 4, after at 4, 5, 6, 7, after at 7.
        *[(RunFiles, "evaluation", n) for n in (3, 5, 6, 9, 10)],
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_run_with_patience_killed_anywhere_and_resumed_equals_a_straight_one(
    files, undisturbed, tmp_path, script, monkeypatch, words, owner, method, call, after
):
    script(EARLY)
    expected = undisturbed(*words)
    folder = tmp_path / "run"
    with killed_at(owner, method, call, after=after, monkeypatch=monkeypatch):
        start(files, folder, "full", *words)
    go_on(folder)
    assert_same_run(folder, expected)


def test_a_run_killed_right_after_a_stage_ended_early_goes_on_with_the_next_stage(
    files, undisturbed, tmp_path, script, monkeypatch
):
    script(EARLY)
    folder = tmp_path / "run"
    with killed_at(Grpo, "step", 1, after=False, monkeypatch=monkeypatch):
        start(files, folder, "full", *PATIENT)
    assert [state.global_step for _, state in checkpoints(folder)][-1] == 4
    trained: list[int] = []
    original = Sft.step
    monkeypatch.setattr(Sft, "step", lambda self, step: trained.append(step) or original(self, step))
    go_on(folder)
    assert trained == []
    assert [(row["stage"], row["global_step"]) for row in rows(folder, "metrics.jsonl")][4:] == [
        ("grpo", 5), ("grpo", 6), ("grpo", 7)
    ]  # fmt: skip
    assert_same_run(folder, undisturbed(*PATIENT))


def test_resuming_a_finished_run_with_patience_changes_nothing(files, tmp_path, script):
    script(EARLY)
    folder = tmp_path / "run"
    start(files, folder, "full", *PATIENT)
    before = digests(folder)
    assert "finished" in go_on(folder)
    after = digests(folder)
    assert {name for name in before.keys() | after.keys() if after.get(name) != before.get(name)} <= {"run.log"}


def test_a_resumed_run_keeps_the_best_checkpoint_until_its_next_evaluation(files, tmp_path, script, monkeypatch):
    # Evaluated at every second step, saved at each: after the kill at step 3 the best, 2, is only in the records.
    script({0: 0.0, 2: 0.5, 4: 0.4, 6: 0.3, 8: 0.2, 9: 0.1})
    words = ["--stage.sft.steps", "8", "--stage.grpo.steps", "3", "--evaluation.every", "2", "--evaluation.patience",
             "2", "--run.checkpoint-every", "1", "--run.keep-checkpoints", "1"]  # fmt: skip
    start(files, tmp_path / "straight", "full", *words)
    assert timeline(tmp_path / "straight")[4] == ("sft", 6, 6, "after", 0.5)
    folder = tmp_path / "run"
    with killed_at(Sft, "step", 3, after=True, monkeypatch=monkeypatch):
        start(files, folder, "full", *words)
    said = go_on(folder)
    assert "is gone" not in " ".join(said.split())
    assert_same_run(folder, tmp_path / "straight")
