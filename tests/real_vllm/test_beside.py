"""Pins vLLM's own engine beside the trainer, where vLLM is installed: the same answers, the weights that were handed
over, and a run."""

from __future__ import annotations

import copy
import io
from pathlib import Path

import pytest
from agreement import CONTEXT, asked, assert_greedy_agrees, assert_sampling_agrees, move

pytest.importorskip("vllm.sampling_params", reason="vLLM is not installed in this environment; run make test-vllm")

from peerwise.models.load import Policy
from peerwise.rollout.base import SamplingParams
from peerwise.rollout.vllm.inprocess import VllmBeside
from peerwise.rollout.vllm.weights import Files


def test_answers_and_weights_are_those_of_the_policy(policy, files):
    other = Policy(copy.deepcopy(policy.model), policy.tokenizer, policy.end_ids, policy.source)
    move(other, 1)
    generator = VllmBeside(
        other.model,
        source=other.source,
        decode=other.decode,
        end_ids=other.end_ids,
        transfer=Files(),
        memory=0.15,
        needed=CONTEXT,
        max_branches=16,
    )
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
