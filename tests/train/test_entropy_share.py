"""Pins learning from high-entropy tokens only: the threshold by hand, and what it does to one update's gradient."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from peerwise.algo.presets import PRESETS
from peerwise.models.attention import NAME, use_attention
from peerwise.models.forward import PackedGroup, completion_logprobs
from peerwise.records import Completion, Group, Problem, Score
from peerwise.train.masters import MasterWeights
from peerwise.train.optimizer import Optimizer
from peerwise.train.step import entropy_threshold, policy_step


@pytest.mark.parametrize(
    ("share", "expected"),
    # Of 0.1 .. 0.5: the upper 40 % are 0.4 and 0.5; 41 % reach one further; any share keeps at least one.
    [(0.4, 0.4), (0.41, 0.3), (0.01, 0.5), (0.99, 0.1)],
)
def test_the_threshold_keeps_the_share_of_highest_entropy(share: float, expected: float) -> None:
    rows = [torch.tensor([0.3, 0.5]), torch.tensor([0.1, 0.4, 0.2])]
    assert entropy_threshold(rows, share) == pytest.approx(expected)


def test_a_share_of_one_has_no_threshold() -> None:
    assert entropy_threshold([torch.tensor([0.3])], 1.0) is None


@pytest.mark.parametrize("budget", [12, 4096])
def test_tokens_below_the_threshold_learn_nothing_and_stay_in_the_denominator(tiny_policy: Any, budget: int) -> None:
    prompt, answers = (1, 7, 8), [(9, 10, 11, 2), (20, 21, 2), (30, 2), (40, 41, 42, 2)]
    group = Group(
        problem=Problem(id="a", task="toy", messages=(), answer=""),
        prompt_ids=prompt,
        completions=tuple(Completion(token_ids=a, logprobs=(-1.0,) * len(a), finish="stop", text="") for a in answers),
        scores=tuple(Score(total=float(i < 2), correct=i < 2) for i in range(4)),
    )
    method = replace(PRESETS["dapo"], truncated="keep", uninformative="keep", entropy_share=0.3)
    ours = tiny_policy("llama")
    captured: list[torch.Tensor] = []
    weights = MasterWeights(ours.model)
    optimizer = Optimizer(weights, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.0, max_norm=1e9)
    optimizer.step = lambda rate: captured.extend(g.clone() for g in weights.gradients().values()) or 1.0  # type: ignore
    advantages = torch.tensor([[1.0, 1.0, -1.0, -1.0]])
    policy_step(
        ours, [group], advantages, optimizer, method=method, learning_rate=1e-3, temperature=1.0, max_new_tokens=8,
        micro_batch_tokens=budget,
    )  # fmt: skip

    plain = tiny_policy("llama")
    with use_attention(plain.model, NAME):
        logprobs, entropies = completion_logprobs(plain.model, [PackedGroup(prompt=prompt, completions=tuple(answers))])
        # 13 tokens; the upper 30 % are 4 of them (3.9 rounded up).
        kept = entropies >= entropies.detach().sort(descending=True).values[3]
        assert int(kept.sum()) == 4
        signs = advantages[0].repeat_interleave(torch.tensor([4, 3, 2, 4]))
        (-(logprobs * signs * kept).sum() / 13).backward()
    expected = [p.grad for p in plain.model.parameters()]
    for found, wanted in zip(captured, expected, strict=True):
        assert wanted is not None
        assert torch.allclose(found, wanted, rtol=1e-4, atol=1e-6)
