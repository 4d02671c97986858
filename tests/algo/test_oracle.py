"""Pins the fast code to naive float64 loops over groups, sequences and tokens, written from the papers' formulas."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from peerwise.algo.advantage import group_advantages, whitened
from peerwise.algo.aggregate import token_weights
from peerwise.algo.correction import mismatch_weights
from peerwise.algo.divergence import k1, k2, k3
from peerwise.algo.logprob import selected_logprobs
from peerwise.algo.policy import policy_loss
from peerwise.algo.presets import PRESETS, Method

SAMPLES = settings(max_examples=60)
LONGEST = 6
BOUND = 2.0

Batch = tuple[list[list[float]], "list[list[list[Token]]]"]

# Sixty-fourths are exact in binary, so that "equal" and "not equal" mean the same in every precision.
rewards = st.one_of(st.integers(-192, 192).map(lambda n: n / 64), st.sampled_from([0.0, 1.0, 0.2, -0.5]))


def groups_of_rewards(min_groups: int = 1, max_groups: int = 3) -> st.SearchStrategy[list[list[float]]]:
    return st.integers(2, 5).flatmap(
        lambda size: st.lists(st.lists(rewards, min_size=size, max_size=size), min_size=min_groups, max_size=max_groups)
    )


# Log-probs on a grid of eighths, the sampling policy's 1/32 beside it: exact in binary, and neither a token's log-ratio
# nor the mean over up to 6 of them comes within 2e-4 of the edge of a range used here (ln 0.8 = -0.223,
# ln 1.28 = 0.247, GMPO's +-0.4, GSPO's 3e-4), where float32 and float64 could fall on different sides and have
# different gradients.
logprob = st.integers(-24, 0).map(lambda n: n / 8)
logprob_between = logprob.map(lambda value: value + 1 / 32)


@dataclass
class Token:
    policy: float
    old: float
    sampler: float
    reference: float


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """Rewards [P][G] and tokens [P][G][T], answers of uneven lengths."""
    scores = draw(groups_of_rewards())
    token = st.builds(Token, logprob, logprob_between, logprob, logprob)
    answers = [[draw(st.lists(token, min_size=1, max_size=LONGEST)) for _ in group] for group in scores]
    return scores, answers


# What the names stand for, written out here and not read from the presets: the test pins them.

GRPO: dict[str, Any] = {
    "baseline": "group",
    "scale": "group",
    "ratio": "token",
    "surrogate": "clip",
    "clip_low": 0.2,
    "clip_high": 0.2,
    "dual_clip": None,
    "gate_positive": 1.0,
    "gate_negative": 1.05,
    "divergence": "k3",
    "kl_in": "loss",
    "kl_coefficient": 0.0,
    "aggregation": "sequence",
    "correction": "none",
    "uninformative": "keep",
    "truncated": "keep",
    "entropy_coefficient": 0.0,
    "entropy_share": 1.0,
}
PAPERS: dict[str, dict[str, Any]] = {
    "grpo": {"kl_coefficient": 0.04},
    "dr_grpo": {"scale": "none", "aggregation": "fixed"},
    "dapo": {"clip_high": 0.28, "aggregation": "token", "uninformative": "refill", "truncated": "penalty"},
    "gspo": {"ratio": "sequence", "clip_low": 3e-4, "clip_high": 4e-4},
    "cispo": {"surrogate": "clipped_weight", "clip_low": 1.0, "clip_high": 4.0, "aggregation": "token"},
    "sapo": {"surrogate": "soft_gate"},
    "gmpo": {"surrogate": "geometric_mean", "clip_low": 0.4, "clip_high": 0.4},
    "rloo": {
        "baseline": "leave_one_out",
        "scale": "none",
        "ratio": "none",
        "aggregation": "fixed",
        "divergence": "k1",
        "kl_in": "reward",
        "kl_coefficient": 0.03,
    },
    "reinforce_pp": {
        "baseline": "batch",
        "scale": "batch",
        "aggregation": "token",
        "divergence": "k1",
        "kl_in": "reward",
        "kl_coefficient": 0.01,
    },
    "ppo": {
        "baseline": "critic",
        "scale": "batch",
        "aggregation": "token",
        "divergence": "k1",
        "kl_in": "reward",
        "kl_coefficient": 0.01,
    },
}


# The oracle


def naive_advantages(scores: list[list[float]], baseline: str, scale: str) -> list[list[float]]:
    everything = [reward for group in scores for reward in group]
    rows = []
    for group in scores:
        row = []
        for index, reward in enumerate(group):
            others = group[:index] + group[index + 1 :]
            if baseline == "none":
                row.append(reward)
            elif len(set(everything if baseline == "batch" else group)) == 1:
                row.append(0.0)
            elif baseline == "group":
                row.append(reward - statistics.fmean(group))
            elif baseline == "leave_one_out":
                row.append(reward - statistics.fmean(others))
            else:
                row.append(reward - statistics.fmean(everything))
        rows.append(row)
    if scale == "group":
        divisors = [statistics.pstdev(row) for row in rows]
    elif scale == "batch":
        divisors = [statistics.pstdev([advantage for row in rows for advantage in row])] * len(rows)
    else:
        divisors = [1.0] * len(rows)
    return [[a / divisor if a else 0.0 for a in row] for row, divisor in zip(rows, divisors, strict=True)]


def constant(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def naive_objectives(policies: list[Tensor], answer: list[Token], advantage: float, axes: dict[str, Any]) -> list[Any]:
    """[T] the objective of each token of one answer, each a float64 scalar."""
    if axes["ratio"] == "none":  # REINFORCE: A log p
        return [advantage * policy for policy in policies]
    ratios = [(policy - token.old).exp() for policy, token in zip(policies, answer, strict=True)]
    if axes["ratio"] == "sequence":  # GSPO, eq. 7: (p(y) / p_old(y)) ^ (1 / T), in the place of every token's
        product = math.prod(ratios[1:], start=ratios[0])
        ratios = [product ** (1 / len(answer))] * len(answer)
    low, high = axes["clip_low"], axes["clip_high"]
    found: list[Any] = []
    if axes["surrogate"] == "geometric_mean":  # GMPO, eq. 4: one value for the answer
        if advantage > 0:
            kept = [ratio if ratio < math.exp(high) else constant(math.exp(high)) for ratio in ratios]
        else:
            kept = [ratio if ratio > math.exp(-low) else constant(math.exp(-low)) for ratio in ratios]
        return [math.prod(kept[1:], start=kept[0]) ** (1 / len(answer)) * advantage] * len(answer)
    for policy, ratio in zip(policies, ratios, strict=True):
        if axes["surrogate"] == "clip":
            followed = ratio
            if advantage > 0 and ratio > 1 + high:
                followed = constant(1 + high)
            if advantage < 0 and ratio < 1 - low:
                followed = constant(1 - low)
            if advantage < 0 and axes["dual_clip"] is not None and ratio > axes["dual_clip"]:
                followed = constant(axes["dual_clip"])
            found.append(followed * advantage)
        elif axes["surrogate"] == "clipped_weight":  # CISPO, eq. 4: the weight is a number, not a function
            weight = min(max(ratio.item(), 1 - low), 1 + high)
            found.append(weight * advantage * policy)
        else:  # SAPO, eq. 5 and 6
            temperature = axes["gate_positive"] if advantage > 0 else axes["gate_negative"]
            gate = 1 / (1 + (-temperature * (ratio - 1)).exp())
            found.append(gate * 4 / temperature * advantage)
    return found


def naive_correction(token: Token, kind: str) -> float:
    weight = math.exp(token.old - token.sampler)
    if kind == "truncate":
        return min(weight, BOUND)
    if kind == "mask":
        return weight if 1 / BOUND <= weight <= BOUND else 0.0
    return 1.0


def naive_divergence(policy: Tensor, reference: float, kind: str) -> Tensor:
    """Schulman's three, by r = reference / policy."""
    ratio = (reference - policy).exp()
    if kind == "k1":
        return -ratio.log()
    if kind == "k2":
        return ratio.log() ** 2 / 2
    return ratio - 1 - ratio.log()


def naive_loss(
    scores: list[list[float]], answers: list[list[list[Token]]], axes: dict[str, Any]
) -> tuple[float, list[float]]:
    """The loss in float64 and its gradient by every log-prob of the policy, one token at a time."""
    leaves: list[Tensor] = []
    num_answers = sum(len(group) for group in answers)
    num_tokens = sum(len(answer) for group in answers for answer in group)
    total = constant(0.0)
    advantages = naive_advantages(scores, axes["baseline"], axes["scale"])
    for row, group in zip(advantages, answers, strict=True):
        for advantage, answer in zip(row, group, strict=True):
            policies = [constant(token.policy).requires_grad_() for token in answer]
            leaves += policies
            objectives = naive_objectives(policies, answer, advantage, axes)
            of_answer = constant(0.0)
            for policy, token, objective in zip(policies, answer, objectives, strict=True):
                of_answer = of_answer - objective * naive_correction(token, axes["correction"])
                if axes["kl_in"] == "loss":  # in the reward, the advantages have it already
                    cost = naive_divergence(policy, token.reference, axes["divergence"])
                    of_answer = of_answer + axes["kl_coefficient"] * cost
            if axes["aggregation"] == "token":
                total = total + of_answer / num_tokens
            elif axes["aggregation"] == "sequence":
                total = total + of_answer / len(answer) / num_answers
            else:
                total = total + of_answer / LONGEST / num_answers
    gradients = torch.autograd.grad(total, leaves, allow_unused=True)
    return total.item(), [0.0 if gradient is None else gradient.item() for gradient in gradients]


def fast_loss(scores: list[list[float]], answers: list[list[list[Token]]], method: Method) -> tuple[float, list[float]]:
    lengths = torch.tensor([len(answer) for group in answers for answer in group])
    tokens = [token for group in answers for answer in group for token in answer]
    logprobs = torch.tensor([token.policy for token in tokens], requires_grad=True)
    old = torch.tensor([token.old for token in tokens])
    sampler = torch.tensor([token.sampler for token in tokens])
    charged = method.kl_in == "loss" and method.kl_coefficient > 0
    advantages = group_advantages(torch.tensor(scores), scale=method.scale, baseline=method.baseline)
    result = policy_loss(
        logprobs,
        old,
        advantages.flatten().repeat_interleave(lengths),
        token_weights(lengths, method.aggregation, fixed_length=LONGEST).repeat_interleave(lengths),
        clip_low=method.clip_low,
        clip_high=method.clip_high,
        lengths=lengths,
        ratio=method.ratio,
        surrogate=method.surrogate,
        dual_clip=method.dual_clip,
        gate_positive=method.gate_positive,
        gate_negative=method.gate_negative,
        correction=mismatch_weights(old, sampler, kind=method.correction, bound=BOUND)[0],
        reference=torch.tensor([token.reference for token in tokens]) if charged else None,
        divergence=method.divergence,
        kl_coefficient=method.kl_coefficient,
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
def test_a_preset_has_the_loss_and_gradient_of_its_paper(name: str, batch: Batch) -> None:
    method, axes = PRESETS[name], GRPO | PAPERS[name]
    if axes["baseline"] == "critic":  # its advantages are another test's: here those of the batch are given
        method, axes = replace(method, baseline="batch"), axes | {"baseline": "batch"}
    assert_same(fast_loss(*batch, method), naive_loss(*batch, axes))


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_preset_differs_from_grpo_in_what_its_paper_names_and_in_nothing_else(name: str) -> None:
    assert asdict(PRESETS[name]) == GRPO | PAPERS[name]


# A deviation is that of a group or of the batch where the baseline makes it one: with another baseline the difference
# is divided by something that no paper names.
comparisons = st.sampled_from(
    [
        ("group", "group"),
        ("group", "batch"),
        ("group", "none"),
        ("leave_one_out", "batch"),
        ("leave_one_out", "none"),
        ("batch", "batch"),
        ("batch", "none"),
        ("none", "none"),
    ]
)


@settings(max_examples=150)
@given(
    batch=batches(),
    comparison=comparisons,
    ratio=st.sampled_from(["token", "sequence", "none"]),
    surrogate=st.sampled_from(["clip", "clipped_weight", "soft_gate", "geometric_mean"]),
    clip_low=st.sampled_from([0.1, 0.2, 0.6]),
    clip_high=st.sampled_from([0.2, 0.28, 3.0]),
    dual_clip=st.sampled_from([None, 3.0]),
    gate_positive=st.sampled_from([0.5, 1.0]),
    gate_negative=st.sampled_from([1.05, 2.0]),
    divergence=st.sampled_from(["k1", "k2", "k3"]),
    kl_in=st.sampled_from(["loss", "reward"]),
    kl_coefficient=st.sampled_from([0.0, 0.04, 1.0]),
    aggregation=st.sampled_from(["token", "sequence", "fixed"]),
    correction=st.sampled_from(["none", "truncate", "mask"]),
)
def test_every_point_of_the_space_has_its_naive_loss_and_gradient(
    batch: Batch, comparison: tuple[str, str], **others: Any
) -> None:
    axes = GRPO | {"baseline": comparison[0], "scale": comparison[1]} | others
    assert_same(fast_loss(*batch, Method(**axes)), naive_loss(*batch, axes))


# Advantages


@SAMPLES
@given(scores=groups_of_rewards(), comparison=comparisons)
def test_advantages_are_those_of_the_loop(scores: list[list[float]], comparison: tuple[Any, Any]) -> None:
    baseline, scale = comparison
    fast = group_advantages(torch.tensor(scores, dtype=torch.float64), scale=scale, baseline=baseline)
    for row, expected in zip(fast.tolist(), naive_advantages(scores, baseline, scale), strict=True):
        assert row == pytest.approx(expected, rel=1e-6, abs=1e-6)


@SAMPLES
@given(values=st.lists(rewards, min_size=2, max_size=20), scale=st.booleans())
def test_centred_tokens_are_those_of_the_loop(values: list[float], scale: bool) -> None:
    deviation = statistics.pstdev(values) if scale and len(set(values)) > 1 else 1.0
    expected = [(value - statistics.fmean(values)) / deviation for value in values]
    found = whitened(torch.tensor(values, dtype=torch.float64), centre=True, scale=scale)
    assert found.tolist() == pytest.approx(expected, rel=1e-6, abs=1e-6)


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
@given(
    scores=groups_of_rewards(),
    scale=st.sampled_from(["group", "batch", "none"]),
    baseline=st.sampled_from(["group", "leave_one_out"]),
)
def test_the_advantages_of_a_group_cancel(scores: list[list[float]], scale: Any, baseline: Any) -> None:
    exact = torch.tensor(scores, dtype=torch.float64)
    sums = group_advantages(exact, scale=scale, baseline=baseline).sum(-1)
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


def test_k1_averages_to_the_divergence_and_k2_to_its_gradient_under_the_policy() -> None:
    # Over a 4-word vocabulary: sum p * k1 is the divergence itself; and d/dz of sum p ln(p / q) by the logits z of p is
    # that of sum (p held) * k2.
    logits, q = torch.tensor([0.3, -0.2, 0.9, 0.0], requires_grad=True), torch.tensor([0.4, 0.1, 0.2, 0.3])
    log_p = logits.log_softmax(-1)
    p = log_p.detach().exp()
    divergence = (log_p.exp() * (log_p - q.log())).sum()
    assert (p * k1(log_p, q.log())).sum().item() == pytest.approx(divergence.item(), abs=1e-6)
    (expected,) = torch.autograd.grad(divergence, logits, retain_graph=True)
    (found,) = torch.autograd.grad((p * k2(log_p, q.log())).sum(), logits)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert float(expected.abs().max()) > 0.1


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
    of_entropies: Tensor


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
        of_entropies=torch.randn(tokens, generator=generator),
    )


def plain_logprobs(
    case: HeadCase, dtype: torch.dtype, *, with_entropies: bool = False
) -> tuple[Tensor, Tensor, list[Tensor]]:
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
    loss = logprobs @ case.upstream.to(dtype)
    if with_entropies:
        loss = loss + entropies @ case.of_entropies.to(dtype)
    return logprobs, entropies, list(torch.autograd.grad(loss, inputs))


def chunked_logprobs(case: HeadCase, chunk: int, columns: int) -> tuple[Tensor, Tensor, list[Tensor]]:
    """[M] log-probs, [M] entropies and the inputs (hidden, weight and, where there is one, bias) as leaves."""
    inputs = [x.clone().requires_grad_() for x in (case.hidden, case.weight, case.bias) if x is not None]
    logprobs, entropies = selected_logprobs(
        inputs[0],
        inputs[1],
        case.targets,
        bias=inputs[2] if case.bias is not None else None,
        softcap=case.softcap,
        temperature=case.temperature,
        chunk=chunk,
        columns=columns,
    )
    return logprobs, entropies, inputs


def entropy_rounding(case: HeadCase) -> float:
    """What float32 may add to an entropy: it is log Z - E[logit], and both are as large as the largest logit."""
    logits = case.hidden @ case.weight.T + (0.0 if case.bias is None else case.bias)
    if case.softcap is not None:
        logits = case.softcap * torch.tanh(logits / case.softcap)
    return 1e-6 * float((logits / case.temperature).abs().max()) ** 2


def assert_gradients(gradients: Sequence[Tensor], expected: list[Tensor], *, rounding: float = 0.0) -> None:
    for gradient, exact in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, exact.float(), rtol=1e-4, atol=1e-4 + rounding)


@SAMPLES
@given(case=head_cases(), chunk=st.integers(1, 14), columns=st.integers(1, 14))
def test_chunked_logprobs_have_the_values_and_gradients_of_a_plain_log_softmax(
    case: HeadCase, chunk: int, columns: int
) -> None:
    logprobs, entropies, inputs = chunked_logprobs(case, chunk, columns)
    gradients = torch.autograd.grad(logprobs @ case.upstream, inputs)
    expected_logprobs, expected_entropies, expected_gradients = plain_logprobs(case, torch.float64)
    torch.testing.assert_close(logprobs, expected_logprobs.float(), rtol=1e-5, atol=2e-5)
    torch.testing.assert_close(entropies, expected_entropies.float(), rtol=1e-5, atol=2e-5 + entropy_rounding(case))
    assert_gradients(gradients, expected_gradients)


@SAMPLES
@given(case=head_cases(), chunk=st.integers(1, 14), columns=st.integers(1, 14))
def test_chunked_entropies_have_the_gradients_of_a_plain_log_softmax(case: HeadCase, chunk: int, columns: int) -> None:
    logprobs, entropies, inputs = chunked_logprobs(case, chunk, columns)
    rounding = 3 * entropy_rounding(case)
    both = torch.autograd.grad(logprobs @ case.upstream + entropies @ case.of_entropies, inputs, retain_graph=True)
    assert_gradients(both, plain_logprobs(case, torch.float64, with_entropies=True)[2], rounding=rounding)
    alone = torch.autograd.grad(entropies @ case.of_entropies, inputs)
    only_entropies = replace(case, upstream=torch.zeros_like(case.upstream))
    assert_gradients(alone, plain_logprobs(only_entropies, torch.float64, with_entropies=True)[2], rounding=rounding)


@SAMPLES
@given(case=head_cases(), chunk=st.integers(1, 14), columns=st.integers(1, 14))
def test_entropies_that_are_left_out_or_weigh_nothing_leave_the_gradient_as_it_is(
    case: HeadCase, chunk: int, columns: int
) -> None:
    logprobs, entropies, inputs = chunked_logprobs(case, chunk, columns)
    without = torch.autograd.grad(logprobs @ case.upstream, inputs, retain_graph=True)
    weightless = torch.autograd.grad(logprobs @ case.upstream + 0.0 * entropies.sum(), inputs)
    for left, right in zip(without, weightless, strict=True):
        assert torch.equal(left, right)


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
        of_entropies=torch.zeros(7),
    )
    assert case.bias is not None
    inputs = {"hidden": case.hidden, "weight": case.weight, "bias": case.bias}
    inputs[trained].requires_grad_()
    logprobs, _ = selected_logprobs(
        case.hidden, case.weight, case.targets, bias=case.bias, softcap=2.0, temperature=0.7, chunk=3, columns=4
    )
    (gradient,) = torch.autograd.grad(logprobs @ case.upstream, [inputs[trained]])
    expected = plain_logprobs(case, torch.float64)[2][list(inputs).index(trained)]
    torch.testing.assert_close(gradient, expected.float(), rtol=1e-4, atol=1e-5)


def test_a_bfloat16_head_is_normalised_in_float32() -> None:
    generator = torch.Generator().manual_seed(6)
    hidden = torch.randn(5, 8, generator=generator).bfloat16()
    weight = torch.randn(300, 8, generator=generator).bfloat16()
    logprobs, entropies = selected_logprobs(hidden, weight, torch.arange(5), chunk=2, columns=7)
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
