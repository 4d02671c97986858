"""Pins what a stage does between sampling and the update, and what its schedules change: further problems for groups
that teach nothing, the price of length, the divergence in the reward, an adaptive coefficient, sizes and temperatures;
and that all of it survives a kill.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from test_step import naive_logprobs
from tiny_runs import assert_same_run, go_on, killed_at, opened, rows, start
from torch import Tensor

import peerwise.train.grpo as grpo_module
from peerwise.algo.presets import PRESETS
from peerwise.metrics.write import ROW_FILES
from peerwise.records import Completion, Group, Problem, Score
from peerwise.rollout.native.engine import NativeEngine
from peerwise.train.checkpoint import checkpoints
from peerwise.train.grpo import Grpo
from peerwise.train.optimizer import Optimizer
from tiny_models import tiny_policy

BY_ANSWER = """
met = {}

def first_right(problem, completion):
    # One answer in three of a problem whose answer is even, the first, is right; no other problem ever is.
    place = met[problem.id] = met.get(problem.id, -1) + 1
    even = float(problem.answer) % 2 == 0
    return {"correct": float(even and place % 3 == 0)}

"""


@pytest.fixture(scope="module")
def rewards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rewards") / "by_answer.py"
    path.write_text(BY_ANSWER)
    return path


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[Group], Any]]:
    """The (groups, advantages) that each update is handed."""
    calls: list[tuple[list[Group], Any]] = []
    original = grpo_module.policy_step

    def spying(policy: Any, groups: Any, advantages: Any, *rest: Any, **settings: Any) -> Any:
        calls.append((list(groups), advantages))
        return original(policy, groups, advantages, *rest, **settings)

    monkeypatch.setattr(grpo_module, "policy_step", spying)
    return calls


# Further problems in place of those that teach nothing


def refilled(stream: Sequence[Problem], position: int, wanted: int, rounds: int) -> tuple[list[Problem], int, int]:
    """By hand: the problems of one step that starts at a position, how many of them are informative, the rounds."""
    taken: list[Problem] = []
    informative = asked = 0
    while asked < 1 + rounds and informative < wanted:
        part = stream[position + len(taken) :][: wanted - informative]
        taken += part
        informative += sum(float(problem.answer) % 2 == 0 for problem in part)
        asked += 1
    return taken, informative, asked


@pytest.mark.parametrize(("problems", "rounds"), [(4, 1), (4, 20), (3, 2)])
def test_further_problems_are_sampled_until_enough_groups_are_informative_or_the_rounds_are_used_up(
    files, rewards, tmp_path, monkeypatch, given, problems, rounds
):
    calls = 0
    generate = NativeEngine.generate

    def counted(self: NativeEngine, *args: Any) -> Any:
        nonlocal calls
        calls += 1
        return generate(self, *args)

    monkeypatch.setattr(NativeEngine, "generate", counted)
    words = ["--task.reward", f"{rewards}:first_right", "--rollout.problems", str(problems), "--rollout.group-size",
             "3", "--algorithm.uninformative", "refill", "--algorithm.refill-rounds", str(rounds)]  # fmt: skip
    stage = opened(files, tmp_path / "run", *words)
    stream = stage.session.problems.order(stage.session.stage_seed("grpo")).take(0, 200)
    position, ends = 0, set()
    for step in range(4):
        calls = 0
        expected, informative, asked = refilled(stream, position, problems, rounds)
        metrics = stage.step(step).resolve()
        position += len(expected)
        assert [group.problem.id for group in stage.groups] == [problem.id for problem in expected]
        assert sum(group.informative for group in stage.groups) == informative
        assert (stage.position, calls) == (position, asked)
        assert metrics["groups/informative"] == pytest.approx(informative / len(expected))
        assert [group.problem.id for group in given[step][0]] == [problem.id for problem in expected]
        ends.add((asked > 1, informative == problems))
    # More than one round must have been needed; with 20 rounds there is always enough, with 1 sometimes not.
    assert (True, rounds == 20) in ends
    assert rounds != 20 or {full for _, full in ends} == {True}


def test_a_batch_of_informative_groups_is_not_refilled_and_one_of_which_some_are_dropped_neither(files, tmp_path):
    words = ["--rollout.group-size", "2", "--rollout.problems", "8", "--algorithm.uninformative", "drop"]
    stage = opened(files, tmp_path / "drop", *words)
    stage.step(0)
    assert not all(group.informative for group in stage.groups)
    assert (len(stage.groups), stage.position) == (8, 8)
    # Of 16 answers that are right by the toss of a coin, some are right and some are wrong.
    words = ["--rollout.group-size", "16", "--algorithm.uninformative", "refill"]
    stage = opened(files, tmp_path / "refill", *words)
    stage.step(0)
    assert all(group.informative for group in stage.groups)
    assert (len(stage.groups), stage.position) == (2, 2)


def test_groups_that_were_replaced_leave_the_update_of_the_others_alone(files, rewards, tmp_path):
    # The weights after a step with refilling are those of a step on the informative groups alone.
    words = ["--task.reward", f"{rewards}:first_right", "--rollout.problems", "4", "--rollout.group-size", "3",
             "--algorithm.uninformative", "refill", "--algorithm.refill-rounds", "20"]  # fmt: skip
    stage = opened(files, tmp_path / "run", *words)
    stage.step(0)
    informative = [i for i, group in enumerate(stage.groups) if group.informative]
    assert 4 == len(informative) < len(stage.groups)
    other = opened(files, tmp_path / "other", *words)
    other.sampling.draw = lambda step: [stage.groups[i] for i in informative]
    other.step(0)
    start_weights = opened(files, tmp_path / "start", *words).session.policy.model
    moved = 0.0
    for ours, theirs, before in zip(
        stage.session.policy.model.parameters(),
        other.session.policy.model.parameters(),
        start_weights.parameters(),
        strict=True,
    ):
        moved = max(moved, float((ours - before).detach().abs().max()))
        # Adam's first move has the size of the rate whatever the gradient's: entries near 0 may differ by rounding.
        assert float((ours - theirs).detach().abs().mean()) < 1e-6
    assert moved > 1e-4


# The price of length


def answers_of(lengths: Sequence[int], longest: int) -> Group:
    return Group(
        problem=Problem(id="p", task="t", messages=(), answer=""),
        prompt_ids=(5,),
        completions=tuple(
            Completion(
                token_ids=(7,) * n, logprobs=(-1.0,) * n, finish="length" if n == longest else "stop", text=str(n)
            )
            for n in lengths
        ),
        scores=tuple(Score(total=0.5, correct=n % 2 == 0, parts={"correct": 0.5}, extracted=str(n)) for n in lengths),
    )


@pytest.mark.parametrize(
    ("words", "costs"),
    [
        # 0 up to 8 - 4 = 4 tokens, then a quarter more for each: 5, 6, 7, 8 cost 1/4, 2/4, 3/4, 1.
        ("--algorithm.truncated penalty --algorithm.overlong-buffer 4", [0.0, 0.0, -0.25, -0.5, -0.75, -1.0]),
        # A fifth of 8 is 1 token: only the limit itself costs.
        ("--algorithm.truncated penalty", [0.0, 0.0, 0.0, 0.0, 0.0, -1.0]),
        # What was cut off, and nothing else, loses its reward of 0.5.
        ("--algorithm.truncated zero", [0.0, 0.0, 0.0, 0.0, 0.0, -0.5]),
    ],
)
def test_the_price_of_length_is_a_part_of_the_reward_and_changes_nothing_else_of_the_score(
    files, tmp_path, words, costs
):
    stage = opened(files, tmp_path / "run", *words.split())
    group = answers_of([3, 4, 5, 6, 7, 8], 8)
    stage.sampling.draw = lambda step: [group, group]
    # Log-probs and rewards are made up, so only what the stage makes of the scores is looked at.
    stage.step(0)
    shaped = stage.groups[0]
    assert [score.parts["overlong"] for score in shaped.scores] == pytest.approx(costs)
    assert [score.total for score in shaped.scores] == pytest.approx([0.5 + cost for cost in costs])
    assert shaped.completions == group.completions
    for before, after in zip(group.scores, shaped.scores, strict=True):
        assert (after.correct, after.extracted, after.parts["correct"]) == (before.correct, before.extracted, 0.5)
    mean = sum(shaped.rewards) / 6
    deviation = math.sqrt(sum((reward - mean) ** 2 for reward in shaped.rewards) / 6)
    assert stage.advantages[0].tolist() == pytest.approx([(r - mean) / deviation for r in shaped.rewards], abs=1e-6)


@pytest.mark.parametrize("truncated", ["keep", "mask"])
def test_otherwise_scores_stay_as_the_reward_gave_them(files, tmp_path, truncated):
    stage = opened(files, tmp_path / "run", "--algorithm.truncated", truncated)
    group = answers_of([3, 4, 5, 6, 7, 8], 8)
    stage.sampling.draw = lambda step: [group, group]
    stage.step(0)
    assert stage.groups == [group, group]


STOPS = list("0123456789abcdefghij")
"""Any of these ends an answer of the tiny model, so that answers have all lengths up to the limit of 8."""


@pytest.mark.parametrize(
    "words", ["--algorithm.truncated penalty --algorithm.overlong-buffer 4", "--algorithm.truncated zero"]
)
def test_the_rows_of_a_run_show_the_price_of_each_answer(files, tmp_path, words):
    start(files, tmp_path / "run", "full", *words.split(), "--rollout.stop", *STOPS)
    seen = set()
    answers = [a for row in rows(tmp_path / "run", "rollouts.jsonl") for a in row["completions"]]
    for answer in answers:
        if "zero" in words:
            expected = -answer["parts"]["correct"] if answer["finish"] == "length" else 0.0
        else:
            expected = -max(0, answer["tokens"] - 4) / 4
        assert answer["parts"]["overlong"] == pytest.approx(expected)
        assert answer["reward"] == pytest.approx(answer["parts"]["correct"] + expected)
        seen.add((answer["finish"], answer["tokens"]))
    assert {("length", 8), ("stop", 5), ("stop", 2)} <= seen
    by_step = [row["reward/part/overlong"] for row in rows(tmp_path / "run", "metrics.jsonl") if row["stage"] == "grpo"]
    assert sum(by_step) / 4 == pytest.approx(sum(a["parts"]["overlong"] for a in answers) / len(answers))


def test_a_stage_whose_answers_are_all_masked_goes_on_and_moves_nothing(files, tmp_path):
    stage = opened(files, tmp_path / "run", "--algorithm.truncated", "mask", "--rollout.max-new-tokens", "3")
    draw = stage.sampling.draw

    def cut(step: int) -> list[Group]:
        return [
            replace(group, completions=tuple(replace(c, finish="length") for c in group.completions))
            for group in draw(step)
        ]

    stage.sampling.draw = cut
    before = [p.detach().clone() for p in stage.session.policy.model.parameters()]
    metrics = stage.step(0).resolve()
    assert (metrics["loss"], metrics["skipped/empty"], metrics["length/truncated"]) == (0.0, 1, 1.0)
    assert all(math.isfinite(value) for value in metrics.values())
    assert all(torch.equal(p, q) for p, q in zip(stage.session.policy.model.parameters(), before, strict=True))


def test_a_run_whose_answers_are_all_masked_comes_to_its_end(files, tmp_path):
    words = ["--algorithm.truncated", "mask", "--stage.grpo.rollout.max-new-tokens", "1"]
    start(files, tmp_path / "run", "full", *words)
    steps = [row for row in rows(tmp_path / "run", "metrics.jsonl") if row["stage"] == "grpo"]
    assert [row["global_step"] for row in steps] == [4, 5, 6, 7]
    masked = [row for row in steps if row["length/truncated"] == 1.0]
    assert masked
    assert all((row["skipped/empty"], row["loss"], "grad_norm" in row) == (1, 0.0, False) for row in masked)


# The divergence in the reward

BETA = 0.5


def summed_divergence(groups: Sequence[Group], temperature: float) -> list[list[Tensor]]:
    """For each answer the log-prob of each token by the sampler, minus that by the model the stage began with."""
    model = tiny_policy("llama").model
    with torch.no_grad():
        return [
            [torch.tensor(c.logprobs) - naive_logprobs(model, group, c, temperature) for c in group.completions]
            for group in groups
        ]


def leave_one_out(rewards: Sequence[float]) -> list[float]:
    others = len(rewards) - 1
    return [reward - (sum(rewards) - reward) / others for reward in rewards]


def test_a_divergence_in_the_reward_is_taken_off_before_answers_are_compared(files, tmp_path, given):
    words = ["--algorithm.preset", "rloo", "--algorithm.kl-coefficient", str(BETA), "--rollout.temperature", "0.8"]
    stage = opened(files, tmp_path / "run", *words)
    differences = []
    for step in range(3):
        metrics = stage.step(step).resolve()
        divergence = summed_divergence(stage.groups, 0.8)
        sums = [[float(d.sum()) for d in row] for row in divergence]
        plain = [leave_one_out(group.rewards) for group in stage.groups]
        expected = [
            leave_one_out([r - BETA * kl for r, kl in zip(group.rewards, row, strict=True)])
            for group, row in zip(stage.groups, sums, strict=True)
        ]
        torch.testing.assert_close(stage.advantages, torch.tensor(expected), rtol=0, atol=2e-4)
        assert torch.equal(given[step][1], stage.advantages)
        differences.append(float((stage.advantages - torch.tensor(plain)).abs().max()))
        tokens = sum(len(d) for row in divergence for d in row)
        assert metrics["kl/mean"] == pytest.approx(sum(map(sum, sums)) / tokens, abs=1e-5)
        # The rewards themselves are written as the reward gave them.
        assert all(reward in (0.0, 1.0) for group in stage.groups for reward in group.rewards)
    # At step 0 the reference is the policy; later they are apart.
    assert differences[0] < 1e-4
    assert differences[2] > 1e-2


@pytest.mark.parametrize("preset", ["rloo", "reinforce_pp"])
def test_at_the_first_step_a_divergence_in_the_reward_changes_nothing(files, tmp_path, given, preset):
    for coefficient in ("0.5", "0"):
        words = ["--algorithm.preset", preset, "--algorithm.kl-coefficient", coefficient]
        opened(files, tmp_path / coefficient, *words).step(0)
    (with_groups, with_kl), (groups, without) = given
    assert [group.completions for group in with_groups] == [group.completions for group in groups]
    if preset == "rloo":
        torch.testing.assert_close(with_kl, without, rtol=0, atol=1e-4)
        assert float(without.abs().max()) > 0
        return
    # By token the mean and deviation are over tokens, and every token has the reward of its answer.
    answers = [c for group in groups for c in group.completions]
    rewards = torch.tensor([reward for group in groups for reward in group.rewards])
    tokens = torch.cat([r.repeat(len(c.token_ids)) for r, c in zip(rewards, answers, strict=True)])
    expected = (tokens - tokens.mean()) / tokens.std(correction=0)
    torch.testing.assert_close(torch.cat(with_kl), expected, rtol=0, atol=1e-4)
    assert len(set(rewards.tolist())) == 2


def test_compared_with_the_batch_each_token_answers_for_the_divergence_from_its_place_on(files, tmp_path, given):
    words = ["--algorithm.preset", "reinforce_pp", "--algorithm.kl-coefficient", str(BETA), "--rollout.stop", *STOPS]
    stage = opened(files, tmp_path / "run", *words)
    for step in range(3):
        stage.step(step)
        returns = []
        for group, row in zip(stage.groups, summed_divergence(stage.groups, 1.0), strict=True):
            for reward, divergence in zip(group.rewards, row, strict=True):
                for t in range(len(divergence)):
                    returns.append(reward - BETA * sum(float(d) for d in divergence[t:]))
        mean = sum(returns) / len(returns)
        deviation = math.sqrt(sum((value - mean) ** 2 for value in returns) / len(returns))
        advantages = given[step][1]
        lengths = [len(c.token_ids) for group in stage.groups for c in group.completions]
        assert [len(row) for row in advantages] == lengths
        assert len(set(lengths)) > 1
        flat = torch.cat(advantages)
        torch.testing.assert_close(
            flat, torch.tensor([(value - mean) / deviation for value in returns]), rtol=0, atol=5e-4
        )
        assert float(flat.double().mean()) == pytest.approx(0.0, abs=1e-6)
        assert float(flat.double().std(correction=0)) == pytest.approx(1.0, abs=1e-6)
        # What is written for an answer is the mean over its tokens.
        assert stage.advantages.flatten().tolist() == pytest.approx([float(row.mean()) for row in advantages])


def test_without_a_divergence_the_batch_is_compared_answer_by_answer(files, tmp_path, given):
    words = ["--algorithm.preset", "reinforce_pp", "--algorithm.kl-coefficient", "0", "--rollout.stop", *STOPS]
    stage = opened(files, tmp_path / "run", *words)
    stage.step(0)
    rewards = torch.tensor([group.rewards for group in stage.groups])
    assert 0 < float(rewards.mean()) < 1
    expected = (rewards - rewards.mean()) / rewards.std(correction=0)
    torch.testing.assert_close(given[0][1], expected, rtol=0, atol=1e-6)
    assert stage.reference is None


# An adaptive coefficient


def coefficients(folder: Path) -> tuple[list[float], list[float]]:
    steps = [row for row in rows(folder, "metrics.jsonl") if row["stage"] == "grpo"]
    return [row["kl/coefficient"] for row in steps], [row["kl/mean"] for row in steps]


ADAPTIVE = "--stage.grpo.steps 6 --algorithm.kl-coefficient 0.1 --algorithm.kl-rate 0.2 --algorithm.kl-target"


@pytest.mark.parametrize("place", ["loss", "reward"])
def test_the_coefficient_moves_by_its_rate_towards_the_target(files, tmp_path, place):
    words = f"{ADAPTIVE} 0.002 --algorithm.kl-in {place} --algorithm.divergence {'k3' if place == 'loss' else 'k2'}"
    start(files, tmp_path / "run", "full", *words.split())
    found, measured = coefficients(tmp_path / "run")
    expected = [0.1]
    for kl in measured[:-1]:
        factor = 1.2 if kl > 0.003 else 0.8 if kl < 0.001 else 1.0
        expected.append(expected[-1] * factor)
    assert found == pytest.approx(expected)
    # The policy begins at the reference, far below the target, and ends far above it.
    assert found[1] == pytest.approx(0.08)
    assert found[-1] > found[-2]


def test_the_coefficient_stays_within_its_bounds(files, tmp_path):
    words = f"{ADAPTIVE} 1e-9 --algorithm.kl-low 0.09 --algorithm.kl-high 0.13"
    start(files, tmp_path / "run", "full", *words.split())
    found, _ = coefficients(tmp_path / "run")
    # Down to 0.08, held at 0.09; then up by a fifth: 0.108, 0.1296, 0.1555, held at 0.13.
    assert found == pytest.approx([0.1, 0.09, 0.108, 0.1296, 0.13, 0.13])


def test_without_a_target_the_coefficient_stays(files, tmp_path):
    start(files, tmp_path / "run", "full", "--algorithm.kl-coefficient", "0.1")
    assert coefficients(tmp_path / "run")[0] == [0.1] * 4


def test_the_update_is_computed_with_the_adapted_coefficient(files, tmp_path, monkeypatch):
    seen = []
    original = grpo_module.policy_step

    def spying(*args: Any, **settings: Any) -> Any:
        seen.append(settings["kl_coefficient"])
        return original(*args, **settings)

    monkeypatch.setattr(grpo_module, "policy_step", spying)
    start(files, tmp_path / "run", "full", *f"{ADAPTIVE} 0.002".split())
    assert seen == coefficients(tmp_path / "run")[0]
    assert len(set(seen)) > 2


# Schedules and passes


def test_groups_grow_at_the_steps_of_their_schedule(files, tmp_path):
    start(files, tmp_path / "run", "full", "--rollout.group-schedule", "1=5", "3=7")
    sizes = [(row["global_step"], len(row["completions"])) for row in rows(tmp_path / "run", "rollouts.jsonl")]
    # The stage begins with global step 4; after its step 1 groups have 5 answers, after its step 3 they have 7.
    assert sizes == [(4, 4), (4, 4), (5, 5), (5, 5), (6, 5), (6, 5), (7, 7), (7, 7)]


def test_the_temperature_reaches_its_end_on_a_line_in_sampler_and_trainer(files, tmp_path, monkeypatch):
    asked: list[float] = []
    generate = NativeEngine.generate

    def spying(self: NativeEngine, requests: Any, params: Any, *rest: Any) -> Any:
        asked.append(params.temperature)
        return generate(self, requests, params, *rest)

    monkeypatch.setattr(NativeEngine, "generate", spying)
    words = ["--stage.grpo.steps", "4", "--rollout.temperature", "1.3", "--rollout.final-temperature", "0.7"]
    start(files, tmp_path / "run", "full", *words)
    assert [t for t in asked if t > 0] == pytest.approx([1.3, 1.1, 0.9, 0.7])
    # The trainer's log-probs are those of the sampler only at the same temperature.
    steps = [row for row in rows(tmp_path / "run", "metrics.jsonl") if row["stage"] == "grpo"]
    assert all(row["mismatch/max"] < 1e-3 for row in steps)


def test_a_divergence_in_the_reward_is_taken_at_the_temperature_of_the_step(files, tmp_path):
    words = ["--algorithm.preset", "rloo", "--algorithm.kl-coefficient", "0.1", "--rollout.temperature", "1.4",
             "--rollout.final-temperature", "0.5", "--stage.grpo.optimizer.learning-rate", "1e-9"]  # fmt: skip
    stage = opened(files, tmp_path / "run", *words)
    for step in (0, 2, 3):
        assert abs(stage.step(step).resolve()["kl/mean"]) < 1e-4  # nothing has moved, whatever the temperature


def test_two_passes_of_two_mini_batches_are_four_optimizer_updates(files, tmp_path, monkeypatch):
    updates = 0
    original = Optimizer.step

    def counted(self: Optimizer, *args: Any) -> Any:
        nonlocal updates
        updates += 1
        return original(self, *args)

    monkeypatch.setattr(Optimizer, "step", counted)
    for passes, mini_batches in ((1, 1), (2, 1), (1, 2), (2, 2)):
        words = ["--algorithm.updates-per-batch", str(passes), "--algorithm.mini-batches", str(mini_batches)]
        stage = opened(files, tmp_path / f"{passes}-{mini_batches}", *words)
        updates = 0
        stage.step(0)
        assert updates == passes * mini_batches


# A kill


VARIANTS = {
    "refill": "--algorithm.uninformative refill --rollout.problems 3 --rollout.group-size 2",
    "adaptive": "--algorithm.kl-coefficient 0.1 --algorithm.kl-rate 0.3 --algorithm.kl-target 0.001",
    "adaptive in the reward": "--algorithm.preset rloo --algorithm.kl-coefficient 0.1 --algorithm.kl-target 0.001",
    "by token": "--algorithm.preset reinforce_pp --algorithm.kl-coefficient 0.1 --algorithm.mini-batches 2",
    "schedules": "--rollout.group-schedule 1=5 3=6 --rollout.final-temperature 0.5 --algorithm.updates-per-batch 2 "
    "--algorithm.mini-batches 2",
    "dapo with adapters": "--algorithm.preset dapo --model.lora-rank 2 --algorithm.overlong-buffer 4",
}


@pytest.fixture(scope="module")
def undisturbed(files, tmp_path_factory):
    made: dict[str, Path] = {}

    def run(variant: str) -> Path:
        if variant not in made:
            made[variant] = tmp_path_factory.mktemp("undisturbed") / "run"
            start(files, made[variant], "full", *VARIANTS[variant].split())
        return made[variant]

    return run


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("step", [1, 2, 4])
def test_a_stage_killed_after_any_step_and_resumed_equals_a_straight_one(
    files, undisturbed, tmp_path, monkeypatch, variant, step
):
    # The stage's steps 1 to 4 are global steps 4 to 7; its checkpoints lie after global steps 5 and 7.
    folder = tmp_path / "run"
    with killed_at(Grpo, "step", step, after=True, monkeypatch=monkeypatch):
        start(files, folder, "full", *VARIANTS[variant].split())
    assert len(rows(folder, ROW_FILES[0])) == 3 + step - 1
    go_on(folder)
    assert_same_run(folder, undisturbed(variant))


def test_the_runs_that_are_killed_do_what_they_are_named_for(undisturbed):
    # Otherwise the equalities above would hold for stages that never came to it.
    states = {path.name: state for path, state in checkpoints(undisturbed("refill"))}
    sampled = len(rows(undisturbed("refill"), "rollouts.jsonl"))
    assert states["step-7"].position == sampled > 4 * 3
    assert states["step-5"].position > 2 * 3
    for variant in ("adaptive", "adaptive in the reward"):
        found, _ = coefficients(undisturbed(variant))
        assert found[2] != found[0] == 0.1
        carried = {path.name: state.carried for path, state in checkpoints(undisturbed(variant))}
        assert carried["step-5"]["kl_coefficient"] == pytest.approx(found[2])
    assert {len(row["completions"]) for row in rows(undisturbed("schedules"), "rollouts.jsonl")} == {4, 5, 6}


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_runs_to_its_end_with_finite_numbers_and_moves_the_weights(files, tmp_path, preset):
    # The recipe sets the coefficient to 0, so each preset gets its own back.
    words = ["--algorithm.preset", preset, "--algorithm.kl-coefficient", str(PRESETS[preset].kl_coefficient)]
    stage = opened(files, tmp_path / "run", *words, "--rollout.stop", *STOPS)
    before = [p.detach().clone() for p in stage.session.policy.model.parameters()]
    for step in range(3):
        metrics = stage.step(step).resolve()
        assert all(math.isfinite(value) for value in metrics.values())
        assert metrics["grad_norm"] > 0
        # The first update follows the policy that sampled.
        assert metrics["ratio/max"] == pytest.approx(1.0, abs=1e-5)
    assert any(not torch.equal(p, q) for p, q in zip(stage.session.policy.model.parameters(), before, strict=True))
    assert ("kl/mean" in metrics) == (PRESETS[preset].kl_coefficient > 0)
