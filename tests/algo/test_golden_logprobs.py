"""Pins log-probs, packing and the shift by one by hand-worked numbers; each says how it was got."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from peerwise.algo.logprob import selected_logprobs
from peerwise.models.attention import NAME
from peerwise.models.forward import PackedGroup, completion_logprobs, pack

CPU = torch.device("cpu")


def close(actual: Tensor | float, expected: object, tolerance: float = 1e-6) -> None:
    got = torch.as_tensor(actual).detach()
    torch.testing.assert_close(got, torch.tensor(expected, dtype=got.dtype), rtol=tolerance, atol=tolerance)


# Log-probs


def test_temperature_divides_the_logits() -> None:
    # Logits [2, 0] at T = 0.5 are [4, 0]: -ln(1 + e^-4) = -0.01815. Without it -ln(1 + e^-2) = -0.12693.
    hidden, weight, first = torch.ones(1, 1), torch.tensor([[2.0], [0.0]]), torch.tensor([0])
    close(selected_logprobs(hidden, weight, first, temperature=0.5)[0], [-0.01815], 1e-5)
    close(selected_logprobs(hidden, weight, first)[0], [-0.12693], 1e-5)


@pytest.mark.parametrize("temperature", [0.0, -1.0])
def test_a_temperature_that_is_not_positive_is_refused(temperature: float) -> None:
    with pytest.raises(ValueError, match="temperature"):
        selected_logprobs(torch.ones(1, 1), torch.ones(2, 1), torch.tensor([0]), temperature=temperature)


def test_the_soft_cap_squashes_before_the_temperature_divides() -> None:
    # Logits [2, 0], cap 1: [tanh 2, 0] = [0.964028, 0]; at T = 0.5 [1.928055, 0]: -ln(1 + e^-1.928055) = -0.135781.
    hidden, weight = torch.ones(1, 1), torch.tensor([[2.0], [0.0]])
    logprobs, _ = selected_logprobs(hidden, weight, torch.tensor([0]), softcap=1.0, temperature=0.5)
    close(logprobs, [-0.135781], 1e-5)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_the_entropy_of_a_uniform_distribution_is_the_log_of_the_vocabulary(temperature: float) -> None:
    hidden, weight = torch.randn(3, 4), torch.zeros(7, 4)
    _, entropies = selected_logprobs(hidden, weight, torch.tensor([0, 3, 6]), temperature=temperature)
    close(entropies, [math.log(7)] * 3)


def test_the_entropy_of_a_loaded_coin() -> None:
    # Logits [ln 3, 0]: p = 3/4, 1/4; H = ln 4 - 3/4 ln 3 = 0.562335.
    hidden, weight = torch.ones(1, 1), torch.tensor([[math.log(3)], [0.0]])
    close(selected_logprobs(hidden, weight, torch.tensor([0]))[1], [0.562335])


# Packing and the shift by one

TWO_GROUPS = (
    PackedGroup(prompt=(5, 6, 7), completions=((8, 2), (9, 9, 2))),
    PackedGroup(prompt=(4,), completions=((3,),)),
)


def test_a_pack_holds_each_prompt_once_and_restarts_positions() -> None:
    packed = pack(TWO_GROUPS, CPU)
    assert packed.ids.tolist() == [5, 6, 7, 8, 2, 9, 9, 2, 4, 3]
    assert packed.positions.tolist() == [0, 1, 2, 3, 4, 3, 4, 5, 0, 1]


def test_each_completion_token_is_predicted_from_the_token_before_it() -> None:
    packed = pack(TWO_GROUPS, CPU)
    # The first token of every completion is predicted at the prompt's last place (2, 2 and 8).
    assert packed.source.tolist() == [2, 3, 2, 5, 6, 8]


def test_only_completion_tokens_are_targets_the_end_token_included() -> None:
    assert pack(TWO_GROUPS, CPU).targets.tolist() == [8, 2, 9, 9, 2, 3]


@pytest.mark.parametrize(
    "group", [PackedGroup(prompt=(), completions=((1,),)), PackedGroup(prompt=(1,), completions=((2,), ()))]
)
def test_an_empty_prompt_or_completion_cannot_be_packed(group: PackedGroup) -> None:
    with pytest.raises(ValueError, match="empty"):
        pack([group], CPU)


class Bigram(nn.Module):
    """A language model whose next-token probabilities are a table: row = the token before."""

    def __init__(self, table: list[list[float]]) -> None:
        super().__init__()
        log_table = torch.tensor(table).log()
        self.head = nn.Linear(*log_table.shape, bias=False)
        self.head.weight.data = log_table.T.clone()
        self.config, self.device = SimpleNamespace(_attn_implementation=NAME), CPU

    def set_attn_implementation(self, name: str) -> None:
        self.config._attn_implementation = name

    def base_model(self, input_ids: Tensor, **ignored: object) -> SimpleNamespace:
        return SimpleNamespace(last_hidden_state=nn.functional.one_hot(input_ids, 3).float())

    def get_output_embeddings(self) -> nn.Module:
        return self.head


def test_a_logprob_is_that_of_the_token_given_the_one_before() -> None:
    bigram: Any = Bigram([[0.1, 0.7, 0.2], [0.3, 0.3, 0.4], [0.5, 0.25, 0.25]])
    groups = [PackedGroup(prompt=(2, 0), completions=((1, 2), (2,))), PackedGroup(prompt=(1,), completions=((0, 0),))]
    logprobs, _ = completion_logprobs(bigram, groups)
    # p(1|0), p(2|1); p(2|0); p(0|1), p(0|0), read off the table.
    close(logprobs.exp(), [0.7, 0.4, 0.2, 0.3, 0.1])


def test_greedy_answers_are_judged_by_the_untempered_distribution() -> None:
    bigram: Any = Bigram([[0.1, 0.7, 0.2], [0.3, 0.3, 0.4], [0.5, 0.25, 0.25]])
    logprobs, _ = completion_logprobs(bigram, [PackedGroup(prompt=(0,), completions=((1,),))], temperature=0.0)
    close(logprobs.exp(), [0.7])


def test_entropies_that_are_left_out_leave_the_logprobs_and_their_gradient_as_they_are() -> None:
    generator = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(5, 4, generator=generator), torch.randn(9, 4, generator=generator)
    found = []
    for wanted in (True, False):
        leaf = weight.clone().requires_grad_()
        targets = torch.arange(5)
        logprobs, entropies = selected_logprobs(hidden, leaf, targets, columns=2, with_entropies=wanted)
        logprobs.sum().backward()
        found.append((logprobs.detach(), leaf.grad))
        assert len(entropies) == (5 if wanted else 0)
    for left, right in zip(*found, strict=True):
        assert left is not None and torch.equal(left, right)
