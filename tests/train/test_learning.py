"""Pins the whole of it: on a tiny random model, sampling, scoring and updating make the reward rise, within seconds.

The problem: the prompt ends in one of four letters, and the answer must begin with the letter that follows it in a
cycle. A random policy over about a hundred tokens is right once in a hundred draws; one that reads its prompt, always.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from peerwise.algo.advantage import group_advantages
from peerwise.algo.presets import PRESETS
from peerwise.metrics.value import Metrics
from peerwise.recipe.load import loads
from peerwise.records import Group, Problem, Score
from peerwise.rollout.base import Request, SamplingParams, sample_key
from peerwise.rollout.native.engine import NativeEngine
from peerwise.train.budget import TokenBudget
from peerwise.train.critic import Critic
from peerwise.train.masters import MasterWeights
from peerwise.train.optimizer import Optimizer
from peerwise.train.step import policy_step

PROMPTS = {(5, 6, token): 10 + (token - 9) % 4 for token in range(10, 14)}
"""Prompt -> the token that is right: 10 -> 11 -> 12 -> 13 -> 10."""
STEPS = 40


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_reward_rises_on_a_tiny_model(tiny_policy: Callable[[str], Any], preset: str) -> None:
    policy = tiny_policy("llama")
    method = PRESETS[preset]
    engine = NativeEngine(policy.model, decode=policy.decode, end_ids=policy.end_ids)
    weights = MasterWeights(policy.model)
    optimizer = Optimizer(weights, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.0, max_norm=1.0)
    # A critic compares in the place of a group, and learns beside the policy.
    recipe = loads("[stage.grpo]\nmethod = 'grpo'\nalgorithm.preset = 'ppo'\n")
    critic = Critic(policy, recipe.stage["grpo"], TokenBudget(4096)) if method.baseline == "critic" else None
    rewards = []
    for step in range(STEPS):
        requests = [
            Request(prompt_ids=prompt, keys=tuple(sample_key(0, step, str(prompt), i) for i in range(32)))
            for prompt in PROMPTS
        ]
        answers = engine.generate(requests, SamplingParams(max_new_tokens=2))
        groups = [
            Group(
                problem=Problem(id=str(prompt), task="toy", messages=(), answer=str(right)),
                prompt_ids=prompt,
                completions=completions,
                scores=tuple(_score(c.token_ids[0] == right) for c in completions),
            )
            for (prompt, right), completions in zip(PROMPTS.items(), answers, strict=True)
        ]
        rewards.append(sum(sum(group.rewards) for group in groups) / (len(PROMPTS) * 32))
        scored = torch.tensor([group.rewards for group in groups])
        advantages: Any
        if critic is None:
            advantages = group_advantages(scored, scale=method.scale, baseline=method.baseline)
        else:
            advantages = critic.compare(groups, scored.flatten(), None)
            critic.step(groups, Metrics(), passes=1, learning_rate=5e-3)
        policy_step(
            policy,
            groups,
            advantages,
            optimizer,
            method=method,
            learning_rate=5e-3,
            temperature=1.0,
            max_new_tokens=2,
            micro_batch_tokens=256,
        )
    # A quarter is what always answering one letter earns, so more than that has read the prompt.
    assert rewards[0] < 0.1
    assert sum(rewards[-5:]) / 5 > 0.7, rewards


def _score(right: bool) -> Score:
    return Score(total=float(right), correct=right)
