"""Pins what the options of a step do to its gradient: mini-batches, answers and groups that are left out, weights for
the mismatch of sampler and trainer, advantages of single tokens, the entropy bonus.

Expectations are gradients of plain forwards on single rows, or of steps on smaller batches that need no option.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from test_step import (
    ADVANTAGES,
    EVERYTHING,
    LONGEST,
    PLAIN,
    UNEVEN,
    Recorder,
    assert_close,
    make_groups,
    naive_gradient,
    naive_logprobs,
    step,
)
from torch import Tensor
from transformers import PreTrainedModel

from peerwise.algo.presets import Method
from peerwise.models.load import Policy
from peerwise.models.lora import Reference, add_lora
from peerwise.records import Group, Score
from peerwise.train.likelihood import sequence_logprobs
from peerwise.train.sequences import packed_groups
from peerwise.train.step import policy_step

Build = Callable[..., Policy]
Gradient = dict[str, Tensor]

AGGREGATIONS = ["token", "sequence", "fixed"]
FIVE = [[2, 7], [5, 1], [3, 3], [11, 4], [6, 2]]
FIVE_ADVANTAGES = torch.tensor([[1.0, -0.5], [-0.7, 0.9], [0.4, -1.2], [-0.3, 0.8], [1.1, 0.6]])


def moved_away(policy: Policy, seed: int = 2) -> Policy:
    """The policy after some steps, so that it differs from a reference taken before."""
    with torch.no_grad():
        for p in policy.model.parameters():
            p += 0.02 * torch.randn(p.shape, generator=torch.Generator().manual_seed(seed))
    return policy


def by_token(groups: Sequence[Group], advantages: Tensor) -> list[Tensor]:
    """Each answer's advantage at each of its tokens."""
    answers = [answer for group in groups for answer in group.completions]
    return [torch.full((len(c.token_ids),), float(a)) for a, c in zip(advantages.flatten(), answers, strict=True)]


def mixture(gradients: Sequence[Gradient], shares: Sequence[float]) -> Gradient:
    return {
        name: sum(share * gradient[name] for share, gradient in zip(shares, gradients, strict=True))
        for name in gradients[0]
    }


def distance(actual: Gradient, expected: Gradient) -> float:
    """Largest difference as a share of the largest entry."""
    largest = max(float(x.abs().max()) for x in expected.values())
    return max(float((actual[name] - x).abs().max()) for name, x in expected.items()) / largest


def weights_of(policy: Policy) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in policy.model.state_dict().items()}


# Mini-batches


def members(gradient: Gradient, alone: Sequence[Gradient], shares: Sequence[float]) -> tuple[int, ...]:
    """The one set of groups whose own gradients, mixed by their shares of the set, make up `gradient`."""
    found = []
    for size in range(1, len(alone) + 1):
        for chosen in itertools.combinations(range(len(alone)), size):
            whole = sum(shares[i] for i in chosen)
            expected = mixture([alone[i] for i in chosen], [shares[i] / whole for i in chosen])
            if distance(gradient, expected) < 1e-5:
                found.append(chosen)
    assert len(found) == 1, found
    return found[0]


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("budget", [1, EVERYTHING])
def test_each_pass_covers_every_group_once_and_each_mini_batch_has_its_own_denominators(
    tiny_policy: Build, aggregation: Any, budget: int
) -> None:
    groups, method = make_groups(21, FIVE), replace(PLAIN, aggregation=aggregation)
    alone = [
        step(tiny_policy(), [group], row[None], method=method)[0].gradients[0]
        for group, row in zip(groups, FIVE_ADVANTAGES, strict=True)
    ]
    # A group's share of a mini-batch: of its tokens, or of its answers.
    shares = [sum(row) if aggregation == "token" else len(row) for row in FIVE]
    # At a rate of 0 nothing moves, so all four updates are of the same policy and the ratio is 1 throughout.
    optimizer, _ = step(
        tiny_policy(),
        groups,
        FIVE_ADVANTAGES,
        method=method,
        passes=2,
        mini_batches=2,
        learning_rate=0.0,
        micro_batch_tokens=budget,
        seed=5,
    )
    met = [members(gradient, alone, shares) for gradient in optimizer.gradients]
    assert [len(part) for part in met] == [3, 2, 3, 2]
    for first, second in (met[:2], met[2:]):
        assert sorted(first + second) == [0, 1, 2, 3, 4]


def test_the_order_of_groups_is_drawn_from_the_seed_and_anew_in_each_pass(tiny_policy: Build) -> None:
    groups = make_groups(21, FIVE)

    def gradients(seed: int) -> list[Gradient]:
        settings = {"passes": 2, "mini_batches": 2, "learning_rate": 0.0, "seed": seed}
        return step(tiny_policy(), groups, FIVE_ADVANTAGES, **settings)[0].gradients

    by_seed = [gradients(seed) for seed in range(6)]
    again = gradients(0)
    assert all(torch.equal(again[i][name], by_seed[0][i][name]) for i in range(4) for name in again[i])
    # Of the 10 ways to choose 3 groups of 5, six seeds would all take the same one once in 100 000 times.
    assert any(distance(by_seed[seed][0], by_seed[0][0]) > 1e-3 for seed in range(1, 6))
    assert any(distance(by_seed[seed][2], by_seed[seed][0]) > 1e-3 for seed in range(6))


def test_one_mini_batch_is_the_whole_batch_whatever_the_seed(tiny_policy: Build) -> None:
    found = [step(tiny_policy(), make_groups(3, UNEVEN), ADVANTAGES, seed=seed)[0].gradients[0] for seed in (0, 1)]
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_every_mini_batch_follows_the_ratio_to_the_policy_before_the_first_update(
    tiny_policy: Build, tiny: Any
) -> None:
    groups, temperature = make_groups(1, [[1, 6], [4, 3]]), 0.7
    advantages = torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
    method = Method(aggregation="sequence", clip_low=0.05, clip_high=0.1, kl_coefficient=0.3)
    policy = tiny_policy()
    reference = Reference(policy.model)
    moved_away(policy)
    optimizer, metrics = step(
        policy,
        groups,
        advantages,
        method=method,
        temperature=temperature,
        micro_batch_tokens=13,
        passes=2,
        mini_batches=2,
        reference=reference,
    )
    states = [tiny("llama") for _ in optimizer.before]
    for model, state in zip(states, optimizer.before, strict=True):
        model.load_state_dict(state)

    def expected(update: int, group: int, old: int) -> tuple[Gradient, float]:
        return naive_gradient(
            copy.deepcopy(states[update]),
            states[old],
            tiny("llama"),
            [groups[group]],
            advantages[group][None],
            method,
            temperature,
        )

    first = min((0, 1), key=lambda group: distance(optimizer.gradients[0], expected(0, group, 0)[0]))
    third = min((0, 1), key=lambda group: distance(optimizer.gradients[2], expected(2, group, 0)[0]))
    losses = []
    for update, group in enumerate((first, 1 - first, third, 1 - third)):
        gradient, loss = expected(update, group, 0)
        assert_close(optimizer.gradients[update], gradient, 1e-4)
        losses.append(loss)
    assert metrics["loss"] == pytest.approx(sum(losses) / 4, rel=1e-4)
    # Against the policy just before it, the second update would be another: the test can tell the two apart.
    assert distance(optimizer.gradients[1], expected(1, 1 - first, 1)[0]) > 1e-2


def test_a_mini_batch_of_one_group_moves_as_that_group_alone_would(tiny_policy: Build) -> None:
    groups = make_groups(21, FIVE[:2])
    whole, _ = step(tiny_policy(), groups, FIVE_ADVANTAGES[:2], mini_batches=2)
    alone = [step(tiny_policy(), [group], FIVE_ADVANTAGES[i][None])[0] for i, group in enumerate(groups)]
    first = min((0, 1), key=lambda i: distance(whole.gradients[0], alone[i].gradients[0]))
    assert_close(whole.gradients[0], alone[first].gradients[0], 2e-6)
    names = dict(whole.model.named_parameters())
    after_first = {name: whole.before[1][name] for name in names}
    assert_close(after_first, dict(alone[first].model.named_parameters()), 1e-6)


# Answers and groups that are left out


def finish(groups: Sequence[Group], cut: Sequence[Sequence[int]]) -> list[Group]:
    """The groups with the answers at the places named for each cut off at the limit."""
    return [
        replace(
            group,
            completions=tuple(
                replace(answer, finish="length" if place in places else "stop")
                for place, answer in enumerate(group.completions)
            ),
        )
        for group, places in zip(groups, cut, strict=True)
    ]


def without(groups: Sequence[Group], advantages: Tensor, cut: Sequence[Sequence[int]]) -> tuple[list[Group], list]:
    """The batch that never had these answers, with the advantages of the others as they were."""
    kept, rows = [], []
    for group, values, places in zip(groups, advantages, cut, strict=True):
        stay = [i for i in range(len(group.completions)) if i not in places]
        if stay:
            part = replace(
                group,
                completions=tuple(group.completions[i] for i in stay),
                scores=tuple(group.scores[i] for i in stay),
            )
            kept.append(part)
            rows += by_token([part], values[stay])
    return kept, rows


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("budget", [1, EVERYTHING])
@pytest.mark.parametrize("cut", [[[1], [], [0, 2]], [[0, 1, 2], [2], []]], ids=["some", "a whole group"])
@pytest.mark.parametrize("kl", [False, True])
def test_masked_answers_count_neither_in_the_gradient_nor_in_its_denominators(
    tiny_policy: Build, aggregation: Any, budget: int, cut: list[list[int]], kl: bool
) -> None:
    method = replace(PLAIN, aggregation=aggregation, kl_coefficient=0.3 if kl else 0.0)
    groups = make_groups(31, UNEVEN)
    found = []
    for batch, advantages, truncated in (
        (finish(groups, cut), ADVANTAGES, "mask"),
        (*without(groups, ADVANTAGES, cut), "keep"),
    ):
        policy = tiny_policy()
        reference = Reference(policy.model) if kl else None
        moved_away(policy)
        optimizer, metrics = step(
            policy,
            batch,
            advantages,
            method=replace(method, truncated=truncated),
            reference=reference,
            micro_batch_tokens=budget,
            passes=2,
        )
        found.append((optimizer.gradients, metrics["loss"]))
    for ours, theirs in zip(found[0][0], found[1][0], strict=True):
        assert_close(ours, theirs, 1e-5)
    assert found[0][1] == pytest.approx(found[1][1], rel=1e-4, abs=1e-6)


def test_an_answer_that_was_cut_off_is_followed_like_any_other_unless_masked(tiny_policy: Build) -> None:
    groups = make_groups(31, UNEVEN)
    plain = step(tiny_policy(), groups, ADVANTAGES)[0].gradients[0]
    for truncated in ("keep", "zero", "penalty"):
        method = replace(PLAIN, truncated=truncated)
        found = step(tiny_policy(), finish(groups, [[1], [], [0]]), ADVANTAGES, method=method)[0].gradients[0]
        assert all(torch.equal(found[name], plain[name]) for name in plain)


EVERY_PLACE = [[0, 1, 2]] * 3


@pytest.mark.parametrize("mini_batches", [1, 3])
@pytest.mark.parametrize("kl", [False, True])
@pytest.mark.parametrize(
    "change", [{"truncated": "mask"}, {"uninformative": "drop"}, {"uninformative": "refill"}], ids=str
)
def test_a_batch_that_is_left_out_whole_moves_nothing_and_is_counted(
    tiny_policy: Build, change: dict[str, Any], kl: bool, mini_batches: int
) -> None:
    policy = tiny_policy()
    reference = Reference(policy.model) if kl else None
    moved_away(policy)
    before = weights_of(policy)
    # No group of make_groups has a right answer.
    optimizer, metrics = step(
        policy,
        finish(make_groups(31, UNEVEN), EVERY_PLACE),
        ADVANTAGES,
        method=replace(PLAIN, kl_coefficient=0.3, **change),
        reference=reference,
        passes=2,
        mini_batches=mini_batches,
    )
    assert metrics["loss"] == 0.0
    assert metrics["skipped/empty"] == 2 * mini_batches
    assert "skipped/steps" not in metrics
    assert not any(math.isnan(value) for value in metrics.values())
    assert optimizer.gradients == []
    assert all(torch.equal(before[name], tensor) for name, tensor in policy.model.state_dict().items())


def test_a_mini_batch_that_is_masked_whole_is_left_out_and_the_others_move(tiny_policy: Build) -> None:
    groups = finish(make_groups(21, FIVE[:2]), [[0, 1], []])
    policy = tiny_policy()
    optimizer, metrics = step(
        policy, groups, FIVE_ADVANTAGES[:2], method=replace(PLAIN, truncated="mask"), mini_batches=2
    )
    assert metrics["skipped/empty"] == 1
    (gradient,) = optimizer.gradients
    expected, _ = step(tiny_policy(), groups[1:], FIVE_ADVANTAGES[1:2])
    assert_close(gradient, expected.gradients[0], 2e-6)


def with_scores(groups: Sequence[Group], right: Sequence[Sequence[bool]]) -> list[Group]:
    return [
        replace(group, scores=tuple(Score(total=float(correct), correct=correct) for correct in row))
        for group, row in zip(groups, right, strict=True)
    ]


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("kl", [False, True])
@pytest.mark.parametrize("uninformative", ["drop", "refill"])
def test_a_dropped_group_leaves_the_gradient_of_the_batch_without_it(
    tiny_policy: Build, aggregation: Any, kl: bool, uninformative: Any
) -> None:
    groups = with_scores(make_groups(41, UNEVEN), [[True, False, True], [True, True, True], [False, False, True]])
    method = replace(PLAIN, aggregation=aggregation, kl_coefficient=0.3 if kl else 0.0)
    gradients = []
    # The dropped group has advantages, so that keeping it would show; and it keeps its place in the rows.
    for batch, advantages, kind in (
        (groups, ADVANTAGES, uninformative),
        ([groups[0], groups[2]], ADVANTAGES[[0, 2]], "keep"),
        (groups, ADVANTAGES, "keep"),
    ):
        policy = tiny_policy()
        reference = Reference(policy.model) if kl else None
        moved_away(policy)
        optimizer, _ = step(
            policy, batch, advantages, method=replace(method, uninformative=kind), reference=reference, passes=2
        )
        gradients.append(optimizer.gradients)
    for ours, theirs in zip(gradients[0], gradients[1], strict=True):
        assert_close(ours, theirs, 1e-5)
    assert distance(gradients[0][0], gradients[2][0]) > 1e-2


def test_a_group_that_is_all_right_stays_in_the_denominators_when_kept(tiny_policy: Build) -> None:
    # Its advantages are 0: dropping it makes the mean over tokens larger by all tokens over the others'.
    groups = with_scores(make_groups(41, UNEVEN), [[True, False, True], [True, True, True], [False, False, True]])
    advantages = ADVANTAGES.clone()
    advantages[1] = 0.0
    kept, _ = step(tiny_policy(), groups, advantages)
    dropped, _ = step(tiny_policy(), groups, advantages, method=replace(PLAIN, uninformative="drop"))
    tokens = [sum(row) for row in UNEVEN]
    factor = sum(tokens) / (tokens[0] + tokens[2])
    assert_close(dropped.gradients[0], {name: factor * x for name, x in kept.gradients[0].items()}, 1e-5)


# Weights for the mismatch of sampler and trainer

MISMATCHES = [[1.0, 3.0, 0.25], [1.9, 0.45, 0.55]]
"""Probability of each token by the trainer over that by the sampler."""
WEIGHTS = {
    "none": [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]],
    "truncate": [[1.0, 2.0, 0.25], [1.9, 0.45, 0.55]],
    "mask": [[1.0, 0.0, 0.0], [1.9, 0.0, 0.55]],
}
"""By hand, at a bound of 2: tokens above 2 are held there, tokens outside [1/2, 2] are left out."""


def mismatched(model: PreTrainedModel, temperature: float) -> Group:
    (group,) = make_groups(51, [[3, 3]])
    completions = []
    for answer, factors in zip(group.completions, MISMATCHES, strict=True):
        with torch.no_grad():
            exact = naive_logprobs(model, group, answer, temperature).tolist()
        sampler = tuple(value - math.log(factor) for value, factor in zip(exact, factors, strict=True))
        completions.append(replace(answer, logprobs=sampler))
    return replace(group, completions=tuple(completions))


@pytest.mark.parametrize("correction", WEIGHTS)
@pytest.mark.parametrize("kl", [False, True])
def test_the_correction_weighs_each_token_by_the_mismatch_before_the_update(
    tiny_policy: Build, tiny: Any, correction: Any, kl: bool
) -> None:
    temperature, beta = 0.8, 0.3
    group = mismatched(tiny("llama"), temperature)
    # So wide that nothing is clipped: the objective is advantage * ratio * weight, and its sum over 6 tokens is a mean.
    method = replace(PLAIN, clip_low=1.0, clip_high=1e6, correction=correction, kl_coefficient=beta if kl else 0.0)
    policy = tiny_policy()
    reference = Reference(policy.model) if kl else None
    optimizer, metrics = step(
        policy,
        [group],
        torch.tensor([[1.0, -0.5]]),
        method=method,
        temperature=temperature,
        passes=2,
        reference=reference,
        mismatch_bound=2.0,
    )
    old = tiny("llama")
    for update, state in enumerate(optimizer.before):
        now = tiny("llama")
        now.load_state_dict(state)
        total = torch.zeros(())
        for advantage, answer, row in zip((1.0, -0.5), group.completions, WEIGHTS[correction], strict=True):
            with torch.no_grad():
                before = naive_logprobs(old, group, answer, temperature)
            logprobs = naive_logprobs(now, group, answer, temperature)
            total = total - (advantage * (logprobs - before).exp() * torch.tensor(row)).sum() / 6
            if kl:  # the divergence is not corrected; the reference is the policy before the first update
                total = total + beta * ((before - logprobs).exp() - (before - logprobs) - 1).sum() / 6
        total.backward()
        assert_close(optimizer.gradients[update], {n: p.grad for n, p in now.named_parameters()}, 1e-4)
    # Outside [1/2, 2]: 3, 0.25 and 0.45, whatever is done about them.
    assert metrics["mismatch/outside"] == pytest.approx(3 / 6)
    expected = [abs(math.log(factor)) for row in MISMATCHES for factor in row]
    assert metrics["mismatch/mean"] == pytest.approx(sum(expected) / 6, abs=1e-5)
    assert metrics["mismatch/max"] == pytest.approx(math.log(4), abs=1e-5)


@pytest.mark.parametrize(("bound", "outside"), [(1.5, 5), (2.5, 2), (3.5, 1), (5.0, 0)])
def test_the_bound_decides_what_counts_as_mismatched(tiny_policy: Build, tiny: Any, bound: float, outside: int) -> None:
    # Outside [1/1.5, 1.5] are all but 1; outside [1/2.5, 2.5] 3 and 0.25; outside [1/3.5, 3.5] 0.25; then none.
    group = mismatched(tiny("llama"), 1.0)
    _, metrics = step(tiny_policy(), [group], torch.tensor([[1.0, -0.5]]), mismatch_bound=bound)
    assert metrics["mismatch/outside"] == pytest.approx(outside / 6)


def test_a_sampler_that_agrees_is_not_corrected(tiny_policy: Build, tiny: Any) -> None:
    (group,) = make_groups(51, [[3, 3]])
    with torch.no_grad():
        rows = [naive_logprobs(tiny("llama"), group, answer, 1.0).tolist() for answer in group.completions]
    answers = tuple(replace(a, logprobs=tuple(row)) for a, row in zip(group.completions, rows, strict=True))
    group = replace(group, completions=answers)
    plain, _ = step(tiny_policy(), [group], torch.tensor([[1.0, -0.5]]))
    for correction in ("truncate", "mask"):
        method = replace(PLAIN, correction=correction)
        found, metrics = step(tiny_policy(), [group], torch.tensor([[1.0, -0.5]]), method=method)
        assert_close(found.gradients[0], plain.gradients[0], 1e-5)
        assert metrics["mismatch/outside"] == 0.0


# Advantages of single tokens


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("budget", [1, 25, EVERYTHING])
def test_advantages_that_are_the_same_at_every_token_of_an_answer_are_those_of_the_answer(
    tiny_policy: Build, aggregation: Any, budget: int
) -> None:
    groups, method = make_groups(3, UNEVEN), replace(PLAIN, aggregation=aggregation)
    found = []
    for advantages in (ADVANTAGES, by_token(groups, ADVANTAGES)):
        settings: dict[str, Any] = {"method": method, "micro_batch_tokens": budget, "passes": 2, "mini_batches": 2}
        optimizer, metrics = step(tiny_policy(), groups, advantages, **settings)
        found.append((optimizer.gradients, metrics))
    assert len(found[0][0]) == 4
    for ours, theirs in zip(*(gradients for gradients, _ in found), strict=True):
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert found[0][1] == found[1][1]


def test_each_token_is_followed_by_its_own_advantage(tiny_policy: Build, tiny: Any) -> None:
    (group,) = make_groups(61, [[3, 2]])
    advantages = [torch.tensor([1.0, 0.0, -2.0]), torch.tensor([0.5, -0.25])]
    optimizer, _ = step(tiny_policy(), [group], advantages, temperature=0.7)
    model = tiny("llama")
    total = torch.zeros(())
    for answer, row in zip(group.completions, advantages, strict=True):
        total = total - (naive_logprobs(model, group, answer, 0.7) * row).sum() / 5  # at a ratio of 1
    total.backward()
    assert_close(optimizer.gradients[0], {n: p.grad for n, p in model.named_parameters()}, 1e-4)


# Entropy, divergence, log-probs


def test_the_entropy_bonus_follows_the_mean_entropy_even_where_all_advantages_are_zero(
    tiny_policy: Build, tiny: Any
) -> None:
    groups = make_groups(71, [[3, 2], [4, 1]])
    advantages = torch.tensor([[1.0, -0.5], [0.0, 0.0]])
    method = replace(PLAIN, entropy_coefficient=0.2)
    optimizer, metrics = step(tiny_policy(), groups, advantages, method=method, temperature=0.7)
    model = tiny("llama")
    total, entropy = torch.zeros(()), torch.zeros(())
    for group, row in zip(groups, advantages.tolist(), strict=True):
        for advantage, answer in zip(row, group.completions, strict=True):
            ids = torch.tensor([[*group.prompt_ids, *answer.token_ids]])
            table = (model(input_ids=ids).logits[0] / 0.7).log_softmax(-1)
            places = torch.arange(len(answer.token_ids)) + len(group.prompt_ids) - 1
            chosen = table[places, list(answer.token_ids)]
            total = total - (advantage * (chosen - chosen.detach()).exp()).sum() / 10
            entropy = entropy - (table[places].exp() * table[places]).sum() / 10
    (total - 0.2 * entropy).backward()
    assert_close(optimizer.gradients[0], {n: p.grad for n, p in model.named_parameters()}, 1e-4)
    assert metrics["entropy/mean"] == pytest.approx(entropy.item(), rel=1e-4)
    assert metrics["loss"] == pytest.approx((total - 0.2 * entropy).item(), rel=1e-4)


def test_a_given_coefficient_takes_the_place_of_the_methods(tiny_policy: Build) -> None:
    groups, found = make_groups(8, UNEVEN), []
    for of_method, given in ((0.3, None), (0.05, 0.3), (0.3, 0.0), (0.0, None)):
        policy = tiny_policy()
        reference = Reference(policy.model)
        moved_away(policy)
        method = replace(PLAIN, kl_coefficient=of_method)
        optimizer, _ = step(policy, groups, ADVANTAGES, method=method, reference=reference, kl_coefficient=given)
        found.append(optimizer.gradients[0])
    assert distance(found[1], found[0]) == 0.0
    assert distance(found[2], found[3]) == 0.0
    assert distance(found[0], found[3]) > 1e-2


def test_a_divergence_that_is_charged_in_the_reward_is_not_in_the_loss(tiny_policy: Build) -> None:
    groups, method = make_groups(8, UNEVEN), replace(PLAIN, kl_coefficient=0.3, kl_in="reward", divergence="k1")
    policy = tiny_policy()
    reference = Reference(policy.model)
    with_reference, metrics = step(moved_away(policy), groups, ADVANTAGES, method=method, reference=reference)
    plain, _ = step(moved_away(tiny_policy()), groups, ADVANTAGES)
    assert distance(with_reference.gradients[0], plain.gradients[0]) == 0.0
    assert "kl/mean" not in metrics


@pytest.mark.parametrize("budget", [1, 25, EVERYTHING])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_the_logprobs_of_sequences_are_those_of_plain_forwards(
    tiny_policy: Build, tiny: Any, budget: int, temperature: float
) -> None:
    groups = make_groups(81, UNEVEN)
    found = sequence_logprobs(
        tiny_policy().model, packed_groups(groups), temperature=temperature, micro_batch_tokens=budget
    )
    answers = [(group, answer) for group in groups for answer in group.completions]
    assert len(found) == len(answers)
    for row, (group, answer) in zip(found, answers, strict=True):
        assert not row.requires_grad
        expected = naive_logprobs(tiny("llama"), group, answer, temperature)
        torch.testing.assert_close(row, expected.detach(), rtol=0, atol=2e-5)


def test_the_logprobs_of_a_reference_leave_the_policy_whole(tiny_policy: Build, tiny: Any) -> None:
    policy = tiny_policy()
    add_lora(policy.model, rank=2, alpha=None, seed=0)
    reference = Reference(policy.model)
    groups = make_groups(81, [[3, 2]])
    with torch.no_grad():
        for name, p in policy.model.named_parameters():
            if "lora_B" in name:
                p += 0.1
    before = weights_of(policy)
    with reference.policy() as frozen:
        found = sequence_logprobs(frozen, packed_groups(groups), temperature=1.0, micro_batch_tokens=EVERYTHING)
    for row, answer in zip(found, groups[0].completions, strict=True):
        expected = naive_logprobs(tiny("llama"), groups[0], answer, 1.0).detach()
        torch.testing.assert_close(row, expected, rtol=0, atol=2e-5)
    (moved, *_) = sequence_logprobs(policy.model, packed_groups(groups), temperature=1.0, micro_batch_tokens=EVERYTHING)
    assert float((moved - found[0]).abs().max()) > 1e-2
    assert all(torch.equal(before[name], tensor) for name, tensor in policy.model.state_dict().items())


@pytest.mark.parametrize(
    "change",
    [
        {"ratio": "sequence", "aggregation": "sequence"},
        {"surrogate": "geometric_mean", "aggregation": "sequence"},
        {"ratio": "sequence", "aggregation": "sequence", "truncated": "mask"},
    ],
    ids=str,
)
def test_ratios_of_whole_answers_do_not_depend_on_micro_batches(tiny_policy: Build, change: dict[str, Any]) -> None:
    groups = finish(make_groups(3, UNEVEN), [[1], [], [0]])
    found = []
    for budget in (1, 25, EVERYTHING):
        optimizer, metrics = step(
            tiny_policy(), groups, ADVANTAGES, method=replace(PLAIN, **change), micro_batch_tokens=budget, passes=2
        )
        found.append((optimizer.gradients, metrics))
    assert found[2][1]["ratio/max"] > 1.01
    for gradients, metrics in found[:2]:
        for ours, theirs in zip(gradients, found[2][0], strict=True):
            assert_close(ours, theirs, 1e-5)
        assert metrics == pytest.approx(found[2][1], rel=1e-3, abs=1e-5)


def test_the_ratio_of_a_whole_answer_is_the_geometric_mean_of_its_tokens(tiny_policy: Build, tiny: Any) -> None:
    (group,) = make_groups(91, [[4, 2]])
    method = Method(ratio="sequence", aggregation="sequence", clip_low=1.0, clip_high=1e6)
    optimizer, _ = step(tiny_policy(), [group], torch.tensor([[1.0, -1.0]]), method=method, passes=2)
    now, old = tiny("llama"), tiny("llama")
    now.load_state_dict(optimizer.before[1])
    total = torch.zeros(())
    for advantage, answer in zip((1.0, -1.0), group.completions, strict=True):
        with torch.no_grad():
            before = naive_logprobs(old, group, answer, 1.0)
        ratio = (naive_logprobs(now, group, answer, 1.0) - before).mean().exp()
        total = total - advantage * ratio / 2
    total.backward()
    assert_close(optimizer.gradients[1], {n: p.grad for n, p in now.named_parameters()}, 1e-4)


def test_the_first_pass_is_what_the_mismatch_is_measured_on(tiny_policy: Build) -> None:
    # With several mini-batches too: the policy has moved by the second, and the mismatch is that of before.
    metrics = [
        step(tiny_policy(), make_groups(21, FIVE), FIVE_ADVANTAGES, mini_batches=m, passes=passes, mismatch_bound=50.0)[
            1
        ]
        for m, passes in ((1, 1), (2, 1), (2, 2))
    ]
    for other in metrics[1:]:
        for key in ("mismatch/mean", "mismatch/max", "mismatch/outside"):
            assert other[key] == pytest.approx(metrics[0][key], abs=1e-5)
    assert 0 < metrics[0]["mismatch/outside"] < 1


def test_what_is_left_unset_is_one_pass_over_one_batch(tiny_policy: Build) -> None:
    policy = tiny_policy()
    optimizer = Recorder(policy.model)
    policy_step(
        policy,
        make_groups(3, UNEVEN),
        ADVANTAGES,
        optimizer,
        method=PLAIN,
        learning_rate=0.1,
        temperature=1.0,
        max_new_tokens=LONGEST,
        micro_batch_tokens=EVERYTHING,
    )
    assert len(optimizer.gradients) == 1
