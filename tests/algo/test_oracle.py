"""Pins the fast code to naive float64 loops over groups, sequences and tokens, written from the papers' formulas."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from peerwise.algo.advantage import group_advantages
from peerwise.algo.aggregate import token_weights
from peerwise.algo.divergence import k3
from peerwise.algo.logprob import selected_logprobs
from peerwise.algo.policy import policy_loss
from peerwise.algo.presets import PRESETS

SAMPLES = settings(max_examples=60)
LONGEST = 6

# Sixty-fourths are exact in binary, so that "equal" and "not equal" mean the same in every precision.
rewards = st.one_of(st.integers(-192, 192).map(lambda n: n / 64), st.sampled_from([0.0, 1.0, 0.2, -0.5]))


def groups_of_rewards(min_groups: int = 1, max_groups: int = 3) -> st.SearchStrategy[list[list[float]]]:
    return st.integers(2, 5).flatmap(
        lambda size: st.lists(st.lists(rewards, min_size=size, max_size=size), min_size=min_groups, max_size=max_groups)
    )


# Log-probs on a grid of tenths: no ratio comes near a clip boundary (ln 0.8 = -0.223, ln 1.2 = 0.182, ln 1.28 = 0.247),
# where float32 and float64 could fall on different sides and have different gradients.
logprob = st.integers(-30, 0).map(lambda n: n / 10)


@dataclass
class Token:
    policy: float
    old: float
    reference: float


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[list[float]], list[list[list[Token]]]]:
    """Rewards [P][G] and tokens [P][G][T], answers of uneven lengths."""
    scores = draw(groups_of_rewards())
    token = st.builds(Token, logprob, logprob, logprob)
    answers = [[draw(st.lists(token, min_size=1, max_size=LONGEST)) for _ in group] for group in scores]
    return scores, answers


# The oracle


def naive_advantages(group: list[float], scale: str) -> list[float]:
    if len(set(group)) == 1:
        return [0.0] * len(group)
    mean = statistics.fmean(group)
    divisor = statistics.pstdev(group) if scale == "group" else 1.0
    return [(reward - mean) / divisor for reward in group]


def naive_loss(
    scores: list[list[float]],
    answers: list[list[list[Token]]],
    *,
    scale: str,
    aggregation: str,
    clip_low: float,
    clip_high: float,
    kl_coefficient: float,
) -> tuple[float, list[float]]:
    """The loss in float64 and its gradient by every log-prob of the policy, one token at a time."""
    leaves: list[Tensor] = []
    num_answers = sum(len(group) for group in answers)
    num_tokens = sum(len(answer) for group in answers for answer in group)
    total = torch.zeros((), dtype=torch.float64)
    for group_scores, group in zip(scores, answers, strict=True):
        for advantage, answer in zip(naive_advantages(group_scores, scale), group, strict=True):
            of_answer = torch.zeros((), dtype=torch.float64)
            for token in answer:
                policy = torch.tensor(token.policy, dtype=torch.float64, requires_grad=True)
                leaves.append(policy)
                ratio = (policy - token.old).exp()
                followed = ratio
                if advantage > 0 and ratio > 1 + clip_high:
                    followed = torch.tensor(1 + clip_high, dtype=torch.float64)
                if advantage < 0 and ratio < 1 - clip_low:
                    followed = torch.tensor(1 - clip_low, dtype=torch.float64)
                reference_over_policy = (token.reference - policy).exp()
                divergence = reference_over_policy - reference_over_policy.log() - 1
                of_answer = of_answer - (followed * advantage - kl_coefficient * divergence)
            if aggregation == "token":
                total = total + of_answer / num_tokens
            elif aggregation == "sequence":
                total = total + of_answer / len(answer) / num_answers
            else:
                total = total + of_answer / LONGEST / num_answers
    gradients = torch.autograd.grad(total, leaves, allow_unused=True)
    return total.item(), [0.0 if gradient is None else gradient.item() for gradient in gradients]


def fast_loss(
    scores: list[list[float]],
    answers: list[list[list[Token]]],
    *,
    scale: Any,
    aggregation: Any,
    clip_low: float,
    clip_high: float,
    kl_coefficient: float,
) -> tuple[float, list[float]]:
    lengths = torch.tensor([len(answer) for group in answers for answer in group])
    tokens = [token for group in answers for answer in group for token in answer]
    logprobs = torch.tensor([token.policy for token in tokens], requires_grad=True)
    result = policy_loss(
        logprobs,
        torch.tensor([token.old for token in tokens]),
        group_advantages(torch.tensor(scores), scale=scale).flatten().repeat_interleave(lengths),
        token_weights(lengths, aggregation, fixed_length=LONGEST).repeat_interleave(lengths),
        clip_low=clip_low,
        clip_high=clip_high,
        reference=torch.tensor([token.reference for token in tokens]) if kl_coefficient else None,
        kl_coefficient=kl_coefficient,
    )
    result.loss.backward()
    assert logprobs.grad is not None
    return result.loss.item(), logprobs.grad.tolist()


def assert_same(fast: tuple[float, list[float]], naive: tuple[float, list[float]]) -> None:
    # float32 against float64: a few units of 1e-7 on sums of up to 90 terms below 100.
    assert fast[0] == pytest.approx(naive[0], rel=1e-5, abs=1e-5)
    assert fast[1] == pytest.approx(naive[1], rel=1e-5, abs=1e-6)


# Whole losses


@pytest.mark.parametrize("name", sorted(PRESETS))
@SAMPLES
@given(batch=batches())
def test_a_preset_has_the_loss_and_gradient_of_its_paper(
    name: str, batch: tuple[list[list[float]], list[list[list[Token]]]]
) -> None:
    # Written out here, not read from the preset: the test pins what the names stand for.
    axes: dict[str, dict[str, Any]] = {
        "grpo": {"scale": "group", "aggregation": "sequence", "kl_coefficient": 0.04},
        "dr_grpo": {"scale": "none", "aggregation": "fixed", "kl_coefficient": 0.0},
    }
    method = PRESETS[name]
    fast = fast_loss(
        *batch,
        scale=method.scale,
        aggregation=method.aggregation,
        clip_low=method.clip_low,
        clip_high=method.clip_high,
        kl_coefficient=method.kl_coefficient,
    )
    assert_same(fast, naive_loss(*batch, clip_low=0.2, clip_high=0.2, **axes[name]))


@SAMPLES
@given(
    batch=batches(),
    scale=st.sampled_from(["group", "none"]),
    aggregation=st.sampled_from(["token", "sequence", "fixed"]),
    clip_low=st.sampled_from([0.1, 0.2, 0.5]),
    clip_high=st.sampled_from([0.2, 0.28, 3.0]),
    kl_coefficient=st.sampled_from([0.0, 0.04, 1.0]),
)
def test_every_point_of_the_space_has_its_naive_loss_and_gradient(
    batch: tuple[list[list[float]], list[list[list[Token]]]], **axes: Any
) -> None:
    assert_same(fast_loss(*batch, **axes), naive_loss(*batch, **axes))


# Advantages


@SAMPLES
@given(scores=groups_of_rewards(), scale=st.sampled_from(["group", "none"]))
def test_advantages_are_those_of_the_loop(scores: list[list[float]], scale: Any) -> None:
    fast = group_advantages(torch.tensor(scores, dtype=torch.float64), scale=scale)
    for row, group in zip(fast.tolist(), scores, strict=True):
        assert row == pytest.approx(naive_advantages(group, scale), rel=1e-6, abs=1e-6)


@SAMPLES
@given(scores=groups_of_rewards(max_groups=1), shift=st.integers(-5, 5), factor=st.sampled_from([0.25, 2.0, 8.0]))
def test_scaled_advantages_do_not_depend_on_the_unit_or_the_zero_of_the_reward(
    scores: list[list[float]], shift: int, factor: float
) -> None:
    original = torch.tensor(scores, dtype=torch.float64)
    torch.testing.assert_close(group_advantages(original * factor + shift), group_advantages(original))


@SAMPLES
@given(scores=groups_of_rewards(max_groups=1), data=st.data())
def test_advantages_follow_their_answers_through_a_permutation(scores: list[list[float]], data: st.DataObject) -> None:
    original = torch.tensor(scores, dtype=torch.float64)
    order = data.draw(st.permutations(range(original.shape[1])))
    torch.testing.assert_close(group_advantages(original[:, order]), group_advantages(original)[:, order])


@SAMPLES
@given(scores=groups_of_rewards(), scale=st.sampled_from(["group", "none"]))
def test_the_advantages_of_a_group_cancel(scores: list[list[float]], scale: Any) -> None:
    sums = group_advantages(torch.tensor(scores, dtype=torch.float64), scale=scale).sum(-1)
    torch.testing.assert_close(sums, torch.zeros_like(sums), rtol=0, atol=1e-5)


# Weights

lengths_of_answers = st.lists(st.integers(0, 9), min_size=1, max_size=8)


@SAMPLES
@given(lengths=lengths_of_answers, aggregation=st.sampled_from(["token", "sequence", "fixed"]))
def test_weights_are_those_of_the_loop(lengths: list[int], aggregation: Any) -> None:
    num_tokens, num_answers = sum(lengths), sum(length > 0 for length in lengths)
    expected = []
    for length in lengths:
        if length == 0:
            expected.append(0.0)
        elif aggregation == "token":
            expected.append(1 / num_tokens)
        elif aggregation == "sequence":
            expected.append(1 / num_answers / length)
        else:
            expected.append(1 / num_answers / 12)
    assert token_weights(torch.tensor(lengths), aggregation, fixed_length=12).tolist() == pytest.approx(expected)


@SAMPLES
@given(lengths=lengths_of_answers.filter(any), aggregation=st.sampled_from(["token", "sequence"]))
def test_a_mean_has_weights_that_add_up_to_one(lengths: list[int], aggregation: Any) -> None:
    counts = torch.tensor(lengths)
    assert float((token_weights(counts, aggregation) * counts).sum()) == pytest.approx(1.0)


# Divergence


@SAMPLES
@given(pairs=st.lists(st.tuples(logprob, logprob), min_size=1, max_size=9))
def test_k3_is_that_of_the_loop_and_never_negative(pairs: list[tuple[float, float]]) -> None:
    expected = [math.exp(reference - policy) - (reference - policy) - 1 for policy, reference in pairs]
    policy, reference = torch.tensor(pairs).T
    estimate = k3(policy, reference)
    assert estimate.tolist() == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert bool((estimate >= 0).all())


def test_k3_averages_to_the_divergence_under_the_policy() -> None:
    # Sum over a 4-word vocabulary of p * k3 must be sum p ln(p / q), exactly and not only in the limit.
    p, q = torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([0.4, 0.1, 0.2, 0.3])
    expected = sum(a * math.log(a / b) for a, b in zip(p.tolist(), q.tolist(), strict=True))
    assert float((p * k3(p.log(), q.log())).sum()) == pytest.approx(expected, abs=1e-6)


# Log-probs in chunks


@dataclass
class HeadCase:
    hidden: Tensor
    weight: Tensor
    targets: Tensor
    bias: Tensor | None
    softcap: float | None
    temperature: float
    upstream: Tensor


@st.composite
def head_cases(draw: st.DrawFn) -> HeadCase:
    tokens, width, vocabulary = draw(st.integers(1, 12)), draw(st.integers(1, 6)), draw(st.integers(2, 11))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    return HeadCase(
        hidden=torch.randn(tokens, width, generator=generator),
        weight=2 * torch.randn(vocabulary, width, generator=generator),
        targets=torch.randint(vocabulary, (tokens,), generator=generator),
        bias=torch.randn(vocabulary, generator=generator) if draw(st.booleans()) else None,
        softcap=draw(st.sampled_from([None, 1.0, 3.0])),
        temperature=draw(st.sampled_from([0.3, 1.0, 1.7])),
        upstream=torch.randn(tokens, generator=generator),
    )


def plain_logprobs(case: HeadCase, dtype: torch.dtype) -> tuple[Tensor, Tensor, list[Tensor]]:
    """[M] log-probs, [M] entropies and the gradients by hidden, weight and bias, all logits at once."""
    inputs = [x.to(dtype).requires_grad_() for x in (case.hidden, case.weight, case.bias) if x is not None]
    logits = inputs[0] @ inputs[1].T
    if case.bias is not None:
        logits = logits + inputs[2]
    if case.softcap is not None:
        logits = case.softcap * torch.tanh(logits / case.softcap)
    log_softmax = (logits / case.temperature).log_softmax(-1)
    logprobs = log_softmax[torch.arange(len(case.targets)), case.targets]
    entropies = -(log_softmax.exp() * log_softmax).sum(-1)
    return logprobs, entropies, list(torch.autograd.grad(logprobs @ case.upstream.to(dtype), inputs))


@SAMPLES
@given(case=head_cases(), chunk=st.integers(1, 14))
def test_chunked_logprobs_have_the_values_and_gradients_of_a_plain_log_softmax(case: HeadCase, chunk: int) -> None:
    inputs = [x.clone().requires_grad_() for x in (case.hidden, case.weight, case.bias) if x is not None]
    logprobs, entropies = selected_logprobs(
        inputs[0],
        inputs[1],
        case.targets,
        bias=inputs[2] if case.bias is not None else None,
        softcap=case.softcap,
        temperature=case.temperature,
        chunk=chunk,
    )
    gradients = torch.autograd.grad(logprobs @ case.upstream, inputs)
    expected_logprobs, expected_entropies, expected_gradients = plain_logprobs(case, torch.float64)
    torch.testing.assert_close(logprobs, expected_logprobs.float(), rtol=1e-5, atol=2e-5)
    torch.testing.assert_close(entropies, expected_entropies.float(), rtol=1e-5, atol=2e-5)
    for gradient, expected in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, expected.float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("trained", ["hidden", "weight", "bias"])
def test_gradients_are_right_when_only_one_input_needs_them(trained: str) -> None:
    generator = torch.Generator().manual_seed(5)
    case = HeadCase(
        hidden=torch.randn(7, 4, generator=generator),
        weight=torch.randn(9, 4, generator=generator),
        targets=torch.arange(7),
        bias=torch.randn(9, generator=generator),
        softcap=2.0,
        temperature=0.7,
        upstream=torch.randn(7, generator=generator),
    )
    assert case.bias is not None
    inputs = {"hidden": case.hidden, "weight": case.weight, "bias": case.bias}
    inputs[trained].requires_grad_()
    logprobs, _ = selected_logprobs(
        case.hidden, case.weight, case.targets, bias=case.bias, softcap=2.0, temperature=0.7, chunk=3
    )
    (gradient,) = torch.autograd.grad(logprobs @ case.upstream, [inputs[trained]])
    expected = plain_logprobs(case, torch.float64)[2][list(inputs).index(trained)]
    torch.testing.assert_close(gradient, expected.float(), rtol=1e-4, atol=1e-5)


def test_a_bfloat16_head_is_normalised_in_float32() -> None:
    generator = torch.Generator().manual_seed(6)
    hidden = torch.randn(5, 8, generator=generator).bfloat16()
    weight = torch.randn(300, 8, generator=generator).bfloat16()
    logprobs, entropies = selected_logprobs(hidden, weight, torch.arange(5), chunk=2)
    expected = (hidden @ weight.T).float().log_softmax(-1)
    assert (logprobs.dtype, entropies.dtype) == (torch.float32, torch.float32)
    torch.testing.assert_close(logprobs, expected[torch.arange(5), torch.arange(5)], rtol=1e-6, atol=1e-5)


def test_a_bfloat16_weight_gradient_does_not_lose_the_later_chunks() -> None:
    # 1024 equal tokens, each with gradient 1/2 on its own row. A bfloat16 sum has 8 bits: it would stop growing at
    # 128, where adding 1/2 rounds away; the true sum is 512.
    weight = torch.zeros(2, 1, dtype=torch.bfloat16, requires_grad=True)
    hidden = torch.ones(1024, 1, dtype=torch.bfloat16)
    selected_logprobs(hidden, weight, torch.zeros(1024, dtype=torch.long), chunk=1)[0].sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [[512.0], [-512.0]]


def test_logits_of_any_size_give_finite_logprobs() -> None:
    weight = torch.tensor([[1e4], [-1e4]])
    logprobs, entropies = selected_logprobs(torch.ones(2, 1), weight, torch.tensor([0, 1]))
    assert logprobs.tolist() == [0.0, -2e4]
    assert entropies.tolist() == [0.0, 0.0]
