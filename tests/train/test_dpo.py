"""Pins DPO and imitation of own answers: the loss by hand, the two-pass gradient against plain autograd, learning."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import rows, start

from peerwise.algo.preference import dpo_loss
from peerwise.errors import TrainingError
from peerwise.metrics.value import Metrics
from peerwise.models.forward import PackedGroup
from peerwise.records import Completion, Group, Problem, Score
from peerwise.train.dpo import pairs_of
from peerwise.train.likelihood import weighted_likelihood
from peerwise.train.masters import MasterWeights
from peerwise.train.optimizer import Optimizer

DPO = ["--stage.grpo.method", "dpo", "--dpo.beta", "0.5"]


def group(prompt: tuple[int, ...], answers: list[tuple[int, ...]], right: list[bool]) -> Group:
    return Group(
        problem=Problem(id=str(prompt), task="toy", messages=(), answer=""),
        prompt_ids=prompt,
        completions=tuple(
            Completion(token_ids=ids, logprobs=(-1.0,) * len(ids), finish="stop", text="") for ids in answers
        ),
        scores=tuple(Score(total=float(r), correct=r) for r in right),
    )


def test_the_loss_of_a_pair_by_hand() -> None:
    # margin = 0.5 * ((-1 - -2) - (-3 - -2)) = 0.5 * (1 + 1) = 1; -ln sigmoid(1) = ln(1 + e^-1) = 0.313262.
    one = torch.ones(1, dtype=torch.float64)
    loss, margins = dpo_loss(-1 * one, -3 * one, -2 * one, -2 * one, beta=0.5)
    assert margins.tolist() == [1.0]
    assert loss.item() == pytest.approx(0.3132616875)


def test_at_the_reference_the_loss_is_ln_2_and_the_slopes_are_half_beta_over_the_pairs() -> None:
    # sigmoid(0) = 1/2; d loss / d right = -beta * (1 - 1/2) / N with N = 2 pairs and beta = 0.1.
    sums = torch.tensor([-5.0, -7.0], dtype=torch.float64, requires_grad=True)
    wrong = torch.tensor([-6.0, -9.0], dtype=torch.float64, requires_grad=True)
    loss, _ = dpo_loss(sums, wrong, sums.detach(), wrong.detach(), beta=0.1)
    loss.backward()
    assert loss.item() == pytest.approx(math.log(2))
    assert sums.grad is not None and wrong.grad is not None
    assert sums.grad.tolist() == pytest.approx([-0.025, -0.025])
    assert wrong.grad.tolist() == pytest.approx([0.025, 0.025])


def test_no_pair_gives_a_loss_of_zero() -> None:
    none = torch.zeros(0)
    loss, margins = dpo_loss(none, none, none, none, beta=0.1)
    assert (float(loss), margins.tolist()) == (0.0, [])


def test_pairs_are_the_ith_right_with_the_ith_wrong_answer_of_a_group() -> None:
    answers = [(4,), (5,), (6,), (7,)]
    groups = [
        group((1,), answers, [True, False, True, True]),  # places 0-3: one wrong, so one pair
        group((1,), answers, [True] * 4),  # places 4-7: none
        group((1,), answers, [False, True, False, True]),  # places 8-11: two
    ]
    assert pairs_of(groups) == [(0, 1), (9, 8), (11, 10)]


@pytest.mark.parametrize("budget", [16, 4096])
def test_the_gradient_is_that_of_the_coupled_loss_whatever_the_micro_batches(tiny_policy: Any, budget: int) -> None:
    # One group whose right and wrong answers fall into different micro-batches at a budget of 16 tokens.
    prompt, answers = (1, 7, 8, 9, 10, 11), [(12, 13, 14, 15, 2), (20, 21, 2), (30, 31, 32, 33, 34, 2), (40, 2)]
    right, wrong, beta = [0, 2], [1, 3], 0.7
    plain = tiny_policy("llama")
    sums = []
    for answer in answers:
        logits = plain.model(input_ids=torch.tensor([[*prompt, *answer]])).logits[0].log_softmax(-1)
        at = torch.arange(len(prompt) - 1, len(prompt) + len(answer) - 1)
        sums.append(logits[at, torch.tensor(answer)].sum())
    values = torch.stack(sums)
    reference = values.detach() + torch.tensor([0.3, -0.2, 0.1, 0.4])
    expected_loss = -torch.nn.functional.logsigmoid(
        beta * ((values[right] - reference[right]) - (values[wrong] - reference[wrong]))
    ).mean()
    expected_loss.backward()

    ours = tiny_policy("llama")
    optimizer = Optimizer(MasterWeights(ours.model), betas=(0.9, 0.99), eps=1e-8, weight_decay=0.0, max_norm=1.0)
    leaf = values.detach().double().requires_grad_()
    loss, _ = dpo_loss(leaf[right], leaf[wrong], reference.double()[right], reference.double()[wrong], beta=beta)
    loss.backward()
    assert leaf.grad is not None
    weighted_likelihood(
        ours,
        [PackedGroup(prompt=prompt, completions=tuple(answers))],
        -leaf.grad,
        optimizer,
        Metrics(),
        temperature=1.0,
        micro_batch_tokens=budget,
    )
    assert loss.item() == pytest.approx(float(expected_loss), rel=1e-5)
    for (name, p), q in zip(plain.model.named_parameters(), ours.model.parameters(), strict=True):
        assert p.grad is not None and q.grad is not None, name
        assert torch.allclose(p.grad, q.grad, rtol=1e-4, atol=1e-6), name


def test_a_stage_begins_at_the_reference_and_learns_to_prefer_right_answers(files: Path, tmp_path: Path) -> None:
    start(files, tmp_path / "run", "full", *DPO, "--stage.grpo.steps", "6", "--evaluation.every", "0")
    steps = [row for row in rows(tmp_path / "run", "metrics.jsonl") if row["stage"] == "grpo"]
    with_pairs = [row for row in steps if row["pairs/mean"] > 0]
    assert len(with_pairs) >= 4
    assert with_pairs[0]["loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert with_pairs[0]["pairs/margin"] == pytest.approx(0.0, abs=1e-4)
    signs = {
        value
        for row in rows(tmp_path / "run", "rollouts.jsonl")
        for c in row["completions"]
        for value in [c["advantage"]]
    }
    assert signs == {-1.0, 0.0, 1.0}


def test_a_batch_without_pairs_is_counted_and_skipped_and_many_in_a_row_end_the_run(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("peerwise.train.dpo.pairs_of", lambda groups: [])
    (tmp_path / "wrong.py").write_text('def never(problem, completion):\n    return {"correct": 0.0}\n')
    with pytest.raises(TrainingError, match="nothing can be learned"):
        start(
            files, tmp_path / "run", "full", *DPO, "--stage.grpo.steps", "20", "--evaluation.every", "0",
            "--task.reward", f"{tmp_path / 'wrong.py'}:never",
        )  # fmt: skip
    steps = [row for row in rows(tmp_path / "run", "metrics.jsonl") if row["stage"] == "grpo"]
    assert [row["groups/informative"] for row in steps] == [0.0] * 10
    assert all(row["skipped/empty"] == 1 and row["loss"] == 0.0 for row in steps)


def test_imitating_own_answers_takes_the_first_right_ones_that_ended(files: Path, tmp_path: Path) -> None:
    start(
        files, tmp_path / "run", "full", "--stage.grpo.method", "sft", "--stage.grpo.sft.source", "own",
        "--stage.grpo.sft.own-answers", "2", "--evaluation.every", "0", "--stage.grpo.rollout.max-new-tokens", "32",
    )  # fmt: skip
    groups = rows(tmp_path / "run", "rollouts.jsonl")
    assert len(groups) == 4 * 2
    for row in groups:
        usable = [i for i, c in enumerate(row["completions"]) if c["correct"] and c["finish"] == "stop"]
        chosen = [i for i, c in enumerate(row["completions"]) if c["advantage"] == 1.0]
        assert chosen == usable[:2]
