"""Pins that an answer whose reward failed is left out of the update, whatever the method: the same weights come out as
if its group had been sampled without it, and no figure of rewards or correctness knows of it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_runs import opened

from peerwise.metrics.value import Metrics
from peerwise.records import Group, Score
from peerwise.train.dpo import pairs_of
from peerwise.train.sampling import _measure

RIGHT = Score(total=1.0, correct=True, parts={"correct": 1.0}, extracted="1")
WRONG = Score(total=0.0, correct=False, parts={"correct": 0.0}, extracted="2")
FAILED = Score(total=0.0, correct=True, failed="timed out")


def scored(group: Group, *scores: Score) -> Group:
    """The first answers of a group with these scores."""
    kept = group.completions[: len(scores)]
    return replace(group, completions=kept, scores=scores)


def updated(files: Any, folder: Any, groups: list[Group], *words: str) -> tuple[Any, dict[str, float]]:
    """A stage after one step on these groups, and what it measured."""
    stage = opened(files, folder, *words)
    stage.sampling.draw = lambda step: groups
    return stage, stage.step(0).resolve()


@pytest.fixture
def sampled(files: Any, tmp_path: Any) -> list[Group]:
    """Two groups of four answers."""
    stage = opened(files, tmp_path / "sampled", "--rollout.group-size", "4")
    return stage.sampling.draw(0)[:2]


@pytest.mark.parametrize(
    "words",
    [
        ["--algorithm.preset", "grpo", "--algorithm.kl-coefficient", "0"],
        ["--algorithm.preset", "dr_grpo"],
        ["--algorithm.preset", "rloo", "--algorithm.kl-coefficient", "0.1"],
        ["--algorithm.preset", "reinforce_pp", "--algorithm.kl-coefficient", "0.1"],
        ["--algorithm.preset", "ppo", "--algorithm.kl-coefficient", "0.1"],
    ],
    ids=lambda words: words[1],
)
def test_the_update_is_that_of_the_groups_without_the_failed_answer(
    files: Any, tmp_path: Any, sampled: list[Group], words: list[str]
) -> None:
    with_failed = [scored(group, RIGHT, WRONG, WRONG, FAILED) for group in sampled]
    without = [scored(group, RIGHT, WRONG, WRONG) for group in sampled]
    one, measured = updated(files, tmp_path / "one", with_failed, *words)
    other, expected = updated(files, tmp_path / "other", without, *words)
    assert float(one.advantages[:, 3].abs().max()) == 0.0
    torch.testing.assert_close(one.advantages[:, :3], other.advantages, rtol=1e-5, atol=1e-6)
    assert measured["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-4)
    assert measured["grad_norm"] > 0
    weights = dict(other.session.policy.model.named_parameters())
    for name, p in one.session.policy.model.named_parameters():
        torch.testing.assert_close(p, weights[name], rtol=1e-4, atol=1e-6)
    for key in ("reward/mean", "accuracy/sampled", "groups/informative", "reward/std_in_group", "answers/unread"):
        assert measured[key] == pytest.approx(expected[key])
    assert measured["reward/failed"] == 0.25


def test_a_step_whose_rewards_all_failed_moves_nothing_and_says_so(
    files: Any, tmp_path: Any, sampled: list[Group]
) -> None:
    groups = [scored(group, FAILED, FAILED, FAILED, FAILED) for group in sampled]
    stage, measured = updated(files, tmp_path / "run", groups)
    assert measured["reward/failed"] == 1.0
    assert measured["loss"] == 0.0 and measured["skipped/empty"] >= 1
    assert "reward/mean" not in measured
    assert not bool(stage.advantages.any())


def test_a_group_with_one_kind_of_answer_beside_failed_ones_teaches_nothing(sampled: list[Group]) -> None:
    assert not scored(sampled[0], WRONG, WRONG, FAILED).informative
    assert scored(sampled[0], RIGHT, WRONG, FAILED).informative


def test_failed_answers_are_in_no_pair(sampled: list[Group]) -> None:
    assert pairs_of([scored(sampled[0], FAILED, WRONG, RIGHT, FAILED)]) == [(2, 1)]


def test_lengths_are_counted_whether_or_not_the_reward_failed(sampled: list[Group]) -> None:
    metrics = Metrics()
    _measure(metrics, [scored(sampled[0], FAILED, WRONG)])
    tokens = [len(c.token_ids) for c in sampled[0].completions[:2]]
    found = metrics.resolve()
    assert found["tokens/sampled"] == sum(tokens)
    assert found["length/wrong"] == tokens[1]
    assert "length/right" not in found
