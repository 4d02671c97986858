"""Pins adapters at vLLM servers, against a stand-in on loopback: nothing but the adapter travels, in the form of peft
and under a name of its own; answers are the policy's; a server that cannot serve it is refused before training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from drawing import PROMPTS, as_text, asked, drawn, engine, sampled_logprobs, trainer_logprobs
from peft import PeftModel
from safetensors.torch import load_file
from transformers import PreTrainedModel

from fake_vllm import LOAD, UNLOAD, FakeVllm, served
from peerwise.errors import EngineError, ModelError
from peerwise.models.lora import add_lora
from peerwise.rollout.base import SamplingParams
from peerwise.rollout.vllm import launch, probe
from peerwise.rollout.vllm.server import Server
from peerwise.rollout.vllm.servers import VllmServers
from peerwise.rollout.vllm.weights import Adapters, Files, make_transfer
from tiny_models import END, tiny

GREEDY = SamplingParams(max_new_tokens=12, temperature=0.0)
IDS = torch.tensor([[1, 30, 31, 32, 40, 2]])


def adapted(rank: int = 3, alpha: float | None = 9.0) -> PreTrainedModel:
    model = tiny("llama")
    add_lora(model, rank=rank, alpha=alpha, seed=0)
    return model


def learn(model: PreTrainedModel, seed: int) -> None:
    """Move the adapters, as an update would."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.add_(0.1 * torch.randn_like(parameter))


class Setting:
    """Fake servers that take adapters, a policy that trains them, and the generator."""

    def __init__(self, stack: ExitStack, folder: Path, count: int = 1) -> None:
        self.fakes = [FakeVllm(tiny("llama"), as_text, lora_rank=8) for _ in range(count)]
        self.urls = [stack.enter_context(served(fake)) for fake in self.fakes]
        self.model, self.folder, self.stack = adapted(), folder, stack
        self.generator = self.asking(self.model)

    def asking(self, model: PreTrainedModel) -> VllmServers:
        generator = VllmServers(
            model,
            decode=as_text,
            end_ids=frozenset({END}),
            servers=[Server(url, timeout=20.0, waits=(0.01, 0.01)) for url in self.urls],
            transfer=make_transfer(model, "files", str(self.folder)),
        )
        self.stack.callback(generator.close)
        return generator


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Setting]:
    with ExitStack() as stack:
        yield Setting(stack, tmp_path)


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Setting]:
    with ExitStack() as stack:
        yield Setting(stack, tmp_path, 2)


class Reader:
    """Takes adapters as vLLM would."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Path]] = []

    def use_adapter(self, name: str, folder: Path) -> None:
        self.seen.append((name, folder))


# What is written


def test_peft_reads_the_models_own_adapters(tmp_path):
    model, reader = adapted(), Reader()
    learn(model, 1)
    with Adapters(model, str(tmp_path)).offer(model) as send:
        send(reader)
        found = PeftModel.from_pretrained(tiny("llama"), str(reader.seen[0][1]))
    with torch.no_grad():
        expected = model(IDS).logits
        assert torch.allclose(found(IDS).logits, expected, atol=1e-6)
        assert not torch.allclose(tiny("llama")(IDS).logits, expected, atol=1e-2)


def test_adapters_are_written_in_the_dtype_that_vllm_computes_in_and_nothing_beside_them(tmp_path):
    model = tiny("llama").bfloat16()
    add_lora(model, rank=2, alpha=None, seed=0)
    transfer = Adapters(model, str(tmp_path))
    with transfer.offer(model):
        (folder,) = transfer.folder.iterdir()
        weights = load_file(folder / "adapter_model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}
    assert all(".lora_" in name for name in weights)
    # Two of each linear layer's rank: two layers of seven.
    assert len(weights) == 2 * 2 * 7


def test_every_update_has_a_name_of_its_own_and_only_the_latest_stays(tmp_path):
    model, readers = adapted(), [Reader(), Reader()]
    transfer = Adapters(model, str(tmp_path))
    for _ in range(3):
        with transfer.offer(model) as send:
            for reader in readers:
                send(reader)
    assert readers[0].seen == readers[1].seen
    names = [name for name, _ in readers[0].seen]
    assert len(set(names)) == 3 and all(name.startswith("peerwise-") for name in names)
    assert [path.name for path in transfer.folder.iterdir()] == names[-1:]
    assert transfer.folder.stat().st_mode & 0o077 == 0
    transfer.close()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_room_is_an_error_with_the_setting(tmp_path):
    model = adapted()
    transfer = Adapters(model, str(tmp_path))
    transfer.folder.rmdir()
    transfer.folder.write_text("in the way")
    with pytest.raises(EngineError, match=r"could not be written.*set vllm\.folder"), transfer.offer(model):
        pass
    transfer.folder.unlink()


def test_what_is_trained_is_what_is_pushed(tmp_path):
    assert isinstance(make_transfer(tiny("llama"), "files", str(tmp_path)), Files)
    assert isinstance(make_transfer(adapted(), "files", str(tmp_path)), Adapters)


# How servers are started


@pytest.mark.parametrize(("rank", "room"), [(1, 1), (2, 8), (8, 8), (9, 16), (64, 64), (300, 320), (512, 512)])
def test_a_server_has_room_for_the_rank_in_the_sizes_that_vllm_knows(rank, room):
    words = launch.command("M", lora_rank=rank)
    assert words[words.index("--max-lora-rank") + 1] == str(room)
    assert "--enable-lora" in words and "--weight-transfer-config" not in words
    assert "--enable-lora" not in launch.command("M")
    assert launch.ENVIRONMENT["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"


def test_a_rank_beyond_vllms_is_refused(tmp_path):
    with pytest.raises(ModelError, match=r"rank 512 at most, got 513; set model\.lora_rank"):
        Adapters(adapted(rank=513), str(tmp_path))
    assert list(tmp_path.iterdir()) == []


# Answers


def test_only_adapters_go_and_answers_are_the_native_engines(one):
    learn(one.model, 1)
    one.generator.connect(64)
    requests = asked(PROMPTS, 3)
    found, expected = one.generator.generate(requests, GREEDY), engine(one.model).generate(requests, GREEDY)
    assert [[a.token_ids for a in row] for row in found] == [[a.token_ids for a in row] for row in expected]
    assert sampled_logprobs(found) == pytest.approx(sampled_logprobs(expected), abs=1e-5)
    assert drawn(engine(tiny("llama")), requests, GREEDY) != [[a.token_ids for a in row] for row in found]
    sampled = one.generator.generate(requests, SamplingParams(max_new_tokens=10, temperature=1.3))
    assert sampled_logprobs(sampled) == pytest.approx(trainer_logprobs(one.model, requests, sampled, 1.3), abs=1e-4)
    assert one.fakes[0].calls["/update_weights"] == one.fakes[0].calls["/init_weight_transfer_engine"] == 0


def test_moved_adapters_are_pushed_once_and_those_before_are_let_go_of(two):
    two.generator.connect(64)
    learn(two.model, 1)
    two.generator.weights_moved(6)
    before = drawn(two.generator, asked(PROMPTS, 1), GREEDY)
    names = [set(fake.adapters) for fake in two.fakes]
    learn(two.model, 2)
    two.generator.weights_moved(7)
    after = drawn(two.generator, asked(PROMPTS, 1), GREEDY)
    drawn(two.generator, asked(PROMPTS, 1), GREEDY)
    assert after == drawn(engine(two.model), asked(PROMPTS, 1), GREEDY) != before
    for fake, old in zip(two.fakes, names, strict=True):
        assert len(old) == len(fake.adapters) == 1 and old.isdisjoint(fake.adapters)
        # The one that tried the server out, and one for each change.
        assert (fake.calls[LOAD], fake.calls[UNLOAD]) == (3, 2)
        assert fake.label == two.generator.label and fake.label.endswith(":7")
        assert not fake.paused


def test_trying_a_server_out_leaves_the_policy_as_it_was(one):
    learn(one.model, 1)
    kept = {name: tensor.clone() for name, tensor in one.model.state_dict().items()}
    one.generator.connect(64)
    assert all(torch.equal(tensor, kept[name]) for name, tensor in one.model.state_dict().items())


def test_the_probe_speaks_through_every_adapter_and_not_without_one():
    model = adapted()
    weights = dict(model.named_parameters())
    with probe.telling_adapters(model):
        for name in (name for name in weights if "lora_B" in name):
            base = weights[name.replace("lora_B.default", "base_layer")]
            a = weights[name.replace("lora_B", "lora_A")]
            # alpha / rank = 3. Noise of few numbers is not of its expected size exactly.
            assert float((3 * weights[name] @ a).detach().norm() / base.norm()) == pytest.approx(probe.TOLD, rel=0.5)
    plain = tiny("llama")
    with probe.telling_adapters(plain), torch.no_grad():
        assert torch.equal(plain(IDS).logits, tiny("llama")(IDS).logits)


def test_adapters_of_a_trainer_that_was_killed_are_let_go_of_and_those_of_others_stay(one):
    fake = one.fakes[0]
    fake.adapters |= {"peerwise-killed-4": fake.model, "of-somebody-else": fake.model}
    one.generator.connect(64)
    assert "of-somebody-else" in fake.adapters and "peerwise-killed-4" not in fake.adapters
    assert len(fake.adapters) == 2


def test_a_server_that_lost_the_adapter_is_an_error_with_what_to_do(one):
    one.generator.connect(64)
    drawn(one.generator, asked(PROMPTS[:1], 1), GREEDY)
    one.fakes[0].adapters.clear()
    with pytest.raises(EngineError, match=r"no longer has the policy's adapter.*peerwise train --resume RUN"):
        one.generator.generate(asked(PROMPTS[:1], 1), GREEDY)


# What does not fit


def test_a_server_that_does_not_use_the_adapter_is_found_out_even_where_it_is_fresh(one):
    one.fakes[0].deaf = True
    with pytest.raises(ModelError, match=r"does not answer as the model that is trained.*--lora-target-modules"):
        one.generator.connect(64)


def test_a_server_without_adapters_is_refused_with_how_to_start_it(one):
    fake = one.fakes[0]
    fake.lora_rank, fake.backend = None, "peerwise_files"
    fake.routes = [route for route in fake.routes if "lora" not in route]
    with pytest.raises(ModelError) as caught:
        one.generator.connect(64)
    assert "trains those alone (model.lora_rank = 3): --enable-lora --max-lora-rank 8" in str(caught.value)
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 in its environment" in str(caught.value)
    assert not fake.calls["/pause"]


def test_a_server_with_too_little_room_is_refused_with_the_flag(one):
    generator = one.asking(adapted(rank=12))
    with pytest.raises(ModelError, match="rank 8 at most and the run's have 12: --enable-lora --max-lora-rank 16"):
        generator.connect(64)


def test_a_run_of_all_weights_is_refused_by_a_server_for_adapters(one):
    with pytest.raises(ModelError, match=r"trains all weights \(model\.lora_rank = 0\): without --enable-lora"):
        one.asking(tiny("llama")).connect(64)


def test_what_vllm_says_against_an_adapter_is_handed_on_before_training(one):
    fake = one.fakes[0]
    fake.before[LOAD] = lambda: setattr(fake, "lora_rank", 2)  # as where another rank is counted inside vLLM
    with pytest.raises(ModelError, match=r"LoRA rank 3 is greater than .*Does the server hold the model"):
        one.generator.connect(64)
