"""Pins when an answer ends and what it is then: end ids, stop texts, limits, pad tokens; and prompts that cannot be
answered."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from drawing import (
    GREEDY,
    NEVER,
    PROMPTS,
    as_text,
    asked,
    drawn,
    engine,
    first_tokens,
    generated,
)

from peerwise.errors import ModelError
from peerwise.rollout.base import Request, SamplingParams
from peerwise.rollout.transformers import TransformersGenerator
from tiny_models import END, tiny


def test_an_answer_ends_at_the_first_of_several_end_ids_and_keeps_it():
    answer = first_tokens(10)
    assert 3 not in answer
    for place in (0, 3, 6):
        end = answer[place]
        first = answer.index(end)
        ((found,),) = engine(tiny("llama"), [3, end, NEVER]).generate(asked(PROMPTS[:1], 1), GREEDY)
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
