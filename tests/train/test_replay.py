"""Pins using groups again: what is kept and drawn, that the store survives JSON and a kill, and that the update takes
the ratio of an old group against the policy that sampled it.

Expectations of the update are a loss written out in float64, answer by answer, from plain forwards on single rows.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given as examples
from hypothesis import strategies as st
from test_step import EVERYTHING, assert_close, make_groups, naive_logprobs, step
from tiny_runs import assert_same_run, go_on, killed_at, opened, rows, start
from torch import Tensor
from transformers import PreTrainedModel

import peerwise.train.grpo as grpo_module
from peerwise.algo.presets import Method
from peerwise.metrics.value import Metrics
from peerwise.metrics.write import RunFiles
from peerwise.models.load import Policy
from peerwise.records import Completion, Group, Problem, Score
from peerwise.train.checkpoint import checkpoints
from peerwise.train.replay import Kept, Replay, measure

Build = Callable[..., Policy]


def answered(name: str, right: Sequence[bool], *, task: str = "t") -> Group:
    """A group whose numbers are no short decimals, so that a rounding on the way would show."""
    rng = random.Random(name)
    return Group(
        problem=Problem(id=name, task=task, messages=({"role": "user", "content": "?"},), answer="1"),
        prompt_ids=(1, 7, 9),
        completions=tuple(
            Completion(token_ids=(5 + i, 2), logprobs=(-rng.random() / 3, -1e-17), finish="stop", text="é\ud83d")
            if i % 2
            else Completion(token_ids=(6,), logprobs=(-rng.random(),), finish="length", text='"')
            for i in range(len(right))
        ),
        scores=tuple(
            Score(
                total=float(r) / 3, correct=r, parts={"correct": float(r), "steps": None}, extracted="1" if r else None
            )
            for r in right
        ),
    )


def mixed(name: str, size: int = 2) -> Group:
    return answered(name, [True] + [False] * (size - 1))


def by_id(groups: Sequence[Group]) -> dict[tuple[str, str], Problem]:
    return {(group.problem.task, group.problem.id): group.problem for group in groups}


# What is kept and drawn


def test_only_groups_with_right_and_wrong_answers_are_kept():
    replay = Replay(3, 2, seed=0)
    groups = [answered("a", [True, True]), mixed("b"), answered("c", [False, False]), mixed("d")]
    replay.keep(4, groups)
    assert replay.kept == [Kept(4, groups[1]), Kept(4, groups[3])]


def test_where_no_group_is_asked_for_none_is_kept():
    replay = Replay(0, 2, seed=0)
    replay.keep(0, [mixed("a")])
    assert (replay.kept, replay.draw(1, 2)) == ([], [])


@examples(
    sampled=st.lists(st.lists(st.integers(2, 4), max_size=4), min_size=1, max_size=6),
    groups=st.integers(1, 5),
    steps=st.integers(1, 4),
    seed=st.integers(0, 9),
    size=st.integers(2, 4),
)
def test_what_is_drawn_fits_is_young_enough_and_comes_once(sampled, groups, steps, seed, size):
    replay = Replay(groups, steps, seed=seed)
    everything = []
    for at, sizes in enumerate(sampled):
        replay.draw(at, size)
        made = [mixed(f"{at}/{i}", of) for i, of in enumerate(sizes)]
        replay.keep(at, made)
        everything += [Kept(at, group) for group in made]
    now = len(sampled)
    fitting = [kept for kept in everything if now - kept.step <= steps and len(kept.group.completions) == size]
    drawn = replay.draw(now, size)
    assert len(drawn) == min(groups, len(fitting))
    assert all(kept in fitting for kept in drawn)
    assert len({kept.group.problem.id for kept in drawn}) == len(drawn)


def test_a_group_is_used_up_to_its_last_step_and_then_forgotten():
    replay = Replay(1, 3, seed=0)
    replay.keep(5, [mixed("a")])
    assert [len(replay.draw(step, 2)) for step in (6, 7, 8)] == [1, 1, 1]
    assert (replay.draw(9, 2), replay.kept) == ([], [])


def test_a_group_of_another_size_stays_for_as_long_as_it_is_young():
    replay = Replay(2, 3, seed=0)
    replay.keep(0, [mixed("a", 2), mixed("b", 3)])
    assert [kept.group.problem.id for kept in replay.draw(1, 3)] == ["b"]
    assert [kept.group.problem.id for kept in replay.draw(2, 2)] == ["a"]


def drawn_by(seed: int, step: int, *, count: int = 20, groups: int = 5) -> tuple[str, ...]:
    replay = Replay(groups, 100, seed=seed)
    replay.keep(0, [mixed(str(i)) for i in range(count)])
    return tuple(kept.group.problem.id for kept in replay.draw(step, 2))


def test_seed_and_step_decide_what_is_drawn():
    assert drawn_by(3, 7) == drawn_by(3, 7)
    # Of 20 over 5, 15 504 choices, five are hardly ever the same by chance.
    assert len({frozenset(drawn_by(seed, 7)) for seed in range(5)}) == 5
    assert len({frozenset(drawn_by(3, step)) for step in range(1, 6)}) == 5


def test_every_kept_group_is_as_likely_as_any_other():
    # 2 of 5 in 500 draws: 200 each, with a deviation of sqrt(500 * 0.4 * 0.6) = 11.
    counts = Counter(name for seed in range(500) for name in drawn_by(seed, 1, count=5, groups=2))
    assert len(counts) == 5
    assert all(abs(count - 200) < 55 for count in counts.values()), counts


# The store as plain values


def test_what_is_kept_goes_through_json_and_comes_back_exactly():
    replay = Replay(2, 4, seed=8)
    groups = [mixed("a", 3), mixed("b"), mixed("c"), mixed("d")]
    replay.keep(1, groups[:2])
    replay.keep(2, groups[2:])
    other = Replay(2, 4, seed=8)
    other.load(json.loads(json.dumps(replay.state())), by_id(groups))
    # Equal to the last bit, and of the same types: records hold tuples where JSON has lists.
    assert other.kept == replay.kept
    assert all(kept.group.problem is group.problem for kept, group in zip(other.kept, groups, strict=True))
    assert [other.draw(step, 2) for step in (3, 4, 5)] == [replay.draw(step, 2) for step in (3, 4, 5)]
    assert other.state() == replay.state()


def test_a_group_whose_problem_is_no_longer_there_is_forgotten():
    replay = Replay(2, 4, seed=0)
    groups = [mixed("a"), mixed("b"), mixed("c")]
    replay.keep(1, groups)
    other = Replay(2, 4, seed=0)
    problems = by_id([groups[0], groups[2], answered("b", [True], task="another")])
    other.load(replay.state(), problems)
    assert [kept.group for kept in other.kept] == [groups[0], groups[2]]


def test_loading_replaces_what_was_kept():
    replay = Replay(2, 4, seed=0)
    replay.keep(1, [mixed("a")])
    replay.load([], {})
    assert replay.kept == []


def test_ages_are_steps_since_a_group_was_sampled():
    metrics = Metrics()
    measure(metrics, [Kept(3, mixed("a")), Kept(6, mixed("b")), Kept(6, mixed("c"))], 7)
    # 4, 1 and 1 steps old: 2 on average.
    assert metrics.resolve() == {"replay/groups": 3, "replay/age": 2.0, "replay/oldest": 4}
    nothing = Metrics()
    measure(nothing, [], 7)
    assert nothing.resolve() == {"replay/groups": 0}


# The update


FOUR = [[2, 7], [5, 1], [3, 3], [11, 4]]
STALE = 2
FOUR_ADVANTAGES = torch.tensor([[1.0, -0.5], [-0.7, 0.9], [0.4, -1.2], [-0.3, 0.8]])
NARROW = Method(scale="group", aggregation="sequence", clip_low=0.05, clip_high=0.1, kl_coefficient=0.0)
TEMPERATURE = 0.7


def shaken(model: PreTrainedModel, seed: int) -> PreTrainedModel:
    """Another policy, not far away."""
    with torch.no_grad():
        for p in model.parameters():
            p += 0.01 * torch.randn(p.shape, generator=torch.Generator().manual_seed(seed))
    return model


@pytest.fixture(scope="module")
def batch(tiny: Any) -> list[Group]:
    """Two fresh groups, whose sampler disagrees with the trainer, and two that another policy sampled."""
    rng = random.Random(4)

    def told(group: Group, model: PreTrainedModel, noise: float) -> Group:
        with torch.no_grad():
            found = [naive_logprobs(model, group, c, TEMPERATURE).tolist() for c in group.completions]
        noisy = [tuple(value + rng.uniform(-noise, noise) for value in row) for row in found]
        answers = tuple(replace(c, logprobs=row) for c, row in zip(group.completions, noisy, strict=True))
        return replace(group, completions=answers)

    groups, now, then = make_groups(21, FOUR), tiny("llama"), shaken(tiny("llama"), 9)
    return [told(group, now, 1.0) for group in groups[:-STALE]] + [told(group, then, 0.0) for group in groups[-STALE:]]


def exact_rows(model: PreTrainedModel, groups: Sequence[Group]) -> list[list[Tensor]]:
    return [[naive_logprobs(model, group, c, TEMPERATURE) for c in group.completions] for group in groups]


def plain_loss(
    now: Sequence[Tensor], old: Sequence[Tensor], group: Group, advantages: Sequence[float], method: Method
) -> Tensor:
    """The loss of one group, token by token, before any mean over the batch."""
    total = torch.zeros((), dtype=torch.float64)
    for logprobs, before, answer, advantage in zip(now, old, group.completions, advantages, strict=True):
        share = 1 / len(answer.token_ids) if method.aggregation == "sequence" else 1.0
        for t in range(len(answer.token_ids)):
            ratio = (logprobs[t] - before[t]).exp()
            held = ratio.clamp(1 - method.clip_low, 1 + method.clip_high)
            weight = 1.0
            if method.correction == "truncate":
                weight = min(2.0, math.exp(float(before[t]) - answer.logprobs[t]))
            total = total - share * weight * torch.minimum(ratio * advantage, held * advantage)
    return total


def by_group(
    state: dict[str, Tensor], old: list[list[Tensor]], groups: list[Group], method: Method, tiny: Any
) -> list[tuple[dict[str, Tensor], float]]:
    """Each group's own gradient and loss at one state of the weights, in float64."""
    found = []
    for place, group in enumerate(groups):
        model = tiny("llama")
        model.load_state_dict(state)
        model.double()
        (now,) = exact_rows(model, [group])
        loss = plain_loss(now, old[place], group, FOUR_ADVANTAGES[place].tolist(), method)
        loss.backward()
        found.append(({name: p.grad for name, p in model.named_parameters()}, loss.item()))
    return found


def denominators(state: dict[str, Tensor], groups: list[Group], stale: int, tiny: Any) -> list[list[Tensor]]:
    """What each answer is compared with: the first pass for fresh groups, the sampler's word for old ones."""
    model = tiny("llama")
    model.load_state_dict(state)
    with torch.no_grad():
        first = exact_rows(model.double(), groups)
    fresh = len(groups) - stale
    said = [[torch.tensor(c.logprobs, dtype=torch.float64) for c in group.completions] for group in groups]
    return first[:fresh] + said[fresh:]


def size_of(groups: Sequence[Group], method: Method) -> int:
    answers = [c for group in groups for c in group.completions]
    return len(answers) if method.aggregation == "sequence" else sum(len(c.token_ids) for c in answers)


def off_by(gradient: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    largest = max(float(x.abs().max()) for x in expected.values())
    return max(float((gradient[name] - x).abs().max()) for name, x in expected.items()) / largest


def together(alone: list[tuple[dict[str, Tensor], float]], members: Sequence[int], size: int) -> dict[str, Tensor]:
    return {name: sum(alone[i][0][name] for i in members) / size for name in alone[0][0]}


@pytest.mark.parametrize("budget", [1, 25, EVERYTHING])
@pytest.mark.parametrize(
    ("passes", "mini_batches", "change"),
    [
        (1, 1, {}),
        (2, 1, {"aggregation": "token"}),
        (2, 2, {}),
        (1, 1, {"correction": "truncate"}),
    ],
    ids=["once", "two passes", "two passes of two mini-batches", "corrected"],
)
def test_old_groups_are_compared_with_what_their_sampler_said_and_fresh_ones_with_the_first_pass(
    tiny_policy: Build, tiny: Any, batch: list[Group], budget: int, passes: int, mini_batches: int, change: Any
) -> None:
    method = replace(NARROW, **change)
    optimizer, metrics = step(
        tiny_policy(),
        batch,
        FOUR_ADVANTAGES,
        method=method,
        temperature=TEMPERATURE,
        learning_rate=0.5,
        micro_batch_tokens=budget,
        passes=passes,
        mini_batches=mini_batches,
        stale=STALE,
    )
    assert len(optimizer.gradients) == passes * mini_batches
    old = denominators(optimizer.before[0], batch, STALE, tiny)
    met, losses = [], []
    for gradient, state in zip(optimizer.gradients, optimizer.before, strict=True):
        alone = by_group(state, old, batch, method, tiny)
        choices = {
            members: together(alone, members, size_of([batch[i] for i in members], method))
            for members in itertools.combinations(range(4), 4 // mini_batches)
        }
        members = min(choices, key=lambda chosen: off_by(gradient, choices[chosen]))
        assert_close(gradient, {name: x.float() for name, x in choices[members].items()}, 1e-4)
        met.append(members)
        losses.append(sum(alone[i][1] for i in members) / size_of([batch[i] for i in members], method))
    for n in range(passes):
        assert sorted(i for members in met[n * mini_batches :][:mini_batches] for i in members) == [0, 1, 2, 3]
    assert metrics["loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-4, abs=1e-6)
    # Some tokens of the old groups must be held and others followed, or their ratio would say nothing.
    assert metrics["ratio/clipped_low"] + metrics["ratio/clipped_high"] > 0
    assert metrics["ratio/min"] < 1 - method.clip_low < 1 + method.clip_high < metrics["ratio/max"]


def test_taken_for_fresh_the_old_groups_would_give_another_gradient(
    tiny_policy: Build, tiny: Any, batch: list[Group]
) -> None:
    settings: dict[str, Any] = {"method": NARROW, "temperature": TEMPERATURE}
    right, _ = step(tiny_policy(), batch, FOUR_ADVANTAGES, stale=STALE, **settings)
    wrong, metrics = step(tiny_policy(), batch, FOUR_ADVANTAGES, **settings)
    assert off_by(wrong.gradients[0], right.gradients[0]) > 1e-2
    assert metrics["ratio/max"] == metrics["ratio/min"] == 1.0
    every, _ = step(tiny_policy(), batch, FOUR_ADVANTAGES, stale=len(batch), **settings)
    assert off_by(every.gradients[0], right.gradients[0]) > 1e-2


@pytest.mark.parametrize("budget", [1, 25, EVERYTHING])
@pytest.mark.parametrize("mini_batches", [1, 2])
def test_the_mismatch_is_that_of_fresh_groups_alone(
    tiny_policy: Build, batch: list[Group], budget: int, mini_batches: int
) -> None:
    # By hand: every fresh token is off by 0.25 but the first, which is off by 1, beyond ln 2; old ones by far more.
    with torch.no_grad():
        exact = [row.tolist() for rows in exact_rows(tiny_policy().model, batch[:2]) for row in rows]
    told = iter([[value + 0.25 for value in row] for row in exact])
    groups = [
        replace(group, completions=tuple(replace(c, logprobs=tuple(next(told))) for c in group.completions))
        for group in batch[:2]
    ]
    first = groups[0].completions[0]
    shifted = replace(first, logprobs=(exact[0][0] - 1.0, *first.logprobs[1:]))
    groups[0] = replace(groups[0], completions=(shifted, *groups[0].completions[1:]))
    far = [
        replace(group, completions=tuple(replace(c, logprobs=(-0.01,) * len(c.logprobs)) for c in group.completions))
        for group in batch[2:]
    ]
    settings: dict[str, Any] = {"method": NARROW, "temperature": TEMPERATURE, "micro_batch_tokens": budget}
    _, metrics = step(
        tiny_policy(),
        [*groups, *far],
        FOUR_ADVANTAGES,
        stale=2,
        mini_batches=mini_batches,
        learning_rate=0.0,
        **settings,
    )
    tokens = sum(map(sum, FOUR[:2]))  # 15
    assert metrics["mismatch/mean"] == pytest.approx((1.0 + 0.25 * (tokens - 1)) / tokens, abs=1e-5)
    assert metrics["mismatch/max"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["mismatch/outside"] == pytest.approx(1 / tokens)


def test_of_old_groups_alone_no_mismatch_is_reported(tiny_policy: Build, batch: list[Group]) -> None:
    _, metrics = step(tiny_policy(), batch, FOUR_ADVANTAGES, method=NARROW, temperature=TEMPERATURE, stale=4)
    assert not any(name.startswith("mismatch/") for name in metrics)


# The stage


@pytest.fixture
def handed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[Group], Any, int]]:
    """The (groups, advantages, stale) that each update is given."""
    calls: list[tuple[list[Group], Any, int]] = []
    original = grpo_module.policy_step

    def spying(policy: Any, groups: Any, advantages: Any, *rest: Any, **settings: Any) -> Any:
        calls.append((list(groups), advantages, settings["stale"]))
        return original(policy, groups, advantages, *rest, **settings)

    monkeypatch.setattr(grpo_module, "policy_step", spying)
    return calls


WORDS = ["--algorithm.replay-groups", "2", "--algorithm.replay-steps", "2"]


def test_groups_of_the_last_steps_join_the_update_and_nothing_else_of_the_step(files, tmp_path, handed):
    stage = opened(files, tmp_path / "run", *WORDS)
    informative: list[list[Group]] = []
    ages = set()
    for at in range(6):
        metrics = stage.step(at).resolve()
        groups, advantages, stale = handed[at]
        assert stage.groups == groups[: len(groups) - stale]
        assert (len(stage.groups), stage.advantages.shape) == (2, (2, 4))
        young = [(now, group) for now in range(max(0, at - 2), at) for group in informative[now]]
        assert stale == min(2, len(young))
        again = groups[len(groups) - stale :]
        found = [now for joined in again for now, group in young if group is joined]
        assert len(found) == len(again) == len({id(group) for group in again})
        assert metrics["replay/groups"] == stale
        if stale:
            assert metrics["replay/age"] == pytest.approx(sum(at - now for now in found) / stale)
            assert metrics["replay/oldest"] == at - min(found)
        ages |= {at - now for now in found}
        for group, row in zip(groups, advantages.tolist(), strict=True):
            mean = sum(group.rewards) / 4
            deviation = math.sqrt(sum((r - mean) ** 2 for r in group.rewards) / 4)
            assert row == pytest.approx([(r - mean) / deviation if deviation else 0.0 for r in group.rewards], abs=1e-6)
        # What is said of sampling is said of fresh groups.
        assert metrics["groups/informative"] == sum(group.informative for group in stage.groups) / 2
        informative.append([group for group in stage.groups if group.informative])
    assert ages == {1, 2}


def test_a_stage_without_replay_says_nothing_of_it_and_keeps_nothing(files, tmp_path, handed):
    stage = opened(files, tmp_path / "run")
    for at in range(2):
        assert not any(name.startswith("replay/") for name in stage.step(at).resolve())
    assert [stale for _, _, stale in handed] == [0, 0]
    assert stage.carried()["replay"] == []


def test_when_groups_grow_those_of_the_old_size_are_left_out(files, tmp_path, handed):
    stage = opened(files, tmp_path / "run", *WORDS, "--rollout.group-schedule", "2=5")
    for at in range(5):
        stage.step(at)
    assert [{len(group.completions) for group in groups} for groups, _, _ in handed] == [{4}, {4}, {5}, {5}, {5}]
    assert handed[1][2] > 0
    # At the first step of the new size there are only groups of the old one, however young.
    assert handed[2][2] == 0
    assert handed[4][2] > 0


def test_groups_used_again_are_judged_by_the_price_of_length_once(files, tmp_path, handed):
    words = ["--algorithm.truncated", "penalty", "--algorithm.overlong-buffer", "4", "--rollout.stop", *"0123456789ab"]
    stage = opened(files, tmp_path / "run", *WORDS, *words)
    for at in range(4):
        stage.step(at)
    again = [group for groups, _, stale in handed for group in groups[len(groups) - stale :]]
    assert again
    answers = [pair for group in again for pair in zip(group.completions, group.scores, strict=True)]
    assert any(score.parts["overlong"] for _, score in answers)
    for completion, score in answers:
        cost = -max(0, len(completion.token_ids) - 4) / 4
        assert score.total == pytest.approx(float(score.correct) + cost)


# A run


RUN = [*WORDS, "--stage.grpo.steps", "6"]
"""Checkpoints after steps 2, 3, 5, 7 and 9: within grpo after its steps 2 and 4."""


@pytest.fixture(scope="module")
def whole(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("replay") / "run"
    start(files, folder, "full", *RUN)
    return folder


@pytest.fixture(scope="module")
def plain(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run without replay."""
    folder = tmp_path_factory.mktemp("plain") / "run"
    start(files, folder, "full", "--stage.grpo.steps", "6")
    return folder


def test_the_rows_of_answers_are_of_fresh_groups_alone(whole, plain):
    steps = [row for row in rows(whole, "metrics.jsonl") if row["stage"] == "grpo"]
    assert [row["replay/groups"] for row in steps][2:] == [2, 2, 2, 2]
    assert steps[0]["replay/groups"] == 0

    def where(folder: Path) -> list[Any]:
        return [(row["global_step"], row["problem"]) for row in rows(folder, "rollouts.jsonl")]

    assert where(whole) == where(plain)


def test_the_store_is_in_the_checkpoint_as_the_recipe_bounds_it(whole):
    (state,) = [state for _, state in checkpoints(whole) if state.global_step == 5]
    kept = state.carried["replay"]
    assert kept
    assert {row["step"] for row in kept} <= {0, 1}
    for row in kept:
        assert len({score["correct"] for score in row["scores"]}) == 2


@pytest.mark.parametrize("call", [6, 8], ids=["after one checkpoint", "after two"])
def test_a_run_that_uses_groups_again_is_resumed_to_the_same_end(files, whole, tmp_path, monkeypatch, call):
    folder = tmp_path / "run"
    with killed_at(RunFiles, "metrics", call, after=True, monkeypatch=monkeypatch):
        start(files, folder, "full", *RUN)
    go_on(folder)
    assert_same_run(folder, whole)


def test_using_groups_again_changes_what_is_learned(whole, plain):
    with_replay, without = (
        [row["grad_norm"] for row in rows(run, "metrics.jsonl") if row["stage"] == "grpo"] for run in (whole, plain)
    )
    assert with_replay[0] == without[0]
    assert all(a != b for a, b in zip(with_replay[2:], without[2:], strict=True))
