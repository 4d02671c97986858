"""Pins one training step: whatever the micro-batches, its gradient is that of the whole batch, against the policy that
sampled.
"""

from __future__ import annotations

import copy
import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from peerwise.algo.advantage import group_advantages
from peerwise.algo.presets import PRESETS, Method
from peerwise.models.load import Policy, load
from peerwise.models.lora import Reference, add_lora
from peerwise.records import Completion, Group, Problem, Score
from peerwise.rollout.base import Request, SamplingParams, sample_key
from peerwise.rollout.native.engine import NativeEngine
from peerwise.train.likelihood import imitation_step
from peerwise.train.masters import MasterWeights
from peerwise.train.optimizer import Optimizer
from peerwise.train.step import policy_step

Build = Callable[..., Policy]

EVERYTHING = 100_000
"""A budget no batch here reaches."""
LONGEST = 12
PLAIN = Method(scale="group", aggregation="token", clip_low=0.2, clip_high=0.2, kl_coefficient=0.0)


class Recorder(Optimizer):
    """Keeps the gradient that each step was given, and the model as it was before it."""

    def __init__(self, model: nn.Module, **settings: Any) -> None:
        # eps far above the gradients makes the first move nearly proportional to them, so that rounding in an
        # entry that is almost 0 does not become a full step.
        defaults: dict[str, Any] = {"betas": (0.9, 0.99), "eps": 1.0, "weight_decay": 0.0, "max_norm": 1e9}
        super().__init__(MasterWeights(model), **(defaults | settings))
        self.model, self.gradients, self.before = model, [], []

    def step(self, learning_rate: float) -> float:
        self.gradients.append({name: gradient.clone() for name, gradient in self.weights.gradients().items()})
        self.before.append(copy.deepcopy(self.model.state_dict()))
        return super().step(learning_rate)


def make_groups(seed: int, sizes: Sequence[Sequence[int]]) -> list[Group]:
    """One group for each row of answer lengths, with random ids and sampler log-probs."""
    rng = random.Random(seed)

    def ids(length: int) -> tuple[int, ...]:
        return tuple(rng.randrange(4, 97) for _ in range(length))

    return [
        Group(
            problem=Problem(id=f"p{number}", task="t", messages=(), answer=""),
            prompt_ids=ids(rng.randint(2, 7)),
            completions=tuple(
                Completion(token_ids=ids(n), logprobs=tuple(-rng.random() for _ in range(n)), finish="stop", text="")
                for n in lengths
            ),
            scores=tuple(Score(total=0.0, correct=False) for _ in lengths),
        )
        for number, lengths in enumerate(sizes)
    ]


UNEVEN = [[1, 9, 4], [12, 2, 3], [5, 5, 1]]
ADVANTAGES = torch.tensor([[1.3, -0.7, -0.6], [-1.0, 0.2, 0.8], [0.5, 0.5, -1.0]])


def step(
    policy: Policy, groups: Sequence[Group], advantages: Tensor, **settings: Any
) -> tuple[Recorder, dict[str, float]]:
    optimizer = Recorder(policy.model)
    defaults: dict[str, Any] = {
        "method": PLAIN,
        "learning_rate": 0.1,
        "temperature": 1.0,
        "max_new_tokens": LONGEST,
        "micro_batch_tokens": EVERYTHING,
    }
    metrics = policy_step(policy, groups, advantages, optimizer, **(defaults | settings))
    return optimizer, metrics.resolve()


def assert_close(actual: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    """Equal to `tolerance` of the largest entry: the same float32 terms are summed in another order."""
    assert actual.keys() == expected.keys()
    largest = max(float(x.detach().abs().max()) for x in expected.values())
    assert largest > 0
    for name, tensor in expected.items():
        difference = float((actual[name] - tensor).detach().abs().max())
        assert difference <= tolerance * largest, f"{name}: off by {difference}, largest is {largest}"


# The whole step against naive loops


def naive_logprobs(model: PreTrainedModel, group: Group, answer: Completion, temperature: float) -> Tensor:
    """[T] by the model's own forward on one unpadded row."""
    ids = torch.tensor([[*group.prompt_ids, *answer.token_ids]])
    table = (model(input_ids=ids).logits[0] / temperature).log_softmax(-1)
    first = len(group.prompt_ids)
    return torch.stack([table[first + t - 1, token] for t, token in enumerate(answer.token_ids)])


def naive_gradient(
    now: PreTrainedModel,
    old: PreTrainedModel,
    reference: PreTrainedModel,
    groups: Sequence[Group],
    advantages: Tensor,
    method: Method,
    temperature: float,
) -> tuple[dict[str, Tensor], float]:
    """Gradient and loss with every answer on its own, token by token, for aggregation "sequence"."""
    num_answers = sum(len(group.completions) for group in groups)
    total = torch.zeros(())
    for row, group in zip(advantages.tolist(), groups, strict=True):
        for advantage, answer in zip(row, group.completions, strict=True):
            with torch.no_grad():
                before = naive_logprobs(old, group, answer, temperature).tolist()
                anchor = naive_logprobs(reference, group, answer, temperature).tolist()
            for policy, sampled, frozen in zip(
                naive_logprobs(now, group, answer, temperature), before, anchor, strict=True
            ):
                ratio = (policy - sampled).exp()
                if advantage > 0:
                    surrogate = advantage * ratio.clamp(max=1 + method.clip_high)
                else:
                    surrogate = advantage * ratio.clamp(min=1 - method.clip_low)
                divergence = (frozen - policy).exp() - (frozen - policy) - 1
                cost = method.kl_coefficient * divergence - surrogate
                total = total + cost / len(answer.token_ids) / num_answers
    total.backward()
    return {name: p.grad for name, p in now.named_parameters() if p.grad is not None}, total.item()


def test_both_updates_follow_the_naive_loss_against_the_policy_that_sampled(tiny_policy: Build, tiny: Any) -> None:
    groups, temperature = make_groups(1, [[1, 6], [4, 3]]), 0.7
    advantages = torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
    method = Method(scale="group", aggregation="sequence", clip_low=0.05, clip_high=0.1, kl_coefficient=0.3)
    policy = tiny_policy()
    reference = Reference(policy.model)
    with torch.no_grad():  # the policy has moved on since the reference was taken
        for p in policy.model.parameters():
            p += 0.02 * torch.randn(p.shape, generator=torch.Generator().manual_seed(2))
    optimizer, metrics = step(
        policy,
        groups,
        advantages,
        method=method,
        temperature=temperature,
        micro_batch_tokens=13,
        passes=2,
        reference=reference,
    )
    states = [tiny("llama") for _ in optimizer.before]
    for model, state in zip(states, optimizer.before, strict=True):
        model.load_state_dict(state)
    losses = []
    for update in range(2):
        expected, loss = naive_gradient(
            copy.deepcopy(states[update]), states[0], tiny("llama"), groups, advantages, method, temperature
        )
        assert_close(optimizer.gradients[update], expected, 1e-4)
        losses.append(loss)
    assert metrics["loss"] == pytest.approx(sum(losses) / 2, rel=1e-4)
    # The second update must have something to clip, or it would not tell the two policies apart.
    assert metrics["ratio/clipped_low"] > 0
    assert metrics["ratio/clipped_high"] > 0


def test_the_learning_curve_is_that_of_plain_training(tiny_policy: Build, tiny: Any) -> None:
    """Sharing prompts, packing, chunks and micro-batches change no step: ten of them sample, earn and move alike."""
    method = Method(scale="group", aggregation="sequence", clip_low=0.2, clip_high=0.2, kl_coefficient=0.04)
    policy, plain = tiny_policy(), tiny("llama")
    ours = Optimizer(MasterWeights(policy.model), betas=(0.9, 0.99), eps=1e-4, weight_decay=0.0, max_norm=1.0)
    theirs = torch.optim.AdamW(plain.parameters(), lr=0.01, betas=(0.9, 0.99), eps=1e-4, weight_decay=0.0)
    reference, frozen = Reference(policy.model), copy.deepcopy(plain)
    curve = []
    for number in range(10):
        groups, same = (sampled_groups(model, number) for model in (policy.model, plain))
        drawn, again = ([c.token_ids for group in of for c in group.completions] for of in (groups, same))
        assert drawn == again
        rewards = [list(group.rewards) for group in groups]
        curve.append(statistics.mean(r for row in rewards for r in row))
        policy_step(
            policy,
            groups,
            group_advantages(torch.tensor(rewards), scale="group", baseline="group"),
            ours,
            method=method,
            learning_rate=0.01,
            temperature=1.0,
            max_new_tokens=6,
            micro_batch_tokens=29,
            reference=reference,
        )
        advantages = [[(r - statistics.mean(row)) / statistics.pstdev(row) for r in row] for row in rewards]
        theirs.zero_grad()
        naive_gradient(plain, copy.deepcopy(plain), frozen, same, torch.tensor(advantages), method, 1.0)
        nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        theirs.step()
    assert curve[-1] > curve[0] + 0.2, curve
    assert_close(dict(policy.model.named_parameters()), dict(plain.named_parameters()), 1e-3)


def sampled_groups(model: PreTrainedModel, step: int) -> list[Group]:
    """Eight answers of six tokens to each of two prompts; the share of even tokens is the reward."""
    engine = NativeEngine(model, decode=str, end_ids=frozenset({1}))
    prompts = [(5, 6, 7, 8), (9, 4)]
    keys = [tuple(sample_key(0, step, str(prompt), i) for i in range(8)) for prompt in prompts]
    requests = [Request(prompt_ids=prompt, keys=of) for prompt, of in zip(prompts, keys, strict=True)]
    return [
        Group(
            problem=Problem(id=str(prompt), task="t", messages=(), answer=""),
            prompt_ids=prompt,
            completions=answers,
            scores=tuple(
                Score(total=sum(t % 2 == 0 for t in a.token_ids) / len(a.token_ids), correct=False) for a in answers
            ),
        )
        for prompt, answers in zip(prompts, engine.generate(requests, SamplingParams(max_new_tokens=6)), strict=True)
    ]


@pytest.mark.parametrize("budget", [1, EVERYTHING])
def test_imitation_follows_the_mean_over_answer_tokens(tiny_policy: Build, tiny: Any, budget: int) -> None:
    examples = [((1, 30, 31), (40, 41, 42, 2)), ((1, 50), (2,)), ((1, 60, 61, 62), (70, 2))]
    model = tiny("llama")
    total = torch.zeros(())
    for prompt, answer in examples:
        table = model(input_ids=torch.tensor([[*prompt, *answer]])).logits[0].log_softmax(-1)
        for t, token in enumerate(answer):
            total = total - table[len(prompt) + t - 1, token] / 7  # 4 + 1 + 2 answer tokens
    total.backward()
    policy = tiny_policy()
    optimizer = Recorder(policy.model)
    metrics = imitation_step(policy, examples, optimizer, learning_rate=0.1, micro_batch_tokens=budget).resolve()
    expected = {name: p.grad for name, p in model.named_parameters()}
    assert_close(optimizer.gradients[0], expected, 1e-4)
    assert metrics["loss"] == pytest.approx(total.item(), rel=1e-5)


# Micro-batches leave the gradient as it is


@pytest.mark.parametrize("aggregation", ["token", "sequence", "fixed"])
def test_one_answer_at_a_time_and_all_at_once_move_the_weights_alike(tiny_policy: Build, aggregation: Any) -> None:
    groups, method = make_groups(3, UNEVEN), replace(PLAIN, aggregation=aggregation)
    found = []
    for budget in (1, 25, EVERYTHING):
        policy = tiny_policy()
        optimizer, metrics = step(policy, groups, ADVANTAGES, method=method, micro_batch_tokens=budget)
        found.append((optimizer.gradients[0], dict(policy.model.named_parameters()), metrics))
    for gradient, weights, metrics in found[:2]:
        assert_close(gradient, found[2][0], 2e-6)
        assert_close(weights, found[2][1], 1e-6)
        assert metrics == pytest.approx(found[2][2], rel=1e-4, abs=1e-5)


def test_the_loss_of_a_long_answer_does_not_depend_on_what_shares_its_micro_batch(tiny_policy: Build) -> None:
    # One token of loss 1, nine of loss 0: -A = 1 and 0 at ratio 1. Token mean 0.1 in every split.
    groups, advantages = make_groups(4, [[1, 9]]), torch.tensor([[-1.0, 0.0]])
    for budget in (1, EVERYTHING):
        _, metrics = step(tiny_policy(), groups, advantages, micro_batch_tokens=budget)
        assert metrics["loss"] == pytest.approx(0.1, abs=1e-6)


@pytest.mark.parametrize("aggregation", ["token", "sequence", "fixed"])
@pytest.mark.parametrize("budget", [1, EVERYTHING])
def test_leaving_out_groups_that_teach_nothing_keeps_the_gradient(
    tiny_policy: Build, aggregation: Any, budget: int
) -> None:
    groups, method = make_groups(5, UNEVEN), replace(PLAIN, aggregation=aggregation)
    advantages = ADVANTAGES.clone()
    advantages[1] = 0.0
    gradients, passes = [], []
    for keep in (False, True):
        policy = tiny_policy()
        tokens = 0

        def count(_: nn.Module, inputs: Any, options: dict[str, Any]) -> None:
            nonlocal tokens
            tokens += options["input_ids"].numel()

        # A reference keeps every group; with coefficient 0 it adds nothing to the gradient.
        reference = Reference(policy.model) if keep else None
        policy.model.base_model.register_forward_pre_hook(count, with_kwargs=True)
        optimizer, _ = step(policy, groups, advantages, method=method, micro_batch_tokens=budget, reference=reference)
        gradients.append(optimizer.gradients[0])
        passes.append(tokens)
    assert_close(gradients[0], gradients[1], 2e-6)
    assert passes[0] < passes[1]


def test_a_batch_that_teaches_nothing_runs_no_forward_and_has_gradient_zero(tiny_policy: Build) -> None:
    policy = tiny_policy()
    before = copy.deepcopy(policy.model.state_dict())
    _, metrics = step(policy, make_groups(5, UNEVEN), torch.zeros(3, 3))
    assert (metrics["loss"], metrics["grad_norm"]) == (0.0, 0.0)
    assert all(torch.equal(before[name], tensor) for name, tensor in policy.model.state_dict().items())


# The first update


def test_the_first_update_has_loss_zero_and_a_gradient(tiny_policy: Build) -> None:
    groups = make_groups(6, [[5, 5, 5, 5]])
    _, metrics = step(tiny_policy(), groups, torch.tensor([[1.0, -1.0, -1.0, 1.0]]))
    assert abs(metrics["loss"]) < 1e-6
    assert metrics["grad_norm"] > 1e-2


def test_the_first_update_clips_nothing_whatever_the_sampler_said(tiny_policy: Build) -> None:
    # The sampler's log-probs in make_groups are invented, far from the trainer's.
    _, metrics = step(tiny_policy(), make_groups(6, UNEVEN), ADVANTAGES)
    assert (metrics["ratio/max"], metrics["ratio/clipped_low"], metrics["ratio/clipped_high"]) == (1.0, 0.0, 0.0)
    assert metrics["mismatch/mean"] > 1.0


def test_the_mismatch_is_the_distance_from_the_samplers_logprobs(tiny_policy: Build) -> None:
    policy = tiny_policy()
    (group,) = make_groups(7, [[3, 2]])
    with torch.no_grad():
        exact = [naive_logprobs(policy.model, group, answer, 0.7).tolist() for answer in group.completions]
    exact[0] = [value + 0.25 for value in exact[0]]  # 3 tokens of 5 off by 0.25: mean 0.15
    completions = tuple(
        replace(answer, logprobs=tuple(row)) for answer, row in zip(group.completions, exact, strict=True)
    )
    _, metrics = step(policy, [replace(group, completions=completions)], torch.tensor([[1.0, -1.0]]), temperature=0.7)
    assert metrics["mismatch/mean"] == pytest.approx(0.15, abs=1e-5)
    assert metrics["mismatch/max"] == pytest.approx(0.25, abs=1e-5)


@pytest.mark.parametrize("lora", [False, True])
def test_the_divergence_is_zero_in_the_first_step_of_a_stage(tiny_policy: Build, lora: bool) -> None:
    policy = tiny_policy()
    if lora:
        add_lora(policy.model, rank=2, alpha=None, seed=0)
        with torch.no_grad():  # adapters that have learned in an earlier stage
            for p in policy.model.parameters():
                if p.requires_grad:
                    p += 0.1
    reference, method = Reference(policy.model), replace(PRESETS["grpo"], clip_low=0.2)
    _, metrics = step(policy, make_groups(8, UNEVEN), ADVANTAGES, method=method, reference=reference)
    assert metrics["kl/mean"] == 0.0
    _, metrics = step(policy, make_groups(8, UNEVEN), ADVANTAGES, method=method, reference=reference)
    assert metrics["kl/mean"] > 0.0


def test_without_a_reference_no_divergence_is_reported(tiny_policy: Build) -> None:
    assert "kl/mean" not in step(tiny_policy(), make_groups(8, UNEVEN), ADVANTAGES)[1]


def test_checkpointing_asked_for_when_loading_is_done_when_training(tiny_policy: Build, tmp_path: Path) -> None:
    source = tiny_policy()
    source.model.save_pretrained(tmp_path)
    source.tokenizer.save_pretrained(tmp_path)
    policy = load(str(tmp_path), dtype="float32", device="cpu", gradient_checkpointing=True)
    calls = 0

    def count(*ignored: object) -> None:
        nonlocal calls
        calls += 1

    policy.model.model.layers[0].mlp.register_forward_pre_hook(count)
    examples = [((1, 30), (40, 2))]
    imitation_step(policy, examples, Recorder(policy.model), learning_rate=0.1, micro_batch_tokens=EVERYTHING)
    assert calls == 2  # once forward, once again in the backward pass


def test_a_bfloat16_policy_moves_its_masters_and_is_their_rounding(tiny_policy: Build) -> None:
    policy = tiny_policy()
    policy.model.to(torch.bfloat16)
    before = {name: p.detach().float() for name, p in policy.model.named_parameters()}
    optimizer, metrics = step(policy, make_groups(9, UNEVEN), ADVANTAGES, micro_batch_tokens=25, learning_rate=1e-4)
    assert math.isfinite(metrics["grad_norm"])
    masters = optimizer.weights.values()
    assert any(not torch.equal(masters[name], value) for name, value in before.items())
    for name, p in policy.model.named_parameters():
        # Two roundings of a number halfway between are both nearest.
        halfway = masters[name].view(torch.int32) & 0xFFFF == 0x8000
        assert torch.equal(p[~halfway], masters[name].bfloat16()[~halfway])


def test_a_batch_that_is_not_finite_leaves_the_policy_as_it_was(tiny_policy: Build) -> None:
    policy = tiny_policy()
    before = copy.deepcopy(policy.model.state_dict())
    advantages = ADVANTAGES.clone()
    advantages[0, 0] = math.nan
    _, metrics = step(policy, make_groups(3, UNEVEN), advantages)
    assert math.isnan(metrics["grad_norm"])
    assert math.isnan(metrics["loss"])
    assert all(torch.equal(before[name], tensor) for name, tensor in policy.model.state_dict().items())


def test_a_saved_optimizer_names_every_parameter(tiny_policy: Build) -> None:
    optimizer, _ = step(tiny_policy(), make_groups(3, UNEVEN), ADVANTAGES)
    named = {key.rsplit("/", 1)[0] for key in optimizer.state()}
    assert named == {"step", *optimizer.weights.parameters}
