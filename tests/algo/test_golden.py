"""Pins the mathematics by hand-worked numbers, small enough to check on paper; each says how it was got."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from peerwise.algo.advantage import group_advantages
from peerwise.algo.aggregate import token_weights
from peerwise.algo.divergence import k3
from peerwise.algo.likelihood import likelihood_loss
from peerwise.algo.policy import policy_loss
from peerwise.algo.presets import PRESETS
from peerwise.train.schedule import learning_rate


def close(actual: Tensor | float, expected: object, tolerance: float = 1e-6) -> None:
    got = torch.as_tensor(actual).detach()
    torch.testing.assert_close(got, torch.tensor(expected, dtype=got.dtype), rtol=tolerance, atol=tolerance)


# Advantages


def test_a_half_right_group_has_advantages_of_one_either_way() -> None:
    # mean 1/2; population std = sqrt(mean of (1/2)^2) = 1/2; (1 - 1/2) / (1/2) = 1. The sample std, sqrt(1/3),
    # would give 0.866.
    close(group_advantages(torch.tensor([1.0, 0.0, 0.0, 1.0])), [1.0, -1.0, -1.0, 1.0])


@pytest.mark.parametrize("scale", ["group", "none"])
@pytest.mark.parametrize(
    "rewards",
    [[0.3, 0.3, 0.3], [0.0, 0.0], [1.0, 1.0, 1 + 1e-9], [0.3, 0.1 + 0.2, 0.3], [-0.7] * 5, [1e6, 1e6, 1e6 + 1e-4]],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_rewards_have_advantage_exactly_zero_float_noise_included(
    rewards: list[float], scale: Any, dtype: torch.dtype
) -> None:
    advantages = group_advantages(torch.tensor(rewards, dtype=dtype), scale=scale)
    assert advantages.tolist() == [0.0] * len(rewards)


def test_one_wrong_answer_among_eight_keeps_the_whole_group() -> None:
    # [0] + 7 * [0.95]: mean 7/8 * 0.95, std 0.95 * sqrt(7)/8, so -7/sqrt(7) = -sqrt(7) and +1/sqrt(7).
    advantages = group_advantages(torch.tensor([0.0] + [0.95] * 7))
    close(advantages, [-math.sqrt(7)] + [1 / math.sqrt(7)] * 7)


def test_a_small_real_difference_is_not_taken_for_noise() -> None:
    # 0.50 against 0.51 differ by 2 %: mean 0.505, std 0.005.
    close(group_advantages(torch.tensor([0.50, 0.51], dtype=torch.float64)), [-1.0, 1.0])


def test_each_group_is_centred_on_its_own_mean() -> None:
    # [1, 0]: mean 0.5; [5, 3]: mean 4. Over the whole batch the mean would be 2.25.
    advantages = group_advantages(torch.tensor([[1.0, 0.0], [5.0, 3.0]]), scale="none")
    close(advantages, [[0.5, -0.5], [1.0, -1.0]])


def test_each_group_is_divided_by_its_own_deviation() -> None:
    # Both groups are mean +- std, whatever their spread.
    close(group_advantages(torch.tensor([[1.0, 0.0], [5.0, 3.0]])), [[1.0, -1.0], [1.0, -1.0]])


def test_an_equal_group_beside_another_does_not_disturb_it() -> None:
    close(group_advantages(torch.tensor([[0.3, 0.3], [1.0, 0.0]])), [[0.0, 0.0], [1.0, -1.0]])


@pytest.mark.parametrize("rewards", [[[1.0], [0.0]], [1.0]])
def test_a_group_of_one_is_an_error_that_says_two_are_needed(rewards: list[Any]) -> None:
    with pytest.raises(ValueError, match="at least 2"):
        group_advantages(torch.tensor(rewards))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_not_finite_is_an_error(bad: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        group_advantages(torch.tensor([[1.0, 0.0], [bad, 0.0]]))


# Weights


def test_token_weights_are_one_over_all_tokens() -> None:
    close(token_weights(torch.tensor([1, 9]), "token"), [0.1, 0.1])


def test_sequence_weights_are_one_over_sequences_and_own_length() -> None:
    # 2 sequences: 1 / (2 * 2) and 1 / (2 * 4); each sequence carries 1/2 in all.
    close(token_weights(torch.tensor([2, 4]), "sequence"), [0.25, 0.125])


def test_fixed_weights_are_one_over_sequences_and_the_longest_length_allowed() -> None:
    # 1 / (2 * 8), in the short sequence and in the long one.
    close(token_weights(torch.tensor([2, 4]), "fixed", fixed_length=8), [1 / 16, 1 / 16])


def test_fixed_weights_without_a_length_are_refused() -> None:
    with pytest.raises(ValueError, match="fixed_length"):
        token_weights(torch.tensor([2, 4]), "fixed")


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    # A sequence of length 0 is left out of the count: one sequence of 4 tokens remains.
    [("token", [0.25, 0.0]), ("sequence", [0.25, 0.0]), ("fixed", [0.125, 0.0])],
)
def test_a_sequence_without_tokens_is_not_in_the_denominator(aggregation: Any, expected: list[float]) -> None:
    close(token_weights(torch.tensor([4, 0]), aggregation, fixed_length=8), expected)


@pytest.mark.parametrize("aggregation", ["token", "sequence", "fixed"])
def test_no_token_at_all_weighs_nothing(aggregation: Any) -> None:
    assert token_weights(torch.tensor([0, 0]), aggregation, fixed_length=8).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    # Loss 1 on one token, 0 on nine. token: 1/10. sequence: (1 + 0) / 2. fixed at 16: 1 / (2 * 16).
    [("token", 0.1), ("sequence", 0.5), ("fixed", 1 / 32)],
)
def test_two_micro_batches_add_up_to_the_mean_over_the_batch(aggregation: Any, expected: float) -> None:
    weights = token_weights(torch.tensor([1, 9]), aggregation, fixed_length=16)
    total = 0.0
    for length, advantage, weight in ((1, -1.0, weights[0]), (9, 0.0, weights[1])):  # ratio 1: loss = -advantage
        same = torch.full((length,), -0.5)
        advantages = torch.full((length,), advantage)
        result = policy_loss(same, same, advantages, weight.expand(length), clip_low=0.2, clip_high=0.2)
        total += float(result.loss)
    assert total == pytest.approx(expected, abs=1e-7)


# Divergence


def test_k3_is_zero_where_policy_and_reference_agree() -> None:
    assert k3(torch.tensor([-0.3, -7.0]), torch.tensor([-0.3, -7.0])).tolist() == [0.0, 0.0]


def test_k3_where_the_reference_is_twice_as_likely() -> None:
    # d = ln 2: e^d - d - 1 = 2 - 0.693147 - 1 = 0.306853
    close(k3(torch.tensor([math.log(0.25)]), torch.tensor([math.log(0.5)])), [0.306853])


def test_k3_where_the_reference_is_half_as_likely() -> None:
    # d = -ln 2: 1/2 + 0.693147 - 1 = 0.193147
    close(k3(torch.tensor([math.log(0.5)]), torch.tensor([math.log(0.25)])), [0.193147])


def test_k3_of_an_absurd_difference_is_held_at_a_difference_of_ten() -> None:
    # d = 20 is taken as 10: e^10 - 10 - 1 = 22026.4658 - 11 = 22015.4658, without gradient. d = -20 needs no bound:
    # e^-20 + 20 - 1 = 19.0, and 1 - e^-20 = 1.0 still pulls.
    logprobs = torch.tensor([-20.0, 0.0], requires_grad=True)
    estimate = k3(logprobs, torch.tensor([0.0, -20.0]))
    close(estimate, [22015.4658, 19.0])
    estimate.sum().backward()
    assert logprobs.grad is not None
    close(logprobs.grad, [0.0, 1.0])


def test_k3_pulls_the_policy_towards_the_reference() -> None:
    # d k3 / d logprob = 1 - e^d: for d = ln 2 it is -1, so descent raises the log-prob; for d = -ln 2 it is +1/2.
    logprobs = torch.tensor([math.log(0.25), math.log(0.5)], requires_grad=True)
    k3(logprobs, torch.tensor([math.log(0.5), math.log(0.25)])).sum().backward()
    assert logprobs.grad is not None
    close(logprobs.grad, [-1.0, 0.5])


# The clipped surrogate


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        # Likelier already and right: min(1.5, 1.2) = 1.2, a constant.
        (1.5, 1.0, -1.2, 0.0),
        # Unlikelier, yet right: min(0.5, 0.8) = 0.5; d/dlogp of -ratio * A = -0.5.
        (0.5, 1.0, -0.5, -0.5),
        # Likelier, yet wrong: min(-1.5, -1.2) = -1.5; d/dlogp = +1.5.
        (1.5, -1.0, 1.5, 1.5),
        # Unlikelier already and wrong: min(-0.5, -0.8) = -0.8, a constant.
        (0.5, -1.0, 0.8, 0.0),
        # Inside the range nothing is held: min(1.1 * 2, 1.1 * 2).
        (1.1, 2.0, -2.2, -2.2),
        (0.9, -2.0, 1.8, 1.8),
    ],
)
def test_the_surrogate_and_its_gradient_on_each_side_of_the_clip(
    ratio: float, advantage: float, loss: float, gradient: float
) -> None:
    logprobs = torch.tensor([math.log(0.3 * ratio)], requires_grad=True)
    old, one = torch.tensor([math.log(0.3)]), torch.ones(1)
    result = policy_loss(logprobs, old, torch.tensor([advantage]), one, clip_low=0.2, clip_high=0.2)
    result.loss.backward()
    assert logprobs.grad is not None
    close(result.loss, loss)
    close(logprobs.grad, [gradient])


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss"),
    [
        (1.3, 1.0, -1.3),  # below 1 + 0.4, followed
        (1.5, 1.0, -1.4),  # held at 1 + 0.4
        (0.7, -1.0, 0.9),  # held at 1 - 0.1
        (0.95, -1.0, 0.95),  # above 1 - 0.1, followed
    ],
)
def test_the_two_sides_of_the_clip_have_their_own_widths(ratio: float, advantage: float, loss: float) -> None:
    old, one = torch.tensor([-1.0]), torch.ones(1)
    logprobs = old + math.log(ratio)
    result = policy_loss(logprobs, old, torch.tensor([advantage]), one, clip_low=0.1, clip_high=0.4)
    close(result.loss, loss)


def test_what_was_clipped_is_counted_by_side() -> None:
    # Ratios 2, 2, 1/2, 1/2, 1 with advantages +, -, +, -, +: only the first is held above, only the fourth below.
    old = torch.full((5,), -2.0)
    logprobs = old + torch.tensor([2.0, 2.0, 0.5, 0.5, 1.0]).log()
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0])
    result = policy_loss(logprobs, old, advantages, torch.ones(5), clip_low=0.2, clip_high=0.2)
    assert (result.clipped_low, result.clipped_high, result.num_tokens, result.kl) == (1, 1, 5, None)
    assert result.max_ratio == pytest.approx(2.0)


def test_the_divergence_is_a_cost_that_is_added() -> None:
    # A = 0, d = ln 2, coefficient 0.5: 0.5 * 0.306853 = 0.153426; gradient 0.5 * (1 - 2) = -0.5.
    logprobs = torch.tensor([math.log(0.25)], requires_grad=True)
    result = policy_loss(
        logprobs,
        logprobs.detach(),
        torch.zeros(1),
        torch.ones(1),
        clip_low=0.2,
        clip_high=0.2,
        reference=torch.tensor([math.log(0.5)]),
        kl_coefficient=0.5,
    )
    result.loss.backward()
    assert logprobs.grad is not None
    close(result.loss, 0.153426)
    close(logprobs.grad, [-0.5])
    assert result.kl == pytest.approx(0.306853, abs=1e-6)  # the estimate itself, without the coefficient


def test_the_ratio_is_against_the_sampling_policy_and_the_divergence_against_the_reference() -> None:
    # Policy and sampler 0.5, reference 0.25, A = 1, coefficient 1: -1 + 0.193147 = -0.806853.
    # With the two swapped the ratio is 2, held at 1.2, and the divergence 0: -1.2.
    half, quarter = torch.tensor([math.log(0.5)]), torch.tensor([math.log(0.25)])
    one = torch.ones(1)
    result = policy_loss(half, half, one, one, clip_low=0.2, clip_high=0.2, reference=quarter, kl_coefficient=1.0)
    close(result.loss, -0.806853)


def test_the_first_update_has_loss_zero_and_a_gradient() -> None:
    # Rewards [1, 0, 0, 1], two tokens each: the advantages cancel, and each token's gradient is -A / 8.
    logprobs = torch.linspace(-3, -0.1, 8).requires_grad_()
    advantages = group_advantages(torch.tensor([1.0, 0.0, 0.0, 1.0])).repeat_interleave(2)
    weights = token_weights(torch.tensor([2, 2, 2, 2]), "token").repeat_interleave(2)
    result = policy_loss(logprobs, logprobs.detach(), advantages, weights, clip_low=0.2, clip_high=0.2)
    result.loss.backward()
    assert logprobs.grad is not None
    close(result.loss, 0.0)
    close(logprobs.grad, [-0.125, -0.125, 0.125, 0.125, 0.125, 0.125, -0.125, -0.125])


# Named methods


def preset_gradient(name: str, rewards: list[float], lengths: list[int], longest: int) -> list[float]:
    """[M] gradient of the whole loss at ratio 1, where it is -weight * advantage of each token."""
    method, counts = PRESETS[name], torch.tensor(lengths)
    advantages = group_advantages(torch.tensor(rewards), scale=method.scale).repeat_interleave(counts)
    weights = token_weights(counts, method.aggregation, fixed_length=longest).repeat_interleave(counts)
    logprobs = torch.full((sum(lengths),), -1.0, requires_grad=True)
    policy_loss(
        logprobs, logprobs.detach(), advantages, weights, clip_low=method.clip_low, clip_high=method.clip_high
    ).loss.backward()
    assert logprobs.grad is not None
    return [round(value, 6) for value in logprobs.grad.tolist()]


def test_grpo_divides_by_the_deviation_and_by_each_length() -> None:
    # Rewards [1, 0, 0, 0]: mean 1/4, std sqrt(3)/4, advantages sqrt(3) = 1.732051 and -1/sqrt(3) = -0.577350.
    # 4 sequences, lengths 1, 2, 1, 1: weights 1/4, 1/8, 1/4, 1/4.
    expected = [-0.433013, 0.072169, 0.072169, 0.144338, 0.144338]
    assert preset_gradient("grpo", [1.0, 0.0, 0.0, 0.0], [1, 2, 1, 1], 10) == expected


def test_dr_grpo_divides_by_neither() -> None:
    # Advantages 3/4 and -1/4 as they are; every token weighs 1 / (4 * 10).
    expected = [-0.01875, 0.00625, 0.00625, 0.00625, 0.00625]
    assert preset_gradient("dr_grpo", [1.0, 0.0, 0.0, 0.0], [1, 2, 1, 1], 10) == expected


def test_only_grpo_of_the_two_carries_a_divergence() -> None:
    # DeepSeekMath, section 4.2: 0.04. Dr. GRPO leaves it out.
    assert (PRESETS["grpo"].kl_coefficient, PRESETS["dr_grpo"].kl_coefficient) == (0.04, 0.0)


# Likelihood


def test_the_likelihood_loss_is_the_weighted_mean_of_minus_logprob() -> None:
    # -(ln 1/2 + ln 1/4) / 2 = 3/2 ln 2 = 1.039721
    logprobs = torch.tensor([0.5, 0.25]).log()
    close(likelihood_loss(logprobs, torch.tensor([0.5, 0.5])), 1.039721)


# Learning rate


def rates(**settings: Any) -> list[float]:
    return [round(learning_rate(step, peak=1.0, steps=10, warmup_steps=4, **settings), 6) for step in range(10)]


def test_warm_up_rises_linearly_and_the_first_step_already_moves() -> None:
    assert rates() == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]


def test_a_linear_schedule_falls_over_the_steps_after_warm_up() -> None:
    # Step 4 + k of 6 remaining: 1 - k / 6.
    assert rates(schedule="linear")[4:] == [1.0, 0.833333, 0.666667, 0.5, 0.333333, 0.166667]


def test_a_cosine_schedule_falls_slowly_at_both_ends() -> None:
    # (1 + cos(pi k / 6)) / 2: cos of 0, 30, 60, 90, 120, 150 degrees.
    assert rates(schedule="cosine")[4:] == [1.0, 0.933013, 0.75, 0.5, 0.25, 0.066987]


def test_a_falling_schedule_ends_at_the_final_share() -> None:
    # 0.1 + 0.9 * the value without a final share; one step past the end reaches it.
    assert rates(schedule="linear", final_fraction=0.1)[7] == 0.55
    assert learning_rate(10, peak=2.0, steps=10, schedule="cosine", final_fraction=0.1) == pytest.approx(0.2)


def test_without_warm_up_the_first_step_has_the_peak_rate() -> None:
    assert learning_rate(0, peak=3e-5, steps=10, schedule="cosine") == 3e-5
