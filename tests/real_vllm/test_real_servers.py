"""Pins our side of vLLM against real servers: the native engine's greedy answers and the trainer's log-probs, pushed
weights that really answer, shared load, and servers that are killed or hold something else."""

from __future__ import annotations

import copy
import io
import os
import signal
import time

import pytest
from agreement import SETTINGS, asked, assert_greedy_agrees, assert_sampling_agrees, move, tokens_a_second

from peerwise.errors import EngineError, ModelError
from peerwise.metrics.console import Console
from peerwise.metrics.write import read_rows
from peerwise.models.load import Policy
from peerwise.recipe.load import loads
from peerwise.rollout.base import SamplingParams
from peerwise.rollout.vllm.server import Server
from peerwise.rollout.vllm.servers import VllmServers
from peerwise.rollout.vllm.weights import make_transfer, policy_weights
from peerwise.train.checkpoint import checkpoints
from peerwise.train.stages import resume, train

pytestmark = pytest.mark.skipif(
    not os.environ.get("PEERWISE_VLLM_PYTHON"),
    reason="PEERWISE_VLLM_PYTHON names no Python of a vLLM environment; run make test-vllm",
)
RECIPE = """
[run]
samples_every = 0
checkpoint_every = 50
[model]
dtype = "float32"
[task]
name = "arithmetic"
template = "plain"
[task.params]
size = 40
max_ops = 2
[rollout]
engine = "vllm-server"
problems = 2
group_size = 4
max_new_tokens = 12
max_prompt_tokens = 128
[algorithm]
preset = "dr_grpo"
entropy_coefficient = 0.001
[evaluation]
problems = 4
every = 0
[stage.grpo]
method = "grpo"
steps = 3
optimizer.learning_rate = 1e-5
"""


def asking(policy: Policy, urls: list[str]) -> VllmServers:
    generator = VllmServers(
        policy.model,
        decode=policy.decode,
        end_ids=policy.end_ids,
        servers=[Server(url, timeout=120.0, waits=(0.2, 0.2)) for url in urls],
        transfer=make_transfer(policy.model, "files", None),
    )
    generator.connect(200)
    return generator


def moved_copy(policy: Policy, seed: int) -> Policy:
    other = Policy(copy.deepcopy(policy.model), policy.tokenizer, policy.end_ids, policy.source)
    move(other, seed)
    return other


def test_answers_are_those_of_the_native_engine_and_the_trainer(policy, pair):
    generator = asking(policy, [pair[0][0]])
    assert_greedy_agrees(policy, generator)
    assert_sampling_agrees(policy, generator)
    generator.close()


def test_pushed_weights_answer(policy, pair, measured):
    other = moved_copy(policy, 1)
    generator = asking(other, [pair[0][0]])
    before = assert_greedy_agrees(other, generator)
    move(other, 2)
    generator.weights_moved(1)
    after = assert_greedy_agrees(other, generator)
    assert_sampling_agrees(other, generator)
    assert after != before
    begun = time.perf_counter()
    generator._push()
    seconds, size = (
        time.perf_counter() - begun,
        sum(t.numel() * t.itemsize for t in policy_weights(other.model).values()),
    )
    measured(
        f"all weights, float32: {size / 1e6:.1f} MB and {seconds:.2f} s a push, "
        f"{tokens_a_second(other, generator):.0f} tokens/s"
    )
    generator.close()


def test_two_servers_share_the_load_and_both_have_the_weights(policy, pair):
    other = moved_copy(policy, 3)
    generator = asking(other, [url for url, _ in pair])
    asked_of = {server.url: 0 for server in generator.servers}
    for server in generator.servers:
        original = server.generate

        def counting(prompt, params, server=server, original=original):
            asked_of[server.url] += 1
            return original(prompt, params)

        server.generate = counting
    assert_greedy_agrees(other, generator)
    assert_sampling_agrees(other, generator)
    assert min(asked_of.values()) >= len(SETTINGS), asked_of
    generator.close()


def test_a_group_beyond_max_num_seqs_and_its_seeds(policy, pair):
    generator = asking(policy, [pair[0][0]])
    params = SamplingParams(max_new_tokens=6, temperature=1.0)
    found = generator.generate(asked(policy, 20), params)
    assert [len(answers) for answers in found] == [20, 20, 20]
    assert generator.generate(asked(policy, 20), params) == found
    generator.close()


def test_a_model_with_fewer_layers_is_refused_and_the_server_stays_usable(policy, pair):
    other = moved_copy(policy, 4)
    other.model.model.layers = other.model.model.layers[:-1]
    with pytest.raises(ModelError, match=r"weights of this model were not among those sent, such as model\.layers\.29"):
        asking(other, [pair[0][0]])
    generator = asking(policy, [pair[0][0]])
    assert_greedy_agrees(policy, generator)
    generator.close()


def test_a_killed_server_ends_in_one_error_and_the_run_goes_on_with_a_new_one(start_server, files, monkeypatch):
    url, process = start_server()
    moved = VllmServers.weights_moved

    def then_kill(self, version):
        moved(self, version)
        if version == 2:
            os.killpg(process.pid, signal.SIGKILL)

    folder = files / "run"
    with monkeypatch.context() as patch:
        patch.setattr(VllmServers, "weights_moved", then_kill)
        with pytest.raises(EngineError, match=f"no vLLM server answers at {url}"):
            train(loads(RECIPE, ["--vllm.urls", url]), folder, Console(file=io.StringIO()))
    assert [state.global_step for _, state in checkpoints(folder)] == [2]
    assert start_server(int(url.rsplit(":", 1)[1]))[0] == url
    resume(folder, Console(file=io.StringIO()))
    rows = list(read_rows(folder / "metrics.jsonl"))
    assert [row["global_step"] for row in rows] == [1, 2, 3]
    assert max(row["mismatch/max"] for row in rows) < 5e-3
    versions = [row["policy_version"] for row in read_rows(folder / "rollouts.jsonl")]
    assert versions == [0, 0, 1, 1, 2, 2]
