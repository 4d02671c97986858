"""Pins the axes between which the named methods differ, and what each name stands for, by hand-worked numbers; each
says how it was got.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from peerwise.algo.advantage import group_advantages, whitened
from peerwise.algo.aggregate import token_weights
from peerwise.algo.correction import mismatch_weights
from peerwise.algo.divergence import adapted, divergence_of, k1, k2
from peerwise.algo.policy import PolicyLoss, policy_loss
from peerwise.algo.presets import PRESETS
from peerwise.algo.shaping import overlong_penalty
from peerwise.algo.surrogate import sequence_mean


def close(actual: Tensor | float, expected: object, tolerance: float = 1e-6) -> None:
    got = torch.as_tensor(actual).detach()
    torch.testing.assert_close(got, torch.tensor(expected, dtype=got.dtype), rtol=tolerance, atol=tolerance)


def loss_of(ratios: Sequence[float], advantages: Sequence[float], **settings: Any) -> tuple[PolicyLoss, list[float]]:
    """The result at the given ratios to the sampler, whose log-probs are all -1, and its gradient [M]; weights 1."""
    old = torch.full((len(ratios),), -1.0)
    logprobs = (old + torch.tensor(ratios).log()).requires_grad_()
    clip = {"clip_low": 0.2, "clip_high": 0.2}
    result = policy_loss(logprobs, old, torch.tensor(advantages), torch.ones(len(ratios)), **(clip | settings))
    result.loss.backward()
    assert logprobs.grad is not None
    return result, logprobs.grad.tolist()


def counts(result: PolicyLoss) -> tuple[int, int]:
    return result.clipped_low, result.clipped_high


# Baselines and scales


def test_leaving_one_out_compares_with_the_mean_of_the_others() -> None:
    # Others of the 3: (1 + 2) / 2 = 1.5; of the 1: (3 + 2) / 2 = 2.5; of the 2: (3 + 1) / 2 = 2.
    close(group_advantages(torch.tensor([3.0, 1.0, 2.0]), scale="none", baseline="leave_one_out"), [1.5, -1.5, 0.0])


def test_leaving_one_out_stays_within_the_group() -> None:
    # Of two answers each is compared with the other: 1 - 0 and 5 - 3.
    advantages = group_advantages(torch.tensor([[1.0, 0.0], [5.0, 3.0]]), scale="none", baseline="leave_one_out")
    close(advantages, [[1.0, -1.0], [2.0, -2.0]])


def test_the_batch_baseline_is_the_mean_over_all_groups() -> None:
    # (1 + 0 + 5 + 2) / 4 = 2
    advantages = group_advantages(torch.tensor([[1.0, 0.0], [5.0, 2.0]]), scale="none", baseline="batch")
    close(advantages, [[-1.0, -2.0], [3.0, 0.0]])


def test_the_batch_baseline_follows_a_group_that_is_all_right() -> None:
    # Mean 3/4: a group of equal rewards is still above it, where its own mean would leave nothing.
    advantages = group_advantages(torch.tensor([[1.0, 1.0], [1.0, 0.0]]), scale="none", baseline="batch")
    close(advantages, [[0.25, 0.25], [0.25, -0.75]])


def test_the_batch_baseline_needs_two_answers_in_all() -> None:
    # One answer to each of two problems: mean 1/2.
    close(group_advantages(torch.tensor([[1.0], [0.0]]), scale="none", baseline="batch"), [[0.5], [-0.5]])
    with pytest.raises(ValueError, match="at least 2"):
        group_advantages(torch.tensor([[1.0]]), baseline="batch")


def test_without_a_baseline_the_reward_is_the_advantage() -> None:
    rewards = [[1.0, 0.0], [0.3, 0.3]]
    close(group_advantages(torch.tensor(rewards), scale="none", baseline="none"), rewards)
    close(group_advantages(torch.tensor([[0.7]]), scale="none", baseline="none"), [[0.7]])


@pytest.mark.parametrize("baseline", ["group", "leave_one_out", "batch"])
@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_equal_rewards_have_advantage_exactly_zero_whatever_they_are_compared_with(baseline: Any, scale: Any) -> None:
    rewards = torch.tensor([[0.3, 0.1 + 0.2], [0.3, 0.3]], dtype=torch.float64)
    assert group_advantages(rewards, scale=scale, baseline=baseline).tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_the_batch_scale_is_one_deviation_for_all_groups() -> None:
    # Differences from the groups' means +-1 and +-7: sqrt((1 + 1 + 49 + 49) / 4) = 5.
    advantages = group_advantages(torch.tensor([[2.0, 0.0], [14.0, 0.0]]), scale="batch")
    close(advantages, [[0.2, -0.2], [1.4, -1.4]])


def test_the_batch_scale_counts_a_group_of_equal_rewards() -> None:
    # Differences +-1, 0, 0: sqrt(2 / 4) = 0.707107, so 1 becomes sqrt 2.
    advantages = group_advantages(torch.tensor([[2.0, 0.0], [5.0, 5.0]]), scale="batch")
    close(advantages, [[math.sqrt(2), -math.sqrt(2)], [0.0, 0.0]])


def test_batch_baseline_and_batch_scale_normalise_the_whole_batch() -> None:
    # Rewards 1, 0, 5, 2: mean 2, differences -1, -2, 3, 0, variance (1 + 4 + 9 + 0) / 4 = 3.5, deviation 1.870829.
    advantages = group_advantages(torch.tensor([[1.0, 0.0], [5.0, 2.0]]), scale="batch", baseline="batch")
    close(advantages, [[-0.534522, -1.069045], [1.603567, 0.0]])


@pytest.mark.parametrize(
    ("centre", "scale", "expected"),
    [
        # Values 1, 3, 5, 7: mean 4, variance (9 + 1 + 1 + 9) / 4 = 5.
        (False, False, [1.0, 3.0, 5.0, 7.0]),
        (True, False, [-3.0, -1.0, 1.0, 3.0]),
        (True, True, [-3 / math.sqrt(5), -1 / math.sqrt(5), 1 / math.sqrt(5), 3 / math.sqrt(5)]),
        # Not centred, the distance is from 0: sqrt((1 + 9 + 25 + 49) / 4) = sqrt 21.
        (False, True, [1 / math.sqrt(21), 3 / math.sqrt(21), 5 / math.sqrt(21), 7 / math.sqrt(21)]),
    ],
)
def test_tokens_are_centred_and_divided_as_asked(centre: bool, scale: bool, expected: list[float]) -> None:
    close(whitened(torch.tensor([1.0, 3.0, 5.0, 7.0]), centre=centre, scale=scale), expected)


def test_equal_tokens_have_advantage_exactly_zero_float_noise_included() -> None:
    values = torch.tensor([0.3, 0.1 + 0.2, 0.3], dtype=torch.float64)
    assert whitened(values, centre=True, scale=True).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("centre", [True, False])
@pytest.mark.parametrize("scale", [True, False])
def test_no_token_at_all_is_whitened_to_nothing(centre: bool, scale: bool) -> None:
    assert whitened(torch.zeros(0), centre=centre, scale=scale).tolist() == []


# A sequence's ratio


def test_the_sequence_mean_stands_at_each_token_of_its_sequence() -> None:
    # (1 + 3) / 2, then 10, then (0 + 3 + 6) / 3; the sequence of no tokens has no place.
    values = torch.tensor([1.0, 3.0, 10.0, 0.0, 3.0, 6.0])
    close(sequence_mean(values, torch.tensor([2, 1, 0, 3])), [2.0, 2.0, 10.0, 3.0, 3.0, 3.0])


def test_the_gradient_of_a_sequence_mean_is_shared_by_its_tokens() -> None:
    # Only the first place is asked for: d mean / d value = 1/2 for each token of the first sequence.
    values = torch.tensor([1.0, 3.0, 10.0], requires_grad=True)
    sequence_mean(values, torch.tensor([2, 1]))[0].backward()
    assert values.grad is not None
    close(values.grad, [0.5, 0.5, 0.0])


def test_a_sequences_ratio_is_the_geometric_mean_of_its_tokens() -> None:
    # sqrt(2 * 8) = 4 and sqrt(0.9 * 0.4) = 0.6, followed for A > 0 and held neither way inside (0, 10):
    # loss -(4 + 4) - (0.6 + 0.6) = -9.2. Each token carries 1/2 of 2 equal values: gradient -4 and -0.6.
    result, gradient = loss_of(
        [2.0, 8.0, 0.9, 0.4], [1.0] * 4, ratio="sequence", lengths=torch.tensor([2, 2]), clip_low=1.0, clip_high=9.0
    )
    close(result.loss, -9.2)
    close(torch.tensor(gradient), [-4.0, -4.0, -0.6, -0.6])
    assert (result.min_ratio, result.max_ratio) == pytest.approx((0.6, 4.0))


def test_a_sequence_outside_the_range_is_held_with_all_its_tokens() -> None:
    # sqrt(1.1 * 1.6) = 1.326650 > 1.2 though 1.1 is inside: right, so 2 * -1.2 and no gradient at either token.
    # sqrt(0.9 * 0.4) = 0.6 < 0.8 though 0.9 is inside: wrong, so 2 * 0.8. Loss -2.4 + 1.6 = -0.8.
    result, gradient = loss_of(
        [1.1, 1.6, 0.9, 0.4], [1.0, 1.0, -1.0, -1.0], ratio="sequence", lengths=torch.tensor([2, 2])
    )
    close(result.loss, -0.8)
    assert gradient == [0.0, 0.0, 0.0, 0.0]
    assert counts(result) == (2, 2)


def test_a_token_outside_the_range_is_followed_when_its_sequence_is_inside() -> None:
    # sqrt(2 * 0.5) = 1: each token has gradient -A, though alone the 2 would be held.
    result, gradient = loss_of([2.0, 0.5], [1.0, 1.0], ratio="sequence", lengths=torch.tensor([2]))
    close(torch.tensor(gradient), [-1.0, -1.0])
    assert counts(result) == (0, 0)


@pytest.mark.parametrize("needs", [{"ratio": "sequence"}, {"surrogate": "geometric_mean"}])
def test_a_sequences_ratio_without_lengths_is_refused(needs: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="lengths"):
        loss_of([1.0], [1.0], **needs)


# Surrogates


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient", "held"),
    [
        # Wrong and 5 times as likely: -5 is not let below 3 * -1: loss 3, a constant.
        (5.0, -1.0, 3.0, 0.0, (0, 1)),
        # Wrong and twice as likely: followed, gradient -ratio * A = 2.
        (2.0, -1.0, 2.0, 2.0, (0, 0)),
        # Wrong and unlikely already: the lower end of the plain clip, 0.8.
        (0.5, -1.0, 0.8, 0.0, (1, 0)),
        # Right: the plain clip at 1.2; the dual clip has no say.
        (5.0, 1.0, -1.2, 0.0, (0, 1)),
        (0.5, 1.0, -0.5, -0.5, (0, 0)),
    ],
)
def test_the_dual_clip_holds_a_wrong_token_that_became_far_too_likely(
    ratio: float, advantage: float, loss: float, gradient: float, held: tuple[int, int]
) -> None:
    result, found = loss_of([ratio], [advantage], dual_clip=3.0)
    close(result.loss, loss)
    close(torch.tensor(found), [gradient])
    assert counts(result) == held


@pytest.mark.parametrize(
    ("ratio", "advantage", "weight", "held"),
    [
        (1.1, 2.0, 1.1, (0, 0)),
        (0.9, -2.0, 0.9, (0, 0)),
        # Held at 1.2 and 0.8, on either side of 0: the weight stops there, the gradient does not.
        (3.0, 2.0, 1.2, (0, 1)),
        (3.0, -2.0, 1.2, (0, 1)),
        (0.5, 2.0, 0.8, (1, 0)),
        (0.5, -2.0, 0.8, (1, 0)),
    ],
)
def test_a_clipped_weight_is_held_and_its_token_still_learns(
    ratio: float, advantage: float, weight: float, held: tuple[int, int]
) -> None:
    # Objective weight * A * log p with log p = -1 + ln ratio; its gradient is weight * A: the weight is a constant.
    result, gradient = loss_of([ratio], [advantage], surrogate="clipped_weight")
    close(result.loss, -weight * advantage * (math.log(ratio) - 1))
    close(torch.tensor(gradient), [-weight * advantage])
    assert counts(result) == held


def test_a_lower_width_of_one_sets_no_lower_bound() -> None:
    # 0.001 > 1 - 1 = 0: the weight is the ratio itself.
    result, gradient = loss_of([0.001], [1.0], surrogate="clipped_weight", clip_low=1.0, clip_high=4.0)
    close(torch.tensor(gradient), [-0.001])
    assert counts(result) == (0, 0)


@pytest.mark.parametrize(
    ("advantage", "value"),
    # At ratio 1 the sigmoid is 1/2 and the gate (4 / t) / 2 = 2 / t; t = 1 for right, 2 for wrong.
    [(1.5, 2.0 * 1.5), (-1.5, 1.0 * -1.5)],
)
def test_the_soft_gate_at_ratio_one_has_the_gradient_of_the_advantage(advantage: float, value: float) -> None:
    # d/d ratio = 4 * 1/2 * 1/2 = 1, and d ratio / d log p = 1.
    result, gradient = loss_of([1.0], [advantage], surrogate="soft_gate", gate_positive=1.0, gate_negative=2.0)
    close(result.loss, -value)
    close(torch.tensor(gradient), [-advantage])
    assert counts(result) == (0, 0)


@pytest.mark.parametrize(
    ("ratio", "advantage", "value", "gradient"),
    [
        # t = 1, t (r - 1) = ln 3 at r = 1 + ln 3 = 2.098612: sigmoid 3/4, value 4 * 3/4 = 3,
        # gradient 4 * 3/4 * 1/4 * r = 0.75 r = 1.573959.
        (1 + math.log(3), 1.0, 3.0, 1.573959),
        # t = 2, t (r - 1) = ln 3 at r = 1 + ln 3 / 2 = 1.549306: value 2 * 3/4 * -1 = -1.5,
        # gradient -0.75 r = -1.161980.
        (1 + math.log(3) / 2, -1.0, -1.5, -1.161980),
        # t = 2, t (r - 1) = -ln 3 at r = 1 - ln 3 / 2 = 0.450694: sigmoid 1/4, value 2 * 1/4 * -1 = -0.5,
        # gradient -0.75 r = -0.338020.
        (1 - math.log(3) / 2, -1.0, -0.5, -0.338020),
    ],
)
def test_the_soft_gate_has_the_temperature_of_the_advantages_side(
    ratio: float, advantage: float, value: float, gradient: float
) -> None:
    result, found = loss_of([ratio], [advantage], surrogate="soft_gate", gate_positive=1.0, gate_negative=2.0)
    close(result.loss, -value)
    close(torch.tensor(found), [-gradient])


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_the_soft_gate_fades_on_both_sides_of_one(advantage: float) -> None:
    # Gradient over ratio and A is 4 s (1 - s): 1 at ratio 1, less on either side and never 0.
    _, gradient = loss_of(
        [0.1, 0.5, 1.0, 2.0, 4.0], [advantage] * 5, surrogate="soft_gate", gate_positive=2.0, gate_negative=2.0
    )
    slopes = [-g / advantage / ratio for g, ratio in zip(gradient, [0.1, 0.5, 1.0, 2.0, 4.0], strict=True)]
    assert slopes[0] < slopes[1] < slopes[2] > slopes[3] > slopes[4] > 0
    assert slopes[2] == pytest.approx(1.0)


def test_the_geometric_mean_weighs_an_answer_by_the_root_of_its_product() -> None:
    # sqrt(2 * 8) = 4, A = 0.5: each token's objective is 2, loss -4. Each log-prob moves both by 1/2: gradient -2.
    result, gradient = loss_of(
        [2.0, 8.0], [0.5, 0.5], surrogate="geometric_mean", lengths=torch.tensor([2]), clip_low=3.0, clip_high=3.0
    )
    close(result.loss, -4.0)
    close(torch.tensor(gradient), [-2.0, -2.0])
    assert counts(result) == (0, 0)


@pytest.mark.parametrize(
    ("advantage", "mean", "gradient", "held"),
    [
        # Ratios 4 and 1/4 in the range (1/2, 2). Right: the 4 is held at 2, the 1/4 followed: sqrt(2 * 1/4) = 0.707107,
        # whose gradient reaches the second token alone.
        (1.0, math.sqrt(0.5), [0.0, -math.sqrt(0.5)], (0, 1)),
        # Wrong: the 4 is followed, the 1/4 held at 1/2: sqrt(4 * 1/2) = 1.414214, with gradient at the first alone.
        (-1.0, math.sqrt(2.0), [math.sqrt(2.0), 0.0], (1, 0)),
    ],
)
def test_the_geometric_mean_holds_each_token_on_the_side_of_the_advantage(
    advantage: float, mean: float, gradient: list[float], held: tuple[int, int]
) -> None:
    result, found = loss_of(
        [4.0, 0.25],
        [advantage] * 2,
        surrogate="geometric_mean",
        lengths=torch.tensor([2]),
        clip_low=math.log(2),
        clip_high=math.log(2),
    )
    close(result.loss, -2 * mean * advantage)
    close(torch.tensor(found), gradient)
    assert counts(result) == held


def test_without_a_ratio_the_objective_is_the_advantage_times_the_logprob() -> None:
    # log p = -1 + ln 5 = 0.609438 and -1 + ln 0.1 = -3.302585: -(2 * 0.609438) + 1 * -3.302585 = -4.521461.
    # The gradient is -A wherever the sampler stood, and nothing is held.
    result, gradient = loss_of([5.0, 0.1], [2.0, -1.0], ratio="none")
    close(result.loss, -4.521461)
    close(torch.tensor(gradient), [-2.0, 1.0])
    assert counts(result) == (0, 0)
    # How far the policy has moved is still told.
    assert (result.min_ratio, result.max_ratio) == pytest.approx((0.1, 5.0))


# Divergence

HALF, QUARTER = math.log(0.5), math.log(0.25)


@pytest.mark.parametrize(
    ("kind", "expected"),
    # d = policy - reference = +-ln 2 = +-0.693147. k1 = d; k2 = d^2 / 2 = 0.240227; k3 = 1/2 + ln 2 - 1, 2 - ln 2 - 1.
    [("k1", [0.693147, -0.693147]), ("k2", [0.240227, 0.240227]), ("k3", [0.193147, 0.306853])],
)
def test_the_estimators_where_the_policy_is_twice_and_half_as_likely(kind: Any, expected: list[float]) -> None:
    close(divergence_of(kind, torch.tensor([HALF, QUARTER]), torch.tensor([QUARTER, HALF])), expected)


def test_k2_pulls_the_policy_towards_the_reference_and_k1_down_everywhere() -> None:
    # d k2 / d logprob = d = +-ln 2; d k1 / d logprob = 1.
    for estimator, expected in ((k2, [0.693147, -0.693147]), (k1, [1.0, 1.0])):
        logprobs = torch.tensor([HALF, QUARTER], requires_grad=True)
        estimator(logprobs, torch.tensor([QUARTER, HALF])).sum().backward()
        assert logprobs.grad is not None
        close(logprobs.grad, expected)


@pytest.mark.parametrize(("kind", "expected", "slopes"), [("k1", [20, -20], [1, 1]), ("k2", [200, 200], [20, -20])])
def test_only_k3_needs_a_bound(kind: Any, expected: list[float], slopes: list[float]) -> None:
    logprobs = torch.tensor([0.0, -20.0], requires_grad=True)
    estimate = divergence_of(kind, logprobs, torch.tensor([-20.0, 0.0]))
    close(estimate, expected)
    estimate.sum().backward()
    assert logprobs.grad is not None
    close(logprobs.grad, slopes)


def test_tokens_at_which_k3_is_held_are_counted() -> None:
    # Policy at -1: references 11 below, 12 and 13 above, exactly 10 above and equal. Two are more than 10 above.
    reference = torch.tensor([-12.0, 11.0, 12.0, 9.0, -1.0])
    result, _ = loss_of([1.0] * 5, [0.0] * 5, reference=reference, kl_coefficient=1.0)
    assert result.kl_clamped == 2
    assert loss_of([1.0] * 5, [0.0] * 5, reference=reference, kl_coefficient=1.0, divergence="k2")[0].kl_clamped == 0
    assert loss_of([1.0], [0.0])[0].kl_clamped == 0


@pytest.mark.parametrize(("kind", "cost"), [("k1", 0.693147), ("k2", 0.240227), ("k3", 0.193147)])
def test_the_loss_charges_the_estimator_it_is_told(kind: Any, cost: float) -> None:
    # Reference half as likely as the policy: d = ln 2. A = 0, coefficient 2.
    reference = torch.tensor([-1.0 - math.log(2)])
    result, _ = loss_of([1.0], [0.0], reference=reference, divergence=kind, kl_coefficient=2.0)
    close(result.loss, 2 * cost)
    assert result.kl == pytest.approx(cost, abs=1e-6)


@pytest.mark.parametrize(
    ("kl", "expected"),
    [
        # Target 0.1, rate 0.25: above 0.15 it becomes 0.2 * 1.25, below 0.05 it becomes 0.2 * 0.75.
        (0.2, 0.25),
        (0.01, 0.15),
        (0.1, 0.2),
        # An edge itself is still inside.
        (1.5 * 0.1, 0.2),
        (0.5 * 0.1, 0.2),
        (math.nextafter(1.5 * 0.1, 1), 0.25),
        (math.nextafter(0.5 * 0.1, 0), 0.15),
        # The estimate k1 can be negative: far below the target.
        (-1.0, 0.15),
    ],
)
def test_the_coefficient_grows_above_the_target_and_shrinks_below(kl: float, expected: float) -> None:
    assert adapted(0.2, kl, target=0.1, rate=0.25, low=0.01, high=1.0) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("coefficient", "kl", "expected"),
    # 0.9 * 1.25 = 1.125 and 0.012 * 0.75 = 0.009 are past the bounds; a start outside comes in even on target.
    [(0.9, 1.0, 1.0), (0.012, 0.0, 0.01), (2.0, 0.1, 1.0), (0.001, 0.1, 0.01)],
)
def test_the_coefficient_never_leaves_its_bounds(coefficient: float, kl: float, expected: float) -> None:
    assert adapted(coefficient, kl, target=0.1, rate=0.25, low=0.01, high=1.0) == expected


# Correction

SAMPLER = torch.full((5,), -3.0)
TRAINER = SAMPLER + torch.tensor([0.1, 0.8, 1.0, 1.5, 4.0]).log()


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        # Trainer over sampler 0.1, 0.8, 1, 1.5, 4 with bound 2: truncation has no lower end.
        ("truncate", [0.1, 0.8, 1.0, 1.5, 2.0]),
        # Outside (1/2, 2) the token is out.
        ("mask", [0.0, 0.8, 1.0, 1.5, 0.0]),
    ],
)
def test_mismatch_weights_are_the_samplers_error_kept_in_bounds(kind: Any, expected: list[float]) -> None:
    weights, outside = mismatch_weights(TRAINER, SAMPLER, kind=kind, bound=2.0)
    assert weights is not None
    close(weights, expected)
    assert outside == 2  # 0.1 and 4


def test_without_a_correction_what_lies_outside_is_counted_all_the_same() -> None:
    assert mismatch_weights(TRAINER, SAMPLER, kind="none", bound=2.0) == (None, 2)


def test_mismatch_weights_carry_no_gradient() -> None:
    trainer = TRAINER.clone().requires_grad_()
    weights, _ = mismatch_weights(trainer, SAMPLER, kind="truncate", bound=2.0)
    assert weights is not None
    assert not weights.requires_grad


def test_the_correction_multiplies_the_objective_and_not_the_divergence_or_the_entropy() -> None:
    # Ratio 1, A = 1, correction 0.5: -0.5. k3 with the reference half as likely: 0.193147. Entropy 2 at 0.1: -0.2.
    # -0.5 + 0.193147 - 0.2 = -0.506853; gradient -0.5 + (1 - 1/2) = 0.
    result, gradient = loss_of(
        [1.0],
        [1.0],
        correction=torch.tensor([0.5]),
        reference=torch.tensor([-1.0 - math.log(2)]),
        kl_coefficient=1.0,
        entropies=torch.tensor([2.0]),
        entropy_coefficient=0.1,
    )
    close(result.loss, -0.506853)
    close(torch.tensor(gradient), [0.0])


# Entropy and length


def test_entropy_is_a_bonus_weighted_as_the_tokens_are() -> None:
    # -0.1 * (0.25 * 2 + 0.5 * 4) = -0.25; descent raises each entropy by its weight.
    same, nothing = torch.tensor([-1.0, -1.0]), torch.zeros(2)
    entropies = torch.tensor([2.0, 4.0], requires_grad=True)
    result = policy_loss(
        same,
        same,
        nothing,
        torch.tensor([0.25, 0.5]),
        clip_low=0.2,
        clip_high=0.2,
        entropies=entropies,
        entropy_coefficient=0.1,
    )
    result.loss.backward()
    assert entropies.grad is not None
    close(result.loss, -0.25)
    close(entropies.grad, [-0.025, -0.05])


@pytest.mark.parametrize(
    ("length", "expected"),
    # Longest 16, the last 4 of them cost: 0 up to 12, then a quarter for each token.
    [(1, 0.0), (12, 0.0), (13, -0.25), (14, -0.5), (16, -1.0)],
)
def test_an_answer_pays_for_its_last_tokens(length: int, expected: float) -> None:
    assert overlong_penalty(length, longest=16, buffer=4) == expected


# Named methods


def gradient_of(
    name: str, rewards: list[list[float]], lengths: list[int], ratios: Sequence[float] | None = None
) -> list[float]:
    """[M] gradient of the whole loss of a preset where the longest answer is 10 and nothing has left the reference.

    A critic that says the same of every token leaves the rewards whitened over the batch: that stands in for it here.
    """
    method, in_all = PRESETS[name], torch.tensor(lengths)
    baseline = "batch" if method.baseline == "critic" else method.baseline
    advantages = group_advantages(torch.tensor(rewards), scale=method.scale, baseline=baseline)
    weights = token_weights(in_all, method.aggregation, fixed_length=10).repeat_interleave(in_all)
    old = torch.full((sum(lengths),), -1.0)
    logprobs = (old + torch.tensor(ratios or [1.0] * sum(lengths)).log()).requires_grad_()
    policy_loss(
        logprobs,
        old,
        advantages.flatten().repeat_interleave(in_all),
        weights,
        lengths=in_all,
        clip_low=method.clip_low,
        clip_high=method.clip_high,
        ratio=method.ratio,
        surrogate=method.surrogate,
        dual_clip=method.dual_clip,
        gate_positive=method.gate_positive,
        gate_negative=method.gate_negative,
    ).loss.backward()
    assert logprobs.grad is not None
    return logprobs.grad.tolist()


# One group with rewards 1, 0, 0, 0 and lengths 1, 2, 1, 1. GRPO's advantages: mean 1/4, deviation sqrt(3)/4, so
# sqrt 3 = 1.732051 and -1 / sqrt 3 = -0.577350; weights 1/4, 1/8, 1/4, 1/4 by sequence and 1/5 by token.
BY_SEQUENCE = [-0.433013, 0.072169, 0.072169, 0.144338, 0.144338]
BY_TOKEN = [-0.346410, 0.115470, 0.115470, 0.115470, 0.115470]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("grpo", BY_SEQUENCE),
        # Advantages 3/4 and -1/4; every token weighs 1 / (4 * 10).
        ("dr_grpo", [-0.01875, 0.00625, 0.00625, 0.00625, 0.00625]),
        ("dapo", BY_TOKEN),
        # A sequence's ratio: a half of each of two equal values is one value again.
        ("gspo", BY_SEQUENCE),
        ("cispo", BY_TOKEN),
        # 4 * 1/2 * 1/2 = 1, whatever the temperature.
        ("sapo", BY_SEQUENCE),
        ("gmpo", BY_SEQUENCE),
        # 1 - 0 = 1 and 0 - 1/3; every token weighs 1 / (4 * 10).
        ("rloo", [-0.025, 0.008333, 0.008333, 0.008333, 0.008333]),
        # The one group is the batch.
        ("reinforce_pp", BY_TOKEN),
        ("ppo", BY_TOKEN),
    ],
)
def test_a_presets_gradient_at_ratio_one(name: str, expected: list[float]) -> None:
    close(torch.tensor(gradient_of(name, [[1.0, 0.0, 0.0, 0.0]], [1, 2, 1, 1])), expected)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # Two groups, [1, 0] and [0, 0], one token each. GRPO: +-1 and 0, weight 1/4.
        ("grpo", [-0.25, 0.25, 0.0, 0.0]),
        # The others of each answer: 1 - 0 and 0 - 1; weight 1 / (4 * 10).
        ("rloo", [-0.025, 0.025, 0.0, 0.0]),
        # Over the batch: mean 1/4, deviation sqrt(3)/4; the group that is all wrong counts as well. Weight 1/4.
        ("reinforce_pp", [-0.433013, 0.144338, 0.144338, 0.144338]),
    ],
)
def test_only_reinforce_pp_compares_across_groups(name: str, expected: list[float]) -> None:
    close(torch.tensor(gradient_of(name, [[1.0, 0.0], [0.0, 0.0]], [1, 1, 1, 1])), expected)


@pytest.mark.parametrize(
    ("name", "expected"),
    # Rewards 1 and 0, two tokens each, ratios 1.25, 0.5 (right) and 8, 0.6 (wrong). A = +-1 unless said; weight 1/4 by
    # sequence and by token; the gradient is -weight * A * ratio where the ratio is followed.
    [
        # Range (0.8, 1.2): 1.25 and 0.6 are held.
        ("grpo", [0.0, -0.125, 2.0, 0.0]),
        # A = +-1/2, weight 1 / (2 * 10): a tenth of that.
        ("dr_grpo", [0.0, -0.0125, 0.2, 0.0]),
        # The upper end is 1.28: 1.25 is followed, 0.6 is not.
        ("dapo", [-0.3125, -0.125, 2.0, 0.0]),
        # sqrt(1.25 * 0.5) = 0.790569, right, and sqrt(8 * 0.6) = 2.190890, wrong: both followed, for all their tokens.
        ("gspo", [-0.197642, -0.197642, 0.547723, 0.547723]),
        # The weight of 8 is held at 5 and its token learns on: 5 / 4; 0.6 has no lower end.
        ("cispo", [-0.3125, -0.125, 1.25, 0.15]),
        # 4 s (1 - s) ratio / 4 with s = sigmoid(t (ratio - 1)), t = 1 for right: s(0.25) = 0.562177, so
        # 0.246134 * 1.25; s(-0.5) = 0.377541, so 0.235004 * 0.5; t = 1.05 for wrong: s(7.35) = 0.999358, so
        # 0.000641767 * 8; s(-0.42) = 0.396517, so 0.239291 * 0.6.
        ("sapo", [-0.307668, -0.117502, 0.005134, 0.143575]),
        # Range (0.670, 1.492), by the advantage's side: neither of the right ones is held, so as gspo; of the wrong
        # ones 0.6 is held at e^-0.4: sqrt(8 * e^-0.4) = 2.315720, a quarter of it at the other token.
        ("gmpo", [-0.197642, -0.197642, 0.578930, 0.0]),
        # A = +-1, weight 1 / (2 * 10), no ratio.
        ("rloo", [-0.05, -0.05, 0.05, 0.05]),
        # GRPO's clip, and with one group its advantages.
        ("reinforce_pp", [0.0, -0.125, 2.0, 0.0]),
        ("ppo", [0.0, -0.125, 2.0, 0.0]),
    ],
)
def test_a_presets_gradient_away_from_ratio_one(name: str, expected: list[float]) -> None:
    close(torch.tensor(gradient_of(name, [[1.0, 0.0]], [2, 2], [1.25, 0.5, 8.0, 0.6])), expected)


def test_every_preset_has_a_golden_gradient_at_ratio_one_and_away_from_it() -> None:
    for test in (test_a_presets_gradient_at_ratio_one, test_a_presets_gradient_away_from_ratio_one):
        (cases,) = (mark for mark in test.pytestmark if mark.name == "parametrize")  # type: ignore[attr-defined]
        assert {name for name, _ in cases.args[1]} == set(PRESETS)


@pytest.mark.parametrize(
    ("ratio", "advantage", "gradient"),
    # GSPO's range (0.9997, 1.0004) is hundreds of times narrower than a token's.
    [(1.0003, 1.0, -1.0003), (1.0005, 1.0, 0.0), (0.9998, -1.0, 0.9998), (0.9996, -1.0, 0.0)],
)
def test_gspo_leaves_a_sequence_at_a_few_parts_in_ten_thousand(ratio: float, advantage: float, gradient: float) -> None:
    rewards = [[0.5 + advantage / 2, 0.5 - advantage / 2]]
    # Weight 1/2 for each of two answers of one token; the second stays at ratio 1.
    close(gradient_of("gspo", rewards, [1, 1], [ratio, 1.0])[0], gradient / 2)
