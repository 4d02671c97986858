"""Pins a run whose answers come from vLLM servers (a stand-in on loopback): which weights drew what, and that a server
that dies costs nothing but the step it died in."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from tiny_runs import go_on, rows, start

from fake_vllm import GENERATE, LOAD, FakeVllm, Refused, served
from peerwise.errors import EngineError, ModelError
from peerwise.metrics.console import Console
from peerwise.recipe.load import loads
from peerwise.train.checkpoint import checkpoints
from peerwise.train.stages import train
from tiny_models import tiny, tiny_tokenizer

ENGINE = ["--rollout.engine", "vllm-server", "--run.checkpoint-every", "100", "--evaluation.every", "0"]


def fake(lora_rank: int | None = None) -> FakeVllm:
    tokenizer = tiny_tokenizer()
    return FakeVllm(tiny("llama"), lambda ids: tokenizer.decode(list(ids), skip_special_tokens=True), lora_rank)


def test_every_sample_says_which_weights_drew_it_and_only_sampling_costs_a_push(files, tmp_path):
    server = fake()
    with served(server) as url:
        start(files, tmp_path / "run", "full", *ENGINE, "--vllm.urls", url)
    # Three steps of sft come first; the fourth step samples with the weights they made.
    found = [(row["global_step"], row["policy_version"]) for row in rows(tmp_path / "run", "rollouts.jsonl")]
    assert found == [(step, step - 1) for step in (4, 5, 6, 7) for _ in range(2)]
    # At the start, for the evaluation after sft, before each of four steps, and for the evaluation at the end.
    assert server.calls["/update_weights"] == 7
    assert server.label.endswith(":7")
    assert mismatch(tmp_path / "run") < 1e-4


def mismatch(folder: Path) -> float:
    return max(row["mismatch/mean"] for row in rows(folder, "metrics.jsonl") if row["stage"] == "grpo")


def test_what_is_pushed_in_bfloat16_is_what_the_trainer_computes_with(files, tmp_path):
    server = fake()
    server.model = server.model.bfloat16()
    server.info["dtype"] = "torch.bfloat16"
    with served(server) as url:
        start(files, tmp_path / "run", "bfloat16", *ENGINE, "--vllm.urls", url)
    assert mismatch(tmp_path / "run") < 0.05


def test_a_run_of_adapters_pushes_nothing_else_and_leaves_no_folder(files, tmp_path):
    server, folder = fake(lora_rank=8), tmp_path / "shared"
    folder.mkdir()
    with served(server) as url:
        start(files, tmp_path / "run", "lora", *ENGINE, "--vllm.urls", url, "--vllm.folder", str(folder))
    # The seven of a run of all weights and the one that only tries the server out.
    assert server.calls[LOAD] == 8
    assert len(server.adapters) == 1
    assert server.calls["/update_weights"] == 0
    assert list(folder.iterdir()) == []
    found = [(row["global_step"], row["policy_version"]) for row in rows(tmp_path / "run", "rollouts.jsonl")]
    assert found == [(step, step - 1) for step in (4, 5, 6, 7) for _ in range(2)]
    assert mismatch(tmp_path / "run") < 1e-4


def test_a_restarted_server_ends_a_run_of_adapters_and_its_resumption_gives_it_the_right_one(files, tmp_path):
    server, folder = fake(lora_rank=8), tmp_path / "run"

    def restart() -> None:
        if server.calls[LOAD] == 5:  # that of the second step of grpo
            server.adapters.clear()
            server.label = "default"

    server.before[GENERATE] = restart
    with served(server) as url:
        with pytest.raises(EngineError, match=r"no longer has the policy's adapter.*--resume"):
            start(files, folder, "lora", *ENGINE, "--vllm.urls", url)
        server.before.clear()
        go_on(folder)
    assert [row["global_step"] for row in rows(folder, "metrics.jsonl")] == [1, 2, 3, 4, 5, 6, 7]
    assert mismatch(folder) < 1e-4


def test_a_server_that_dies_leaves_a_run_that_goes_on_from_the_last_complete_step(files, tmp_path, monkeypatch):
    monkeypatch.setattr("peerwise.rollout.vllm.server.time.sleep", lambda seconds: None)
    server, folder = fake(), tmp_path / "run"

    def die() -> None:
        if server.calls["/update_weights"] == 4:  # those of the second step of grpo
            raise ConnectionError

    server.before[GENERATE] = die
    with served(server) as url:
        with pytest.raises(EngineError, match=f"no vLLM server answers at {url}"):
            start(files, folder, "full", *ENGINE, "--vllm.urls", url)
        assert [state.global_step for _, state in checkpoints(folder)] == [3, 4]
    port = int(url.rsplit(":", 1)[1])
    with served(fake(), port):
        go_on(folder)
    assert [row["global_step"] for row in rows(folder, "metrics.jsonl")] == [1, 2, 3, 4, 5, 6, 7]
    found = [(row["global_step"], row["policy_version"]) for row in rows(folder, "rollouts.jsonl")]
    assert found == [(step, step - 1) for step in (4, 5, 6, 7) for _ in range(2)]


def test_a_server_that_dies_in_an_evaluation_costs_no_step(files, tmp_path, monkeypatch):
    monkeypatch.setattr("peerwise.rollout.vllm.server.time.sleep", lambda seconds: None)
    server, folder = fake(), tmp_path / "run"

    def die() -> None:
        if server.calls["/update_weights"] == 6:  # those of the evaluation after the second step of grpo
            raise ConnectionError

    server.before[GENERATE] = die
    with served(server) as url, pytest.raises(EngineError):
        start(files, folder, "full", *ENGINE[:-1], "2", "--vllm.urls", url)
    assert [state.global_step for _, state in checkpoints(folder)] == [3, 5]
    with served(fake(), int(url.rsplit(":", 1)[1])):
        go_on(folder)
    assert [row["global_step"] for row in rows(folder, "metrics.jsonl")] == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"info": {"max_model_len": 32}}, ModelError, "--max-model-len"),
        ({"version": "0.9.2"}, ModelError, "expected 0.32 or later"),
        ({"get_version": None}, EngineError, "refused /version"),
    ],
)
def test_a_server_that_does_not_fit_is_said_before_anything_is_written(files, tmp_path, change, error, message):
    server = fake()
    for name, value in change.items():
        if name == "info":
            server.info |= value
        elif name == "version":
            server.version = value
        else:
            server.get_version = lambda: (_ for _ in ()).throw(Refused(500, "out of order"))
    with served(server) as url:
        recipe = loads((files / "recipe.toml").read_text(), [*ENGINE, "--vllm.urls", url])
        with pytest.raises(error, match=message):
            train(recipe, tmp_path / "run", Console(file=io.StringIO()))
    assert not Path(tmp_path / "run").exists()
