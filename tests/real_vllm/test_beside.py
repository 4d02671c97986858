"""Pins vLLM's own engine beside the trainer, where vLLM is installed: the same answers, the weights that were handed
over, and a run."""

from __future__ import annotations

import copy
import io
from pathlib import Path

import pytest
from agreement import CONTEXT, asked, assert_greedy_agrees, assert_sampling_agrees, learn, move

pytest.importorskip("vllm.sampling_params", reason="vLLM is not installed in this environment; run make test-vllm")

from peerwise.models.load import Policy
from peerwise.rollout.base import SamplingParams
from peerwise.rollout.vllm.inprocess import VllmBeside
from peerwise.rollout.vllm.weights import make_transfer


def beside(policy: Policy) -> VllmBeside:
    return VllmBeside(
        policy.model,
        source=policy.source,
        decode=policy.decode,
        end_ids=policy.end_ids,
        transfer=make_transfer(policy.model, "files", None),
        memory=0.15,
        needed=CONTEXT,
        max_branches=16,
    )


def test_answers_and_weights_are_those_of_the_policy(policy, files):
    other = Policy(copy.deepcopy(policy.model), policy.tokenizer, policy.end_ids, policy.source)
    move(other, 1)
    generator = beside(other)
    try:
        before = assert_greedy_agrees(other, generator)
        assert_sampling_agrees(other, generator)
        move(other, 2)
        generator.weights_moved(1)
        assert assert_greedy_agrees(other, generator) != before
        seen: list[tuple[int, int]] = []
        found = generator.generate(
            asked(other, 4), SamplingParams(max_new_tokens=6), lambda done, total: seen.append((done, total))
        )
        assert [len(answers) for answers in found] == [4, 4, 4]
        assert seen[-1] == (12, 12)
        assert generator.generate([], SamplingParams(max_new_tokens=6)) == []
    finally:
        generator.close()


def test_answers_are_those_of_the_policys_adapters(policy, adapted):
    generator = beside(adapted)
    try:
        # Fresh adapters change nothing, and what vLLM was tried out with is gone.
        fresh = assert_greedy_agrees(policy, generator)
        learn(adapted, 1)
        generator.weights_moved(1)
        before = assert_greedy_agrees(adapted, generator)
        assert_sampling_agrees(adapted, generator)
        learn(adapted, 2)
        generator.weights_moved(2)
        after = assert_greedy_agrees(adapted, generator)
        assert fresh != before != after
        assert len(list(generator.transfer.folder.iterdir())) == 1
    finally:
        generator.close()


def test_a_run_samples_with_it(files: Path):
    from test_real_servers import RECIPE

    from peerwise.metrics.console import Console
    from peerwise.metrics.write import read_rows
    from peerwise.recipe.load import loads
    from peerwise.train.stages import train

    words = ["--rollout.engine", "vllm", "--vllm.memory", "0.15", "--stage.grpo.steps", "2"]
    train(loads(RECIPE, words), files / "run", Console(file=io.StringIO()))
    rows = list(read_rows(files / "run" / "metrics.jsonl"))
    assert max(row["mismatch/max"] for row in rows) < 5e-3
    assert [row["policy_version"] for row in read_rows(files / "run" / "rollouts.jsonl")] == [0, 0, 1, 1]
