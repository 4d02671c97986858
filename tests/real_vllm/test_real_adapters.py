"""Pins adapters at a real vLLM server: the native engine's greedy answers and the trainer's log-probs with the same
adapter, each push a new one that answers, and a run that pushes nothing else."""

from __future__ import annotations

import io
import os
import time

import pytest
from agreement import assert_greedy_agrees, assert_sampling_agrees, learn, tokens_a_second
from test_real_servers import RECIPE, asking

from conftest import RANK
from peerwise.errors import ModelError
from peerwise.metrics.console import Console
from peerwise.metrics.write import read_rows
from peerwise.models.lora import lora_layers
from peerwise.recipe.load import loads
from peerwise.rollout.vllm.server import Server
from peerwise.train.stages import train

pytestmark = pytest.mark.skipif(
    not os.environ.get("PEERWISE_VLLM_PYTHON"),
    reason="PEERWISE_VLLM_PYTHON names no Python of a vLLM environment; run make test-vllm",
)


@pytest.fixture(scope="module")
def url(start_server) -> str:
    """A server that takes adapters."""
    return start_server(lora_rank=RANK)[0]


def adapters(url: str) -> list[str]:
    server = Server(url)
    listed = server._call("GET", "/v1/models").json()["data"]
    server.close()
    return [model["id"] for model in listed if model["parent"] is not None]


def test_each_adapter_that_is_pushed_answers(policy, adapted, url, measured):
    generator = asking(adapted, [url])
    # Fresh adapters change nothing, and what the server was tried out with is gone.
    fresh = assert_greedy_agrees(policy, generator)
    learn(adapted, 1)
    generator.weights_moved(1)
    before = assert_greedy_agrees(adapted, generator)
    assert_sampling_agrees(adapted, generator)
    names = adapters(url)
    learn(adapted, 2)
    generator.weights_moved(2)
    after = assert_greedy_agrees(adapted, generator)
    assert_sampling_agrees(adapted, generator)
    assert fresh != before != after
    assert len(names) == len(adapters(url)) == 1 and names != adapters(url)

    begun = time.perf_counter()
    generator._push()
    seconds = time.perf_counter() - begun
    (folder,) = generator.transfer.folder.iterdir()
    size = sum(path.stat().st_size for path in folder.iterdir())
    measured(
        f"adapters of rank {RANK}, float32: {size / 1e6:.1f} MB and {seconds:.2f} s a push, "
        f"{tokens_a_second(adapted, generator):.0f} tokens/s"
    )
    generator.close()
    assert not generator.transfer.folder.exists()


def test_what_a_server_for_adapters_cannot_serve_is_refused(policy, adapted, url):
    with pytest.raises(ModelError, match="without --enable-lora"):
        asking(policy, [url])
    for layer in lora_layers(adapted.model):
        layer.r["default"] = RANK + 1
    with pytest.raises(ModelError, match=f"rank {RANK} at most and the run's have {RANK + 1}: --enable-lora"):
        asking(adapted, [url])


def test_a_run_of_adapters_samples_with_it(url, tmp_path):
    words = ["--vllm.urls", url, "--model.lora-rank", str(RANK), "--stage.grpo.optimizer.learning-rate", "1e-3"]
    train(loads(RECIPE, words), tmp_path / "run", Console(file=io.StringIO()))
    rows = list(read_rows(tmp_path / "run" / "metrics.jsonl"))
    assert max(row["mismatch/max"] for row in rows) < 5e-3
    versions = [row["policy_version"] for row in read_rows(tmp_path / "run" / "rollouts.jsonl")]
    assert versions == [0, 0, 1, 1, 2, 2]
    assert len(adapters(url)) == 1
