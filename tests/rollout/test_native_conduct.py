"""Pins that sampling leaves the model and the random generators as they were, and what it tells on its way."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import pytest
import torch
from drawing import (
    GREEDY,
    NEVER,
    PROMPTS,
    as_text,
    asked,
    drawn,
    engine,
    first_tokens,
)
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from peerwise.errors import ModelError
from peerwise.rollout.base import SamplingParams
from peerwise.rollout.native.engine import NativeEngine
from peerwise.rollout.transformers import TransformersGenerator
from tiny_models import END, VOCABULARY, tiny, tiny_policy


def state_of(model: PreTrainedModel) -> tuple[object, ...]:
    """What sampling must leave alone."""
    return (
        model.training,
        [module.training for module in model.modules()],
        model.config._attn_implementation,
        model.config.use_cache,
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        [parameter.requires_grad for parameter in model.parameters()],
    )


@pytest.mark.parametrize("make", [engine, TransformersGenerator])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_the_model_is_left_as_it_was_found_also_after_an_exception(make, training, attention):
    model = tiny("llama")
    model.set_attn_implementation(attention)
    model.train(training)
    before, weights = state_of(model), [parameter.clone() for parameter in model.parameters()]

    def failing(ids: Sequence[int]) -> str:
        raise RuntimeError("cannot decode")

    for decode in (as_text, failing):
        with contextlib.suppress(RuntimeError):
            make(model, decode=decode, end_ids=frozenset([END])).generate(asked(PROMPTS, 2), GREEDY)
            assert decode is as_text
        assert state_of(model) == before
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), weights, strict=True))
    # It still computes and learns as before.
    model(input_ids=torch.tensor([[1, 2, 3]])).logits.sum().backward()
    assert model.get_input_embeddings().weight.grad is not None


@pytest.mark.parametrize("make", [engine, TransformersGenerator])
def test_a_model_in_training_with_checkpointing_and_dropout_samples_as_one_at_rest(make):
    resting, training = tiny("llama"), tiny("llama")
    training.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    training.config.attention_dropout = 0.5
    for layer in training.model.layers:
        layer.self_attn.attention_dropout = 0.5
    training.train()
    params = SamplingParams(max_new_tokens=10)
    expected, found = (
        make(model, decode=as_text, end_ids=frozenset([END])).generate(asked(PROMPTS, 2), params)
        for model in (resting, training)
    )
    assert found == expected
    assert training.training
    assert training.is_gradient_checkpointing


def test_sampling_draws_nothing_from_torchs_or_numpys_own_generators():
    model = tiny("llama")
    state = torch.get_rng_state()
    drawn(engine(model), asked(PROMPTS, 2), SamplingParams(max_new_tokens=5))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("make", [engine, TransformersGenerator])
def test_progress_rises_to_all_answers(make):
    calls: list[tuple[int, int]] = []
    made = make(tiny("llama"), decode=as_text, end_ids=frozenset([END, *range(20, 50)]), max_branches=3)
    made.generate(asked(PROMPTS, 2), GREEDY, lambda done, total: calls.append((done, total)))
    assert calls[-1] == (8, 8)
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    assert {total for _, total in calls} == {8}


def test_on_token_sees_an_answer_grow_by_one_token_at_a_time():
    seen: list[tuple[int, ...]] = []
    made = engine(tiny("llama"), [NEVER])
    ((found,),) = made.generate(asked(PROMPTS[:1], 1), GREEDY, on_token=lambda ids: seen.append(tuple(ids)))
    assert seen == [found.token_ids[: count + 1] for count in range(len(found.token_ids))]


def test_the_policys_own_tokenizer_decodes_the_answer_without_its_end():
    policy = tiny_policy("llama")
    made = NativeEngine(policy.model, decode=policy.decode, end_ids=frozenset(first_tokens(4)[3:]))
    ((found,),) = made.generate(asked(PROMPTS[:1], 1), GREEDY)
    assert found.text == policy.tokenizer.decode(list(found.token_ids), skip_special_tokens=True)
    assert len(found.token_ids) == 4


def test_a_model_with_attention_sinks_is_refused_with_what_is_still_possible_and_that_is_possible():
    config = AutoConfig.for_model(
        "gpt_oss",
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_local_experts=2,
        num_experts_per_tok=1,
        initializer_range=0.25,
        max_position_embeddings=512,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    requests = asked(PROMPTS[:1], 2)
    with pytest.raises(ModelError, match=r"attention sinks.*--engine transformers"):
        engine(model).generate(requests, GREEDY)
    made = TransformersGenerator(model, decode=as_text, end_ids=frozenset([END]))
    ((found, _),) = made.generate(requests, GREEDY)
    ids = torch.tensor([[*requests[0].prompt_ids, *found.token_ids]])
    with torch.no_grad():
        table = model(input_ids=ids).logits[0].log_softmax(-1)
    first = len(requests[0].prompt_ids) - 1
    for place, (token, logprob) in enumerate(zip(found.token_ids, found.logprobs, strict=True)):
        assert int(table[first + place].argmax()) == token
        assert logprob == pytest.approx(float(table[first + place, token]), abs=1e-4)
