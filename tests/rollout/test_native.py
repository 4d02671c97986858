"""Pins the native engine against `model.generate` and against itself: the same ids, exact log-probs, a sample that
depends on its key alone, endings decided by the ids, and a model left as it was found."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedModel

from peerwise.errors import ModelError
from peerwise.models.attention import NAME, use_attention
from peerwise.models.forward import PackedGroup, completion_logprobs
from peerwise.records import Completion
from peerwise.rollout.base import Generator, Request, SamplingParams, sample_key
from peerwise.rollout.native.cache import FIRST_ROOM
from peerwise.rollout.native.engine import NativeEngine
from peerwise.rollout.transformers import TransformersGenerator
from tiny_models import CONFIGS, END, PAD, tiny, tiny_policy

GREEDY = SamplingParams(max_new_tokens=12, temperature=0.0)
PROMPTS = [(1, 40, 41), (1, 7, 8, 9, 10, 11, 12, 13, 14), (5,), (1, 90, 17, 33, 52, 60)]
"""1 to 9 tokens: shorter and longer than the windows of the models that have one."""
NEVER = 96
"""An end id for answers that are not to end; `first_tokens` checks that it is not drawn."""


def as_text(ids: Sequence[int]) -> str:
    """One letter for each id, so that texts can be compared with ids."""
    return "".join(chr(0x4E00 + i) for i in ids)


def engine(model: PreTrainedModel, end_ids: Sequence[int] = (END,), **how: Any) -> NativeEngine:
    return NativeEngine(model, **{"decode": as_text, "end_ids": frozenset(end_ids), **how})


def asked(prompts: Sequence[tuple[int, ...]], samples: int, seed: int = 0) -> list[Request]:
    return [
        Request(prompt_ids=prompt, keys=tuple(sample_key(seed, 0, str(prompt), i) for i in range(samples)))
        for prompt in prompts
    ]


def drawn(generator: Generator, requests: Sequence[Request], params: SamplingParams) -> list[list[tuple[int, ...]]]:
    return [[answer.token_ids for answer in answers] for answers in generator.generate(requests, params)]


def generated(
    model: PreTrainedModel, prompt: tuple[int, ...], max_new_tokens: int, end_ids: Sequence[int]
) -> list[int]:
    """What transformers' own greedy generate writes after one prompt."""
    ids = torch.tensor([prompt])
    out = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=max_new_tokens,
        do_sample=False,
        eos_token_id=list(end_ids),
        pad_token_id=PAD,
    )
    return out[0, len(prompt) :].tolist()


def trainer_logprobs(
    model: PreTrainedModel, requests: Sequence[Request], answers: Sequence[Sequence[Completion]], temperature: float
) -> list[float]:
    """What the trainer says of the same ids, in the order of requests and answers."""
    groups = [
        PackedGroup(prompt=request.prompt_ids, completions=tuple(answer.token_ids for answer in of_request))
        for request, of_request in zip(requests, answers, strict=True)
    ]
    with torch.no_grad(), use_attention(model, NAME):
        return completion_logprobs(model, groups, temperature=temperature)[0].tolist()


def sampled_logprobs(answers: Sequence[Sequence[Completion]]) -> list[float]:
    return [logprob for of_request in answers for answer in of_request for logprob in answer.logprobs]


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("max_branches", [1, 3, 64])
def test_greedy_ids_are_those_of_generate(name, max_branches):
    model = tiny(name)
    # Three answers to each of four prompts in 1, 3 or enough slots: branches wait, leave early and move.
    ends = [END, 11, 40]
    found = drawn(engine(model, ends, max_branches=max_branches), asked(PROMPTS, 3), GREEDY)
    for prompt, answers in zip(PROMPTS, found, strict=True):
        expected = tuple(generated(model, prompt, GREEDY.max_new_tokens, ends))
        assert answers == [expected] * 3


@pytest.mark.parametrize("name", CONFIGS)
def test_sampled_answers_of_uneven_length_have_the_trainers_logprobs(name):
    model = tiny(name)
    requests = asked(PROMPTS, 4)
    for temperature in (1.0, 0.7, 1.6):
        params = SamplingParams(max_new_tokens=15, temperature=temperature)
        # A sixth of the vocabulary ends an answer, so lengths differ and slots move.
        answers = engine(model, range(0, 97, 6), max_branches=5).generate(requests, params)
        lengths = {len(answer.token_ids) for of_request in answers for answer in of_request}
        assert len(lengths) > 3
        assert sampled_logprobs(answers) == pytest.approx(
            trainer_logprobs(model, requests, answers, temperature), abs=1e-4
        )


def test_greedy_logprobs_are_the_trainers_at_temperature_one():
    model = tiny("llama")
    requests = asked(PROMPTS, 1)
    answers = engine(model).generate(requests, GREEDY)
    assert sampled_logprobs(answers) == pytest.approx(trainer_logprobs(model, requests, answers, 1.0), abs=1e-4)


def test_truncated_sampling_reports_the_renormalised_logprob():
    model = tiny("llama")
    for how in ({"top_k": 1}, {"top_p": 1e-6}):
        (answers,) = engine(model).generate(asked(PROMPTS[:1], 2), SamplingParams(max_new_tokens=6, **how))
        # One token is left each time, so it is drawn with certainty, and it is the greedy one.
        (greedy,) = drawn(engine(model), asked(PROMPTS[:1], 2), SamplingParams(max_new_tokens=6, temperature=0.0))
        assert [answer.token_ids for answer in answers] == greedy
        assert sampled_logprobs([answers]) == pytest.approx([0.0] * len(sampled_logprobs([answers])), abs=1e-6)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(
    "how", [{}, {"temperature": 0.6}, {"top_p": 0.7, "temperature": 1.3}, {"top_k": 5}, {"temperature": 0.0}]
)
def test_the_slow_reference_draws_the_same(name, how):
    model = tiny(name)
    params = SamplingParams(max_new_tokens=10, **how)
    requests = asked(PROMPTS, 2)
    ends = (END, 11, 23)
    reference = TransformersGenerator(model, decode=as_text, end_ids=frozenset(ends), max_branches=3)
    expected = reference.generate(requests, params)
    found = engine(model, ends, max_branches=5).generate(requests, params)
    for ours, theirs in zip(found, expected, strict=True):
        assert [answer.token_ids for answer in ours] == [answer.token_ids for answer in theirs]
        assert [answer.finish for answer in ours] == [answer.finish for answer in theirs]
        assert [answer.text for answer in ours] == [answer.text for answer in theirs]
    assert sampled_logprobs(found) == pytest.approx(sampled_logprobs(expected), abs=1e-4)


def test_the_slow_reference_draws_from_the_model_and_not_from_its_generation_config():
    # Instruct models ship sampling settings of their own, such as a penalty on repeated tokens.
    model = tiny("llama")
    requests = asked(PROMPTS, 2)
    params = SamplingParams(max_new_tokens=10)
    expected = drawn(engine(model), requests, params)
    settings = {"repetition_penalty": 1.5, "no_repeat_ngram_size": 2, "temperature": 0.3, "top_k": 4, "do_sample": True,
                "suppress_tokens": [expected[0][0][0]], "min_new_tokens": 3}  # fmt: skip
    for key, value in settings.items():
        setattr(model.generation_config, key, value)
    reference = TransformersGenerator(model, decode=as_text, end_ids=frozenset([END]))
    answers = reference.generate(requests, params)
    assert [[answer.token_ids for answer in of_request] for of_request in answers] == expected
    assert sampled_logprobs(answers) == pytest.approx(trainer_logprobs(model, requests, answers, 1.0), abs=1e-4)


POOL = [((1, 20 + i, *range(4, 4 + i)), i) for i in range(6)]
"""Prompts of 2 to 7 tokens, each with the number its keys are made from."""
SHARED_MODEL = tiny("llama")
SHARED_PARAMS = SamplingParams(max_new_tokens=9)
SHARED_ENDS = range(0, 97, 8)


def key_of(number: int, index: int) -> int:
    return sample_key(5, number, "pool", index)


def alone(number: int, index: int, known: dict[tuple[int, int], Completion] = {}) -> Completion:  # noqa: B006
    """The sample when nothing runs beside it."""
    if (number, index) not in known:
        request = Request(prompt_ids=POOL[number][0], keys=(key_of(number, index),))
        ((known[number, index],),) = engine(SHARED_MODEL, SHARED_ENDS).generate([request], SHARED_PARAMS)
    return known[number, index]


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, len(POOL) - 1), st.lists(st.integers(0, 5), max_size=5)), max_size=7),
    st.integers(1, 8),
    st.integers(1, 30),
)
def test_a_sample_depends_on_its_key_and_not_on_what_runs_beside_it(schedule, max_branches, prefill_tokens):
    requests = [
        Request(prompt_ids=POOL[number][0], keys=tuple(key_of(number, index) for index in indices))
        for number, indices in schedule
    ]
    made = engine(SHARED_MODEL, SHARED_ENDS, max_branches=max_branches, prefill_tokens=prefill_tokens)
    answers = made.generate(requests, SHARED_PARAMS)
    assert [len(of_request) for of_request in answers] == [len(indices) for _, indices in schedule]
    for (number, indices), of_request in zip(schedule, answers, strict=True):
        for index, answer in zip(indices, of_request, strict=True):
            expected = alone(number, index)
            assert (answer.token_ids, answer.finish, answer.text) == (
                expected.token_ids,
                expected.finish,
                expected.text,
            )
            assert answer.logprobs == pytest.approx(expected.logprobs, abs=1e-4)


def test_another_key_draws_another_sample():
    answers = drawn(engine(tiny("llama")), asked(PROMPTS, 8), SamplingParams(max_new_tokens=10))
    assert all(len(set(of_request)) == 8 for of_request in answers)


def test_no_requests_and_requests_without_keys_give_no_answers():
    made = engine(tiny("llama"))
    assert made.generate([], GREEDY) == []
    empty = Request(prompt_ids=(1, 2), keys=())
    found = made.generate([empty, *asked(PROMPTS[:1], 1), empty], GREEDY)
    assert [len(of_request) for of_request in found] == [0, 1, 0]


def first_tokens(count: int) -> list[int]:
    """The greedy answer to PROMPTS[0] when nothing ends it."""
    params = SamplingParams(max_new_tokens=count, temperature=0.0)
    ((answer,),) = drawn(engine(tiny("llama"), [NEVER]), asked(PROMPTS[:1], 1), params)
    assert NEVER not in answer
    return list(answer)


def test_an_answer_ends_at_the_first_of_several_end_ids_and_keeps_it():
    answer = first_tokens(10)
    for place in (0, 3, 6):
        end = answer[place]
        first = answer.index(end)
        ((found,),) = engine(tiny("llama"), [NEVER, end, 95]).generate(asked(PROMPTS[:1], 1), GREEDY)
        assert found.token_ids == tuple(answer[: first + 1])
        assert found.finish == "stop"
        assert len(found.logprobs) == first + 1
        assert found.text == as_text(answer[: first + 1])


def test_an_end_token_in_the_prompt_ends_nothing():
    model = tiny("llama")
    prompt = (1, END, 40, END)
    (answer,) = drawn(engine(model), asked([prompt], 1), GREEDY)
    assert answer == [tuple(generated(model, prompt, GREEDY.max_new_tokens, [END]))]
    assert len(answer[0]) > 1


def test_a_pad_token_that_is_also_the_end_token_ends_an_answer_and_counts():
    answer = first_tokens(8)
    model = tiny("llama")
    model.config.pad_token_id = model.generation_config.pad_token_id = answer[4]
    first = answer.index(answer[4])
    for make in (engine, TransformersGenerator):
        made = make(model, decode=as_text, end_ids=frozenset([answer[4]]))
        ((found,),) = made.generate(asked(PROMPTS[:1], 1), GREEDY)
        assert (found.token_ids, found.finish) == (tuple(answer[: first + 1]), "stop")


def test_a_pad_token_that_is_no_end_token_is_a_token_like_any_other():
    answer = first_tokens(8)
    model = tiny("llama")
    model.config.pad_token_id = model.generation_config.pad_token_id = answer[2]
    for make in (engine, TransformersGenerator):
        made = make(model, decode=as_text, end_ids=frozenset([NEVER]))
        ((found,),) = made.generate(asked(PROMPTS[:1], 1), SamplingParams(max_new_tokens=8, temperature=0.0))
        assert (found.token_ids, found.finish) == (tuple(answer), "length")


def test_finish_is_length_only_when_the_last_allowed_token_ends_nothing():
    answer = first_tokens(6)
    last = answer[-1]
    length = answer.index(last) + 1
    for limit, end, expected in ((length, last, "stop"), (length - 1, last, "length"), (length, NEVER, "length")):
        params = SamplingParams(max_new_tokens=limit, temperature=0.0)
        ((found,),) = engine(tiny("llama"), [end]).generate(asked(PROMPTS[:1], 1), params)
        assert (len(found.token_ids), found.finish) == (limit, expected)


def test_one_new_token_is_enough():
    (answers,) = engine(tiny("llama"), [NEVER]).generate(asked(PROMPTS[:1], 3), SamplingParams(max_new_tokens=1))
    assert [(len(answer.token_ids), answer.finish) for answer in answers] == [(1, "length")] * 3


@pytest.mark.parametrize("make", [engine, TransformersGenerator])
def test_a_stop_text_ends_an_answer_as_soon_as_it_contains_one_and_the_ids_stay_as_drawn(make):
    answer = first_tokens(10)
    made = make(tiny("llama"), decode=as_text, end_ids=frozenset([NEVER]))
    text = as_text(answer)
    for stop in (text[0], text[3], text[2:5], text[0:6]):
        params = SamplingParams(max_new_tokens=10, temperature=0.0, stop=("never seen", stop))
        ((found,),) = made.generate(asked(PROMPTS[:1], 1), params)
        length = text.index(stop) + len(stop)
        assert (found.token_ids, found.finish, found.text) == (tuple(answer[:length]), "stop", text[:length])
    params = SamplingParams(max_new_tokens=10, temperature=0.0, stop=("never seen",))
    ((found,),) = made.generate(asked(PROMPTS[:1], 1), params)
    assert (found.token_ids, found.finish) == (tuple(answer), "length")


@pytest.mark.parametrize("make", [engine, TransformersGenerator])
def test_a_stop_text_is_seen_when_a_character_takes_several_tokens(make):
    # Byte-level tokenizers write a character that is rare in their data as several tokens; here one for each byte.
    stop = "答案是"
    size = len(stop.encode())
    answer = first_tokens(size + 2)
    assert len(set(answer)) == size + 2
    byte_of = dict(zip(answer, f"a{stop}b".encode(), strict=True))

    def decode(ids: Sequence[int]) -> str:
        return bytes(byte_of[i] for i in ids).decode("utf-8", "replace")

    made = make(tiny("llama"), decode=decode, end_ids=frozenset([NEVER]))
    params = SamplingParams(max_new_tokens=size + 2, temperature=0.0, stop=(stop,))
    ((found,),) = made.generate(asked(PROMPTS[:1], 1), params)
    assert (found.text, found.finish, len(found.token_ids)) == (f"a{stop}", "stop", size + 1)


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2"])
def test_answers_outgrow_the_first_room_of_the_cache(name):
    model = tiny(name)
    count = 2 * FIRST_ROOM + 10
    # 5 ends some answers early, so places move before and after the cache has grown.
    ends = [5, NEVER]
    found = drawn(
        engine(model, ends, max_branches=3), asked(PROMPTS, 2), SamplingParams(max_new_tokens=count, temperature=0.0)
    )
    expected = [tuple(generated(model, prompt, count, ends)) for prompt in PROMPTS]
    assert found == [[answer] * 2 for answer in expected]
    assert max(map(len, expected)) == count


def test_sampled_answers_longer_than_the_first_room_have_the_trainers_logprobs():
    model = tiny("llama")
    requests = asked(PROMPTS, 3)
    answers = engine(model, [4, 30], max_branches=4).generate(requests, SamplingParams(max_new_tokens=FIRST_ROOM + 20))
    assert max(len(answer.token_ids) for of_request in answers for answer in of_request) > FIRST_ROOM
    assert sampled_logprobs(answers) == pytest.approx(trainer_logprobs(model, requests, answers, 1.0), abs=1e-4)


def test_prompt_and_answer_that_do_not_fit_the_context_are_refused_before_anything_is_computed():
    model = tiny("llama")
    context = model.config.max_position_embeddings
    fits, too_long = (1,) * (context - 12), (1,) * (context - 11)
    with pytest.raises(ModelError, match=f"prompt of {context - 11} tokens and 12 new ones .* context of {context}"):
        engine(model).generate(asked([(1, 2), too_long], 1), GREEDY)
    assert len(drawn(engine(model, [NEVER]), asked([fits], 1), SamplingParams(max_new_tokens=2))[0]) == 1


def test_an_empty_prompt_is_refused():
    with pytest.raises(ModelError, match="prompt has no tokens"):
        engine(tiny("llama")).generate([Request(prompt_ids=(), keys=(1,))], GREEDY)


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


@pytest.mark.parametrize("name", CONFIGS)
def test_a_bfloat16_model_samples_with_float32_logprobs_near_the_trainers(name):
    model = tiny(name).to(torch.bfloat16)
    requests = asked(PROMPTS, 3)
    answers = engine(model, range(0, 97, 9), max_branches=4).generate(requests, SamplingParams(max_new_tokens=12))
    found, expected = sampled_logprobs(answers), trainer_logprobs(model, requests, answers, 1.0)
    assert all(math.isfinite(logprob) and logprob <= 0 for logprob in found)
    # bfloat16 keeps 8 bits; logits here are some units wide and the two sum in another order.
    errors = [abs(a - b) for a, b in zip(found, expected, strict=True)]
    assert sum(errors) / len(errors) < 0.05


def test_the_policys_own_tokenizer_decodes_the_answer_without_its_end():
    policy = tiny_policy("llama")
    made = NativeEngine(policy.model, decode=policy.decode, end_ids=frozenset(first_tokens(4)[3:]))
    ((found,),) = made.generate(asked(PROMPTS[:1], 1), GREEDY)
    assert found.text == policy.tokenizer.decode(list(found.token_ids), skip_special_tokens=True)
    assert len(found.token_ids) == 4
