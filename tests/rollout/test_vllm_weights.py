"""Pins what is sent to vLLM and how: the policy's weights under a checkpoint's names, in files that do not stay, and
the settings and seeds that go with a request."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from peerwise.errors import EngineError, ModelError
from peerwise.rollout.base import SamplingParams
from peerwise.rollout.vllm import launch
from peerwise.rollout.vllm.plugin import BACKEND, FilesInit
from peerwise.rollout.vllm.translate import seed_of, vllm_params
from peerwise.rollout.vllm.weights import Files, make_transfer, policy_weights
from tiny_models import tiny


def test_weights_are_those_of_a_checkpoint(tmp_path):
    model = tiny("llama")
    model.save_pretrained(tmp_path)
    expected = load_file(tmp_path / "model.safetensors")
    found = policy_weights(model)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_tied_output_layer_is_sent_once(tmp_path):
    model = tiny("gemma")
    assert "lm_head.weight" not in policy_weights(model)
    save_file(policy_weights(model), tmp_path / "weights.safetensors")  # which refuses tensors that share memory


class Reader:
    """Takes weights as vLLM would."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.seen: dict[str, torch.Tensor] = {}

    def init_weight_transfer_engine(self, init_info):
        self.folder = FilesInit(**init_info)
        self.calls.append("init")

    def start_weight_update(self):
        self.calls.append("start")

    def update_weights(self, update_info):
        self.seen = load_file(self.folder.path(update_info["name"]))
        self.calls.append("update")

    def finish_weight_update(self, weight_version=None):
        self.calls.append("finish")

    def world_size(self):
        return 1


def test_files_reach_every_receiver_and_do_not_stay(tmp_path):
    model, readers = tiny("llama"), [Reader(), Reader()]
    files = Files(str(tmp_path))
    with files.offer(model) as send:
        for reader in readers:
            send(reader)
    expected = policy_weights(model)
    for reader in readers:
        assert reader.calls == ["init", "start", "update", "finish"]
        assert all(torch.equal(reader.seen[name], expected[name]) for name in expected)
    assert list(files.folder.iterdir()) == []
    assert files.folder.stat().st_mode & 0o077 == 0
    files.close()
    assert list(tmp_path.iterdir()) == []


def test_a_receiver_that_fails_leaves_no_file(tmp_path):
    files = Files(str(tmp_path))
    with pytest.raises(ZeroDivisionError), files.offer(tiny("llama")):
        raise ZeroDivisionError
    assert list(files.folder.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_an_error_with_the_setting(tmp_path):
    with pytest.raises(EngineError, match=r"set vllm\.folder"):
        Files(str(tmp_path / "missing"))
    files = Files(str(tmp_path))
    files.folder.rmdir()
    with pytest.raises(EngineError, match="could not be written"), files.offer(tiny("llama")):
        pass


@pytest.mark.parametrize("name", ["../a", "/etc/passwd", "a/b", "", ".", ".."])
def test_a_name_that_leads_out_of_the_folder_is_refused(name):
    with pytest.raises(ValueError, match="not the plain name"):
        FilesInit("/dev/shm/x").path(name)
    assert FilesInit("/dev/shm/x").path("a.safetensors") == Path("/dev/shm/x/a.safetensors")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("name", ["nccl", "ipc"])
def test_transfers_between_gpus_are_refused_without_one(name):
    with pytest.raises(ModelError, match=r"between GPUs; here set it to 'files'"):
        make_transfer(tiny("llama"), name, None)


def test_every_field_of_a_request_is_given():
    params = SamplingParams(
        max_new_tokens=9, temperature=0.5, top_p=0.8, top_k=7, stop=("x",), min_new_tokens=2, logit_bias=((3, 1.5),)
    )
    found = vllm_params(params, {9, 4}, (1, 2, 3))
    expected = {"n": 3, "temperature": 0.5, "top_p": 0.8, "top_k": 7, "max_tokens": 9, "min_tokens": 2, "logprobs": 0}
    expected |= {"stop": ["x"], "detokenize": True, "stop_token_ids": [4, 9], "ignore_eos": True}
    assert {name: found[name] for name in expected} == expected
    assert found["logit_bias"] == {3: 1.5}
    assert vllm_params(SamplingParams(max_new_tokens=9, temperature=0.0, top_k=7), {9}, (1, 2))["n"] == 1


def test_seeds_are_those_of_the_keys_and_leave_room_above():
    assert seed_of((1, 2)) == seed_of((1, 2)) != seed_of((2, 1))
    assert all(0 <= seed_of((key,)) < 2**62 for key in range(200))


def test_a_server_is_started_with_what_training_needs():
    words = launch.command("M", python="py", port=8123, dtype="float32", max_model_len=64, more=("--enforce-eager",))
    assert words[:3] == ["py", "-m", "vllm.entrypoints.openai.api_server"]
    for pair in (
        ("--model", "M"),
        ("--port", "8123"),
        ("--dtype", "float32"),
        ("--max-model-len", "64"),
        ("--logprobs-mode", "processed_logprobs"),
        ("--weight-transfer-config", f'{{"backend": "{BACKEND}"}}'),
    ):
        assert words[words.index(pair[0]) + 1] == pair[1]
    assert "--enable-scale-out" in words and words[-1] == "--enforce-eager"


def test_a_server_that_ends_while_starting_shows_the_end_of_its_output(tmp_path):
    words = [sys.executable, "-c", "print('no such model'); raise SystemExit(3)"]
    with (
        pytest.raises(EngineError, match=r"ended while starting \(3\)[\s\S]*no such model"),
        launch.serving(words, "http://127.0.0.1:9", tmp_path / "log", patience=20),
    ):
        pass
