"""Pins a base in 4 bits: what it computes, that adapters beside it learn while its bytes stay, that sampling does not
spoil the gradient, which faster paths leave it alone, and what is refused.
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, PreTrainedModel

from peerwise.algo.divergence import k3
from peerwise.errors import ModelError, RequestError
from peerwise.models.forward import PackedGroup, completion_logprobs, packed_forward
from peerwise.models.lean import LeanDecoder, sampling_decoder
from peerwise.models.load import Policy, load
from peerwise.models.lora import Reference, add_lora, lora_layers, merged_state
from peerwise.models.packed import packable, packed_linears
from peerwise.models.quantized import full_weight, require_trainable
from peerwise.models.value import ValueNetwork
from peerwise.rollout.base import Request, SamplingParams
from peerwise.rollout.native.engine import NativeEngine
from tiny_models import END, tiny, tiny_tokenizer, tiny_wide

pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")

GROUPS = [PackedGroup(prompt=(1, 30, 31), completions=((40, 41, 2), (42, 2)))]
LEVELS = [
    -1.0, -0.6961928, -0.5250731, -0.3949175, -0.2844414, -0.1847734, -0.0910500, 0.0,
    0.0795803, 0.1609302, 0.2461123, 0.3379152, 0.4407098, 0.5626170, 0.7229568, 1.0,
]  # fmt: skip
"""NF4, appendix E of https://arxiv.org/abs/2305.14314."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the tiny model."""
    folder = tmp_path_factory.mktemp("tiny")
    write(tiny_wide(), folder)
    return folder


def write(model: PreTrainedModel, folder: Path) -> None:
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)


def loaded(folder: Path, dtype: str = "float32", **options: bool) -> Policy:
    return load(str(folder), dtype=dtype, device="cpu", quantization="nf4", **options)


def with_lora(folder: Path, dtype: str = "float32", **options: bool) -> PreTrainedModel:
    model = loaded(folder, dtype, **options).model
    add_lora(model, rank=4, alpha=None, seed=0)
    return model


def rounded_layers(model: nn.Module) -> dict[str, nn.Linear]:
    return {
        name.replace(".base_layer", ""): m for name, m in model.named_modules() if type(m).__name__ == "Linear4bit"
        and not hasattr(m, "base_layer")
    }  # fmt: skip


def plain(folder: Path, dtype: str = "float32") -> PreTrainedModel:
    """The model with the rounded weights as usual numbers."""
    model = load(str(folder), dtype=dtype, device="cpu").model
    for name, layer in rounded_layers(loaded(folder, dtype).model).items():
        model.get_submodule(name).weight.data = full_weight(layer).to(model.dtype)
    return model


def logprobs(model: PreTrainedModel) -> Tensor:
    with packed_forward(model):
        return completion_logprobs(model, GROUPS)[0]


def learn(model: PreTrainedModel, steps: int, rate: float = 1e-2) -> list[float]:
    """Follow the completions; the loss at each step."""
    adam = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=rate)
    losses = []
    for _ in range(steps):
        with packed_forward(model):
            loss = -completion_logprobs(model, GROUPS)[0].mean()
            loss.backward()
        adam.step()
        adam.zero_grad()
        losses.append(float(loss.detach()))
    return losses


def bytes_of_base(model: PreTrainedModel) -> dict[str, Tensor]:
    """Everything but adapters, scales of rounded weights included."""
    return {name: t.clone() for name, t in copy.deepcopy(model).state_dict().items() if "lora_" not in name}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


# What is held


def test_all_linear_layers_but_the_output_layer_are_held_in_4_bits_and_two_scales(folder: Path) -> None:
    model = loaded(folder).model
    assert len(rounded_layers(model)) == 14
    assert type(model.get_output_embeddings()) is nn.Linear
    weight = model.model.layers[0].mlp.up_proj.weight
    # [128, 64] in pairs; a block of 64 has one scale in a byte.
    assert (weight.dtype, weight.numel(), weight.quant_state.absmax.dtype) == (torch.uint8, 4096, torch.uint8)
    assert weight.quant_state.absmax.numel() == 128
    assert model.model.embed_tokens.weight.dtype == torch.float32


def test_a_weight_is_the_nearest_of_16_levels_times_the_largest_of_its_block(folder: Path) -> None:
    name = "model.layers.1.self_attn.o_proj"
    blocks = tiny_wide().get_submodule(name).weight.detach().reshape(-1, 64)
    scale = blocks.abs().amax(1, keepdim=True)
    nearest = (blocks / scale)[..., None].sub(torch.tensor(LEVELS)).abs().argmin(-1)
    found = full_weight(loaded(folder).model.get_submodule(name)).reshape(-1, 64)
    # The scales are rounded themselves: 255 steps between the least and the greatest of them.
    assert torch.allclose(found, torch.tensor(LEVELS)[nearest] * scale, rtol=0.02, atol=1e-4)
    assert not torch.allclose(found, blocks, rtol=0.02, atol=1e-2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_forward_pass_is_that_of_the_dequantised_weights(folder: Path, dtype: str) -> None:
    model = loaded(folder, dtype).model
    assert model.dtype == getattr(torch, dtype)
    with torch.no_grad():
        torch.testing.assert_close(logprobs(model), logprobs(plain(folder, dtype)), rtol=1e-5, atol=1e-5)
        assert float((logprobs(model) - logprobs(tiny_wide())).abs().max()) > 0.05


# Training beside it


@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_of_adapters_are_those_beside_the_dequantised_weights(folder: Path, checkpointing: bool) -> None:
    gradients = []
    for model in (with_lora(folder, gradient_checkpointing=checkpointing), plain(folder)):
        if not lora_layers(model):
            add_lora(model, rank=4, alpha=None, seed=0)
        with torch.no_grad():
            for name, p in model.named_parameters():
                if "lora_B" in name:
                    p.copy_(torch.linspace(-0.1, 0.1, p.numel()).view_as(p))
        with packed_forward(model):
            completion_logprobs(model, GROUPS)[0].sum().backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.requires_grad})
    assert len(gradients[0]) == 28
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_adapters_learn_while_every_byte_of_the_base_stays(folder: Path, dtype: str) -> None:
    model = with_lora(folder, dtype)
    before = bytes_of_base(model)
    losses = learn(model, 20)
    assert losses[-1] < 0.5 * losses[0]
    assert same(bytes_of_base(model), before)
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {torch.float32}


def test_sampling_leaves_the_bytes_and_the_gradient_as_they_were(folder: Path) -> None:
    def gradient(model: PreTrainedModel) -> Tensor:
        with packed_forward(model):
            completion_logprobs(model, GROUPS)[0].sum().backward()
        return model.model.layers[0].self_attn.q_proj.lora_B["default"].weight.grad

    model = with_lora(folder)
    before, expected = bytes_of_base(model), gradient(with_lora(folder))
    engine = NativeEngine(model, decode=lambda ids: "", end_ids=frozenset([END]), max_branches=4)
    request = Request(prompt_ids=(1, 30, 31), keys=(1, 2))
    engine.generate([request], SamplingParams(max_new_tokens=8, temperature=1.0))
    assert same(bytes_of_base(model), before)
    assert torch.equal(gradient(model), expected)
    assert expected.any()


def test_the_sampler_draws_the_greedy_ids_of_the_dequantised_weights(folder: Path) -> None:
    drawn = []
    for model in (loaded(folder).model, plain(folder)):
        engine = NativeEngine(model, decode=lambda ids: "", end_ids=frozenset([END]), max_branches=4)
        params = SamplingParams(max_new_tokens=30, temperature=0.0)
        (answers,) = engine.generate([Request(prompt_ids=(1, 40, 41), keys=(1,))], params)
        drawn.append(answers[0].token_ids)
    assert drawn[0] == drawn[1]
    assert len(drawn[0]) > 3


def test_the_reference_of_fresh_adapters_is_the_base_and_its_divergence_0(folder: Path) -> None:
    model = with_lora(folder)
    reference = Reference(model)
    with torch.no_grad(), reference.policy() as frozen:
        at_start = logprobs(frozen)
    with torch.no_grad():
        assert float(k3(logprobs(model), at_start).abs().max()) == 0.0
    learn(model, 3)
    with reference.policy() as frozen:
        assert torch.equal(logprobs(frozen), at_start)
    with torch.no_grad():
        assert float(k3(logprobs(model), at_start).abs().max()) > 0.0


def test_merged_weights_are_a_plain_model_that_computes_the_same(folder: Path) -> None:
    model = with_lora(folder)
    learn(model, 5)
    merged, expected = tiny_wide(), logprobs(model)
    merged.load_state_dict(merged_state(model), strict=True)
    torch.testing.assert_close(logprobs(merged), expected, rtol=1e-4, atol=1e-4)


def test_a_value_network_of_its_own_copies_the_4_bits(folder: Path) -> None:
    model = with_lora(folder)
    network = ValueNetwork(model, share_trunk=False)
    network(GROUPS).sum().backward()
    assert network.own is not None
    assert {id(m) for m in rounded_layers(network.own).values()}.isdisjoint(map(id, rounded_layers(model).values()))
    learn(model, 2)
    assert same(bytes_of_base(network.own), bytes_of_base(model))


# Faster paths leave it alone


def test_neither_the_lean_decoder_nor_packed_products_take_a_weight_of_4_bits(folder: Path) -> None:
    model = loaded(folder, "bfloat16").model
    layer = model.model.layers[0].mlp.up_proj
    assert isinstance(layer, nn.Linear)
    assert not LeanDecoder.fits(model)
    assert not packable(layer)
    with packed_linears(model):
        assert "forward" not in vars(layer)
    with sampling_decoder(model) as decoder:
        assert not isinstance(decoder, LeanDecoder)


# Refusals


def test_without_the_library_there_is_one_message(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(RequestError, match=r"nf4' needs bitsandbytes.*pip install 'peerwise\[bitsandbytes\]'"):
        loaded(folder)


def test_rows_that_are_not_whole_blocks_are_refused_on_a_cpu(tmp_path: Path) -> None:
    write(tiny("llama"), tmp_path)
    with pytest.raises(ModelError, match="layers with 32 inputs; on a CPU only multiples of 64"):
        loaded(tmp_path)


def test_a_file_that_is_quantised_already_is_refused_for_4_bits_and_for_training(folder: Path, tmp_path: Path) -> None:
    settings = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    model = AutoModelForCausalLM.from_pretrained(folder, quantization_config=settings, device_map={"": "cpu"})
    model.save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="quantised weights already"):
        loaded(tmp_path)
    with pytest.raises(ModelError, match="quantised by bitsandbytes, which cannot be trained"):
        require_trainable(load(str(tmp_path), device="cpu").model)
    require_trainable(loaded(folder).model)
    require_trainable(load(str(folder), device="cpu").model)
