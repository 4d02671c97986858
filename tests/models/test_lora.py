"""Pins adapters and the frozen reference: what a fresh adapter, a learned one and a merged one compute, and that
asking the reference leaves the policy as it was.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from peerwise.algo.divergence import k3
from peerwise.models.attention import NAME, use_attention
from peerwise.models.forward import PackedGroup, completion_logprobs
from peerwise.models.lora import Reference, add_lora, lora_layers, merged_state

Build = Callable[[str], PreTrainedModel]

IDS = torch.tensor([[1, 30, 31, 32, 40, 2]])
GROUPS = [PackedGroup(prompt=(1, 30, 31), completions=((40, 41, 2), (42, 2)))]


def logits(model: PreTrainedModel) -> Tensor:
    with torch.no_grad():
        return model(input_ids=IDS).logits.clone()


def logprobs(model: PreTrainedModel) -> Tensor:
    with torch.no_grad(), use_attention(model, NAME):
        return completion_logprobs(model, GROUPS)[0]


def with_lora(model: PreTrainedModel, *, rank: int = 3, alpha: float | None = None, seed: int = 0) -> PreTrainedModel:
    add_lora(model, rank=rank, alpha=alpha, seed=seed)
    return model


def learn(model: PreTrainedModel, seed: int) -> None:
    """Move every trainable weight, as an optimizer step would: in place."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator)


def differ(one: Tensor, other: Tensor) -> bool:
    return float((one - other).abs().max()) > 1e-2


# Adapters


@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma", "gpt_neox"])
def test_a_fresh_adapter_changes_nothing(tiny: Build, name: str) -> None:
    assert torch.equal(logits(with_lora(tiny(name))), logits(tiny(name)))


@pytest.mark.parametrize("name", ["llama", "gpt_neox"])
def test_only_adapters_are_trained_and_the_output_layer_has_none(tiny: Build, name: str) -> None:
    model = with_lora(tiny(name))
    trained = [key for key, p in model.named_parameters() if p.requires_grad]
    assert trained
    assert all("lora_" in key for key in trained)
    assert type(model.get_output_embeddings()) is torch.nn.Linear
    # llama: q, k, v, o, gate, up, down; gpt_neox: one for q, k and v, dense, and two of the MLP. Two layers each.
    assert len(lora_layers(model)) == {"llama": 14, "gpt_neox": 8}[name]


def test_adapters_are_float32_whatever_the_model_is(tiny: Build) -> None:
    model = with_lora(tiny("llama").bfloat16())
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {torch.float32}
    assert {p.dtype for p in model.parameters() if not p.requires_grad} == {torch.bfloat16}
    assert logits(model).isfinite().all()


def test_the_seed_decides_the_adapter_and_leaves_the_global_generator_alone(tiny: Build) -> None:
    state = torch.random.get_rng_state()
    one, same, other = (with_lora(tiny("llama"), seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), state)
    learned = [
        torch.cat([p.flatten() for key, p in m.named_parameters() if "lora_A" in key]) for m in (one, same, other)
    ]
    assert torch.equal(learned[0], learned[1])
    assert not torch.equal(learned[0], learned[2])


def test_the_adapter_adds_b_times_a_times_alpha_over_rank(tiny: Build) -> None:
    model = with_lora(tiny("llama"), rank=2, alpha=6.0)
    learn(model, 1)
    layer = model.model.layers[0].mlp.up_proj
    x = torch.randn(5, 32, generator=torch.Generator().manual_seed(1))
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    torch.testing.assert_close(layer(x), x @ (layer.base_layer.weight + 6.0 / 2 * b @ a).T, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma", "gpt_neox"])
def test_merged_weights_load_into_a_plain_model_with_the_same_logits(tiny: Build, name: str) -> None:
    model, plain = with_lora(tiny(name)), tiny(name)
    learn(model, 2)
    base = logits(plain)
    plain.load_state_dict(merged_state(model), strict=True)
    torch.testing.assert_close(logits(plain), logits(model), rtol=1e-4, atol=1e-4)
    assert differ(logits(plain), base)


def test_merging_leaves_the_adapted_model_as_it_was(tiny: Build) -> None:
    model = with_lora(tiny("llama"))
    learn(model, 2)
    before = logits(model)
    merged_state(model)
    assert torch.equal(logits(model), before)


def test_a_model_without_adapters_merges_to_its_own_weights(tiny: Build) -> None:
    model = tiny("llama")
    state = merged_state(model)
    assert state.keys() == model.state_dict().keys()
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())


# The reference


def test_the_reference_of_a_fresh_adapter_is_the_base_model_while_the_policy_moves(tiny: Build) -> None:
    model = with_lora(tiny("llama"))
    reference = Reference(model)
    learn(model, 3)
    with reference.policy() as frozen:
        assert torch.equal(logprobs(frozen), logprobs(tiny("llama")))
    assert differ(logprobs(model), logprobs(tiny("llama")))


def test_the_reference_of_a_learned_adapter_is_the_policy_at_that_time(tiny: Build) -> None:
    model = with_lora(tiny("llama"))
    learn(model, 3)
    at_start = logprobs(model)
    reference = Reference(model)
    with reference.policy() as frozen:
        assert float(k3(at_start, logprobs(frozen)).abs().max()) == 0.0
    assert differ(at_start, logprobs(tiny("llama")))


def test_the_reference_of_a_learned_adapter_stays_as_it_was_while_the_policy_moves_on(tiny: Build) -> None:
    model = with_lora(tiny("llama"))
    learn(model, 3)
    at_start = logprobs(model)
    reference = Reference(model)
    for step in range(2):
        learn(model, 4 + step)
        with reference.policy() as frozen:
            assert torch.equal(logprobs(frozen), at_start)
    assert differ(logprobs(model), at_start)


@pytest.mark.parametrize("lora", [False, True])
def test_the_reference_of_a_model_without_adapters_stays_as_it_was(tiny: Build, lora: bool) -> None:
    model = with_lora(tiny("llama")) if lora else tiny("llama")
    at_start = logprobs(model)
    reference = Reference(model)
    learn(model, 5)
    with reference.policy() as frozen:
        assert torch.equal(logprobs(frozen), at_start)
        assert (frozen is model) == lora  # a second model is kept only where there is no adapter
    assert differ(logprobs(model), at_start)


@pytest.mark.parametrize("case", ["full", "fresh adapter", "learned adapter"])
@pytest.mark.parametrize("raises", [False, True])
def test_the_policy_is_whole_again_after_the_block(tiny: Build, case: str, raises: bool) -> None:
    model = tiny("llama") if case == "full" else with_lora(tiny("llama"))
    if case == "learned adapter":
        learn(model, 6)
    reference = Reference(model)
    learn(model, 7)
    before, trained = logprobs(model), {name: p.requires_grad for name, p in model.named_parameters()}
    parameters = {name: (id(p), p.data_ptr()) for name, p in model.named_parameters()}
    if raises:
        with pytest.raises(KeyError, match="inside"), reference.policy():
            raise KeyError("inside")
    else:
        with reference.policy() as frozen:
            logprobs(frozen)
    assert torch.equal(logprobs(model), before)
    assert {name: p.requires_grad for name, p in model.named_parameters()} == trained
    # The optimizer holds these very tensors.
    assert {name: (id(p), p.data_ptr()) for name, p in model.named_parameters()} == parameters


@pytest.mark.parametrize("case", ["full", "fresh adapter", "learned adapter"])
def test_the_reference_is_asked_without_gradients(tiny: Build, case: str) -> None:
    model = tiny("llama") if case == "full" else with_lora(tiny("llama"))
    if case == "learned adapter":
        learn(model, 6)
    with Reference(model).policy() as frozen:
        assert not frozen(input_ids=IDS).logits.requires_grad
    assert model(input_ids=IDS).logits.requires_grad


def test_a_block_of_the_reference_does_not_spoil_a_gradient_that_is_under_way(tiny: Build) -> None:
    # policy_step asks the reference between forwards; a graph built before must still be right.
    model = with_lora(tiny("llama"))
    learn(model, 6)
    reference = Reference(model)
    learn(model, 7)
    expected, found = [], []
    for between, target in ((False, expected), (True, found)):
        out = model(input_ids=IDS).logits.square().sum()
        if between:
            with reference.policy() as frozen:
                logprobs(frozen)
        out.backward()
        target += [p.grad.clone() for p in model.parameters() if p.grad is not None]
        model.zero_grad(set_to_none=True)
    assert found
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
