"""Pins the token budget: halved where memory does not suffice, and the gradient as if it had been right at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from test_step import ADVANTAGES, PLAIN, UNEVEN, assert_close, make_groups, step

from peerwise.errors import TrainingError
from peerwise.models.forward import PackedGroup
from peerwise.models.load import Policy
from peerwise.train import likelihood
from peerwise.train.budget import LARGEST, SMALLEST, TokenBudget, first_guess, make_budget

Build = Callable[..., Policy]


def too_small_for(tokens: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have forwards of more than `tokens` tokens fail; the sizes tried."""
    tried: list[int] = []
    plain = likelihood.completion_logprobs

    def limited(model: Any, groups: Sequence[PackedGroup], **settings: Any) -> Any:
        tried.append(sum(group.num_tokens for group in groups))
        if tried[-1] > tokens:
            raise torch.OutOfMemoryError("no room")
        return plain(model, groups, **settings)

    monkeypatch.setattr(likelihood, "completion_logprobs", limited)
    return tried


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_step_that_ran_out_of_memory_has_the_gradient_of_one_that_did_not(
    tiny_policy: Build, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    groups = make_groups(3, UNEVEN)
    policies = [tiny_policy() for _ in range(2)]
    for policy in policies:
        policy.model.to(dtype)
    method = {"method": PLAIN, "passes": 2}
    expected, expected_metrics = step(policies[0], groups, ADVANTAGES, micro_batch_tokens=24, **method)
    told: list[str] = []
    tried = too_small_for(31, monkeypatch)
    budget = TokenBudget(48, automatic=True, say=told.append)
    monkeypatch.setattr("peerwise.train.budget.SMALLEST", 16)
    found, metrics = step(policies[1], groups, ADVANTAGES, micro_batch_tokens=budget, **method)
    assert budget.tokens == 24
    # The first of two micro-batches went through, and left its gradient, before the second failed.
    assert tried[0] <= 31 < tried[1] and max(tried[2:]) <= 24
    assert len(told) == 1 and "is 24 from here on" in told[0]
    for gradients, wanted in zip(found.gradients, expected.gradients, strict=True):
        assert_close(gradients, wanted, 0.0)
    assert metrics == expected_metrics


def test_a_fixed_budget_that_is_too_large_ends_the_run_with_what_to_lower() -> None:
    def attempt(tokens: int) -> None:
        raise torch.OutOfMemoryError("no room")

    with pytest.raises(TrainingError, match=r"micro-batch of 4096 tokens .*no room.*micro_batch_tokens"):
        TokenBudget(4096).run(attempt)


def test_a_budget_is_not_halved_for_ever() -> None:
    tried: list[int] = []

    def attempt(tokens: int) -> None:
        tried.append(tokens)
        raise torch.OutOfMemoryError("no room")

    with pytest.raises(TrainingError, match="not even 64 tokens"):
        TokenBudget(256, automatic=True).run(attempt)
    assert tried == [256, 128, 64]


def test_another_error_is_not_taken_for_a_lack_of_memory() -> None:
    def attempt(tokens: int) -> None:
        raise RuntimeError("shapes differ")

    with pytest.raises(RuntimeError, match="shapes differ"):
        TokenBudget(256, automatic=True).run(attempt)


@pytest.mark.parametrize(
    ("free", "expected"),
    [(10**12, LARGEST), (1000 * 1024, 1024), (1000 * 1024 - 1, 512), (0, SMALLEST), (-5, SMALLEST)],
)
def test_the_first_guess_is_the_largest_power_of_two_that_fits(free: int, expected: int) -> None:
    assert first_guess(free, 1000.0) == expected


def test_only_auto_is_changed_and_says_what_it_begins_with(tiny_policy: Build) -> None:
    told: list[str] = []
    assert make_budget(777, tiny_policy().model, told.append) == TokenBudget(777)
    assert not told
    found = make_budget("auto", tiny_policy().model, told.append)
    assert found.automatic and SMALLEST <= found.tokens <= LARGEST
    assert len(told) == 1 and str(found.tokens) in told[0]
