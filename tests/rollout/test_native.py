"""Pins the native engine against `model.generate`, the trainer and itself: the same ids, exact log-probs, a sample that
depends on its key alone."""

from __future__ import annotations

import math

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
    generated,
    sampled_logprobs,
    trainer_logprobs,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from peerwise.records import Completion
from peerwise.rollout.base import Request, SamplingParams, sample_key
from peerwise.rollout.native.attention import MIN_SHARED
from peerwise.rollout.native.cache import GROWTH
from peerwise.rollout.transformers import TransformersGenerator
from tiny_models import CONFIGS, END, tiny


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


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2"])
@pytest.mark.parametrize("common", [MIN_SHARED - 1, MIN_SHARED, MIN_SHARED + 9])
def test_prompts_that_begin_alike_are_answered_as_each_alone(name, common):
    model = tiny(name)
    begin = tuple(4 + (7 * i) % 90 for i in range(common))
    # One prompt is nothing but the common beginning and one more token; one has a rest longer than any window.
    prompts = [(*begin, 50), (*begin, 60, 61, 62, 63, 64, 65, 66), (*begin, 70, 71)]
    params = SamplingParams(max_new_tokens=8, temperature=0.0)
    found = drawn(engine(model, max_branches=5), asked(prompts, 2), params)
    assert found == [[tuple(generated(model, prompt, 8, [END]))] * 2 for prompt in prompts]


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


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2"])
def test_answers_outgrow_the_first_room_of_the_cache(name):
    model = tiny(name)
    count = 9 * GROWTH + 10
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
    answers = engine(model, [4, 30], max_branches=4).generate(requests, SamplingParams(max_new_tokens=4 * GROWTH + 20))
    assert max(len(answer.token_ids) for of_request in answers for answer in of_request) > 4 * GROWTH
    assert sampled_logprobs(answers) == pytest.approx(trainer_logprobs(model, requests, answers, 1.0), abs=1e-4)


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
