"""Pins the lean decoder to the modules it stands for, and the models it is used for."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from peerwise.models import lean
from peerwise.models.attention import NAME, use_attention
from peerwise.models.forward import PackedGroup, hidden_states, pack
from peerwise.models.lean import LeanDecoder, sampling_decoder
from peerwise.models.lora import add_lora
from peerwise.models.packed import Product, packed_linears
from peerwise.rollout.base import Request, SamplingParams
from peerwise.rollout.native.engine import NativeEngine
from tiny_models import CONFIGS, END, tiny

MEMBERS = ["llama", "mistral", "qwen2", "qwen3"]
GROUPS = [
    PackedGroup(prompt=(1, 9, 40, 41, 42, 43, 44), completions=((5, 6, 7, 8, 9, 10), (11,))),
    PackedGroup(prompt=(3,), completions=((20, 21, 22),)),
]


def both(model: PreTrainedModel) -> tuple[Tensor, Tensor]:
    """[N, hidden] of the lean decoder and of the model's own modules."""
    packed = pack(GROUPS, model.device)
    with torch.inference_mode():
        found = LeanDecoder(model)(packed.ids, packed.positions, packed.plan)
        with use_attention(model, NAME):
            expected = hidden_states(model, packed.ids, packed.positions, packed.plan)
    return found, expected


@pytest.mark.parametrize("name", MEMBERS)
def test_the_lean_decoder_gives_the_hidden_states_of_the_modules(name):
    found, expected = both(tiny(name))
    assert torch.allclose(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", MEMBERS)
def test_packed_bfloat16_weights_give_them_up_to_rounding(name):
    found, expected = both(tiny(name).to(torch.bfloat16))
    assert found.dtype == torch.bfloat16
    # Final hidden states are normalised to about 1; bfloat16 keeps 8 bits of each of a few dozen operations.
    assert float((found - expected).abs().float().mean()) < 0.02


@pytest.mark.parametrize("name", ["qwen2", "qwen3"])
def test_a_layer_with_a_window_keeps_it(name):
    model = tiny(name)
    model.model.layers[0].self_attn.sliding_window = 2
    found, expected = both(model)
    assert torch.allclose(found, expected, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(found, both(tiny(name))[0], atol=1e-2)


def test_only_the_family_with_plain_layers_fits():
    assert [name for name in CONFIGS if LeanDecoder.fits(tiny(name))] == ["llama", "qwen2", "qwen3", "mistral"]
    adapted = tiny("llama")
    add_lora(adapted, rank=2, alpha=4, seed=0)
    assert not LeanDecoder.fits(adapted)


@pytest.mark.parametrize("name", MEMBERS)
def test_sampling_with_it_draws_the_greedy_ids_of_generate(name, monkeypatch):
    monkeypatch.setattr(lean, "packable", lambda layer: True)
    model = tiny(name)
    with sampling_decoder(model) as decoder:
        assert isinstance(decoder, LeanDecoder)
    prompts = [(1, 40, 41), (1, 7, 8, 9, 10, 11, 12, 13, 14), (5,)]
    engine = NativeEngine(model, decode=lambda ids: "", end_ids=frozenset([END]), max_branches=4)
    params = SamplingParams(max_new_tokens=40, temperature=0.0)
    answers = engine.generate([Request(prompt_ids=prompt, keys=(1, 2)) for prompt in prompts], params)
    for prompt, of_prompt in zip(prompts, answers, strict=True):
        ids = torch.tensor([prompt])
        row = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=40, do_sample=False, eos_token_id=END
        )
        assert {answer.token_ids for answer in of_prompt} == {tuple(row[0, len(prompt) :].tolist())}


def test_packing_ends_with_the_block_and_a_bfloat16_cpu_model_is_sampled_lean():
    model = tiny("llama").to(torch.bfloat16)
    with sampling_decoder(model) as decoder:
        assert isinstance(decoder, LeanDecoder)
        assert "forward" in vars(model.get_output_embeddings())
    with packed_linears(model):
        assert isinstance(vars(model.model.layers[0].mlp.up_proj)["forward"], Product)
    assert not any("forward" in vars(module) for module in model.modules())


def test_a_product_lays_the_outputs_of_its_layers_side_by_side():
    layers = [torch.nn.Linear(6, out) for out in (4, 2)]
    x = torch.randn(3, 6)
    assert torch.allclose(Product(*layers)(x), torch.cat([layer(x) for layer in layers], dim=-1), atol=1e-6)
