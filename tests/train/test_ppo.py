"""Pins PPO with a value network: values and their gradient, a stage's whole step, learning, checkpoint and resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import assert_same_run, go_on, killed_at, rows, start

from peerwise.errors import CheckpointError
from peerwise.metrics.value import Metrics
from peerwise.metrics.write import RunFiles
from peerwise.models.forward import PackedGroup
from peerwise.models.value import ValueNetwork
from peerwise.recipe.load import loads
from peerwise.records import Completion, Group, Problem, Score
from peerwise.train.budget import TokenBudget
from peerwise.train.critic import Critic

PPO = [
    "--algorithm.preset", "ppo", "--stage.grpo.critic.learning-rate", "1e-2", "--algorithm.updates-per-batch", "2",
    "--algorithm.kl-coefficient", "0.1",
]  # fmt: skip
GROUPS = [
    PackedGroup(prompt=(1, 7, 8), completions=((9, 10, 2), (11,))),
    PackedGroup(prompt=(5,), completions=((20, 21),)),
]


def test_values_are_the_heads_view_of_the_state_before_each_token(tiny_policy: Any) -> None:
    model = tiny_policy("llama").model
    network = ValueNetwork(model, share_trunk=True)
    torch.nn.init.normal_(network.head.weight, generator=torch.Generator().manual_seed(0))
    torch.nn.init.constant_(network.head.bias, 0.5)
    expected = []
    for group in GROUPS:
        for completion in group.completions:
            ids = torch.tensor([[*group.prompt, *completion]])
            hidden = model.model(input_ids=ids).last_hidden_state[0]
            states = hidden[len(group.prompt) - 1 : len(group.prompt) + len(completion) - 1]
            expected += (states @ network.head.weight[0] + 0.5).tolist()
    assert network(GROUPS).tolist() == pytest.approx(expected, abs=1e-5)


def test_a_new_network_expects_nothing_and_its_own_trunk_is_not_the_policys(tiny_policy: Any) -> None:
    model = tiny_policy("llama").model
    own, shared = ValueNetwork(model, share_trunk=False), ValueNetwork(model, share_trunk=True)
    assert own(GROUPS).tolist() == [0.0] * 6
    assert len(list(shared.parameters())) == 2
    assert {p.data_ptr() for p in own.parameters()}.isdisjoint(p.data_ptr() for p in model.parameters())
    torch.nn.init.ones_(shared.head.weight)
    shared(GROUPS).sum().backward()
    assert all(p.grad is None for p in model.parameters())
    torch.nn.init.ones_(own.head.weight)
    own(GROUPS).sum().backward()
    assert own.own is not None
    assert any(p.grad is not None and bool(p.grad.any()) for p in own.own.parameters())


def made_groups() -> list[Group]:
    answers = [((10, 2), 1.0), ((11, 12, 2), 0.0)]
    return [
        Group(
            problem=Problem(id=str(prompt), task="toy", messages=(), answer=""),
            prompt_ids=prompt,
            completions=tuple(
                Completion(token_ids=ids, logprobs=(-1.0,) * len(ids), finish="stop", text="") for ids, _ in answers
            ),
            scores=tuple(Score(total=r, correct=r > 0) for _, r in answers),
        )
        for prompt in ((1, 7), (1, 8))
    ]


@pytest.mark.parametrize("trunk", ["own", "shared"])
def test_the_critic_learns_the_mean_return(tiny_policy: Any, trunk: str) -> None:
    recipe = loads(f"[stage.grpo]\nmethod = 'grpo'\nalgorithm.preset = 'ppo'\ncritic.trunk = '{trunk}'\n")
    critic = Critic(tiny_policy("llama"), recipe.stage["grpo"], TokenBudget(4096))
    groups = made_groups()
    rewards = torch.tensor([1.0, 0.0, 1.0, 0.0])
    explained = []
    for _ in range(60):
        critic.compare(groups, rewards, None)
        metrics = Metrics()
        critic.step(groups, metrics, passes=1, learning_rate=1e-2)
        explained.append(metrics.resolve()["value/explained"])
    # The state before the first token is the same for both answers of a group, so their returns of 1 and 0 cannot be
    # told apart there: of 5 tokens with returns 1, 1, 0, 0, 0 (variance 0.24) two miss by 0.5 (0.1 on average).
    assert explained[0] == pytest.approx(0.0, abs=0.05)
    assert explained[-1] == pytest.approx(1 - 0.1 / 0.24, abs=0.02)


def test_with_a_new_critic_the_advantages_are_the_whitened_discounted_rewards(tiny_policy: Any) -> None:
    # All values are 0, so A_t = 0.95^(T - 1 - t) * r: 0.95, 1 | 0, 0, 0 and the same again; less costs of 0.1 a token.
    recipe = loads("[stage.grpo]\nmethod = 'grpo'\nalgorithm.preset = 'ppo'\n")
    critic = Critic(tiny_policy("llama"), recipe.stage["grpo"], TokenBudget(4096))
    raw = [0.95, 1.0, 0.0, 0.0, 0.0] * 2
    mean = sum(raw) / 10
    deviation = (sum((a - mean) ** 2 for a in raw) / 10) ** 0.5
    found = critic.compare(made_groups(), torch.tensor([1.0, 0.0, 1.0, 0.0]), None)
    assert torch.cat(found).tolist() == pytest.approx([(a - mean) / deviation for a in raw], abs=1e-6)
    costs = [torch.full((n,), 0.1) for n in (2, 3, 2, 3)]
    critic.compare(made_groups(), torch.tensor([1.0, 0.0, 1.0, 0.0]), costs)
    # Returns of the first answer: -0.1 + 0.95 * (1 - 0.1) and 1 - 0.1.
    assert critic.returns[0].tolist() == pytest.approx([0.755, 0.9])


@pytest.mark.parametrize("at", [(RunFiles, "metrics", 5), (RunFiles, "group", 5)])
def test_a_killed_run_goes_on_with_the_same_critic(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: tuple[Any, str, int]
) -> None:
    start(files, tmp_path / "straight", "full", *PPO)
    with killed_at(*at, after=False, monkeypatch=monkeypatch):
        start(files, tmp_path / "killed", "full", *PPO)
    go_on(tmp_path / "killed")
    assert_same_run(tmp_path / "killed", tmp_path / "straight")
    steps = [row for row in rows(tmp_path / "straight", "metrics.jsonl") if row["stage"] == "grpo"]
    assert all({"value/loss", "value/explained", "kl/mean", "kl/coefficient"} <= row.keys() for row in steps)
    assert steps[0]["value/mean"] == 0.0
    assert steps[-1]["value/mean"] != 0.0


@pytest.mark.parametrize(("trunk", "preset"), [("shared", "ppo"), ("own", "grpo")])
def test_a_checkpoint_of_another_method_is_refused(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trunk: str, preset: str
) -> None:
    with killed_at(RunFiles, "metrics", 6, after=False, monkeypatch=monkeypatch):
        start(files, tmp_path / "run", "full", *PPO)
    recipe = tmp_path / "run" / "recipe.toml"
    text = (
        recipe.read_text()
        .replace('preset = "ppo"', f'preset = "{preset}"')
        .replace('trunk = "own"', f'trunk = "{trunk}"')
    )
    if preset != "ppo":
        text = text.replace("[stage.grpo.critic]\nlearning_rate = 0.01\n", "")
    recipe.write_text(text)
    with pytest.raises(CheckpointError, match="of another method"):
        go_on(tmp_path / "run")
