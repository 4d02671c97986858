"""Pins what changes logits before the temperature, and min_p after it: by hand, against transformers' own processors,
and in both engines alike."""

from __future__ import annotations

import math

import pytest
import torch
from drawing import GREEDY, PROMPTS, as_text, asked, drawn, engine
from hypothesis import given
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
)

from peerwise.errors import RequestError
from peerwise.rollout.adjust import adjusted
from peerwise.rollout.base import SamplingParams
from peerwise.rollout.native.sampler import draw
from peerwise.rollout.transformers import TransformersGenerator
from tiny_models import END, PAD, tiny

V = 12


def params(**how: float) -> SamplingParams:
    return SamplingParams(**{"max_new_tokens": 8, **how})


def test_the_penalty_divides_what_is_above_0_and_multiplies_what_is_below():
    logits = torch.tensor([[2.0, -2.0, 4.0, -4.0]])
    # Token 0 stands in the prompt, token 3 in the answer, twice; token 0 in both counts once.
    found = adjusted(logits, [(0,)], [(3, 3, 0)], params(repetition_penalty=2.0), {9})
    assert found.tolist() == [[1.0, -2.0, 4.0, -8.0]]
    assert logits.tolist() == [[2.0, -2.0, 4.0, -4.0]]


def test_a_bias_is_added_before_the_penalty():
    found = adjusted(
        torch.tensor([[1.0, 1.0]]), [(0,)], [()], params(repetition_penalty=2.0, logit_bias=((0, 3.0),)), {9}
    )
    assert found.tolist() == [[2.0, 1.0]]


def test_no_end_token_is_drawn_before_the_least_length_of_each_row():
    logits = torch.zeros(2, 4)
    found = adjusted(logits, [(0,), (0,)], [(1,), (1, 1)], params(min_new_tokens=2), {2, 3})
    assert found.tolist() == [[0.0, 0.0, -math.inf, -math.inf], [0.0, 0.0, 0.0, 0.0]]


def test_nothing_asked_for_changes_nothing_and_copies_nothing():
    logits = torch.zeros(1, 4)
    assert adjusted(logits, [(0,)], [()], params(min_p=0.5, top_k=2), {2}) is logits


@given(
    st.lists(st.floats(-8, 8), min_size=V, max_size=V),
    st.lists(st.integers(0, V - 1), min_size=1, max_size=6),
    st.floats(0.5, 2.0),
    st.integers(0, 6),
)
def test_it_is_what_transformers_does(values, ids, penalty, least):
    logits = torch.tensor([values], dtype=torch.float32)
    prompt, answer = tuple(ids[:1]), tuple(ids[1:])
    expected = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([ids]), logits.clone())
    if least:
        expected = MinNewTokensLengthLogitsProcessor(1, least, [3, 7])(torch.tensor([ids]), expected)
    found = adjusted(
        logits, [prompt], [answer], params(repetition_penalty=penalty, min_new_tokens=least), frozenset((3, 7))
    )
    torch.testing.assert_close(found, expected)


@given(st.lists(st.floats(-8, 8), min_size=V, max_size=V), st.sampled_from([0.05, 0.3, 0.9, 1.0]))
def test_min_p_leaves_what_transformers_leaves(values, min_p):
    logits = torch.tensor([values], dtype=torch.float32)
    kept = MinPLogitsWarper(min_p)(torch.zeros(1, 1, dtype=torch.long), logits.clone())
    expected = kept.log_softmax(-1)[0]
    # A token at the very edge may go either way by rounding.
    edge = (logits[0] - logits.max() - math.log(min_p)).abs() < 1e-5
    points = torch.linspace(0, 0.999, 200, dtype=torch.float64)
    tokens, logprobs = draw(logits.expand(200, -1).contiguous(), points, temperature=1.0, min_p=min_p)
    if not bool(edge.any()):
        torch.testing.assert_close(logprobs, expected[tokens], rtol=0, atol=1e-5)
        assert bool(torch.isfinite(expected[tokens]).all())


def test_min_p_is_a_share_of_the_likeliest_token():
    # Probabilities 0.5, 0.3, 0.2: half of the likeliest is 0.25, so 0.2 goes and 5/8, 3/8 are left.
    logits = torch.tensor([[0.5, 0.3, 0.2]]).log().expand(3, -1).contiguous()
    tokens, logprobs = draw(logits, torch.tensor([0.0, 0.62, 0.63], dtype=torch.float64), temperature=1.0, min_p=0.5)
    assert tokens.tolist() == [0, 0, 1]
    assert logprobs.tolist() == pytest.approx([math.log(5 / 8)] * 2 + [math.log(3 / 8)], abs=1e-6)


@pytest.mark.parametrize(
    "how",
    [
        {"repetition_penalty": 1.7},
        {"min_new_tokens": 6},
        {"logit_bias": ((END, 4.0), (40, -100.0))},
        {"min_p": 0.2, "top_p": 0.9, "top_k": 20, "repetition_penalty": 1.2},
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_both_engines_draw_the_same(how, temperature):
    model = tiny("llama")
    how = {**how, "temperature": temperature, "max_new_tokens": 10}
    requests = asked(PROMPTS, 3)
    native = drawn(engine(model, max_branches=5), requests, SamplingParams(**how))
    other = TransformersGenerator(model, decode=as_text, end_ids=frozenset((END,)), max_branches=4)
    assert native == drawn(other, requests, SamplingParams(**how))
    plain = drawn(engine(model), requests, SamplingParams(max_new_tokens=10, temperature=temperature))
    assert native != plain or temperature == 0


def test_greedy_with_a_penalty_and_a_least_length_is_what_generate_writes():
    model = tiny("llama")
    how = {"repetition_penalty": 1.5, "min_new_tokens": 5}
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        out = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=GREEDY.max_new_tokens, do_sample=False,
            eos_token_id=[END], pad_token_id=PAD, **how,
        )  # fmt: skip
        expected = tuple(out[0, len(prompt) :].tolist())
        params = SamplingParams(max_new_tokens=GREEDY.max_new_tokens, temperature=0.0, **how)
        assert drawn(engine(model), asked([prompt], 1), params) == [[expected]]


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_new_tokens", 0), ("temperature", -1.0), ("temperature", math.inf), ("top_p", 0.0), ("top_k", -1),
     ("min_p", 1.5), ("min_new_tokens", 9), ("repetition_penalty", 0.0)],
)  # fmt: skip
def test_values_that_mean_nothing_are_refused_by_name(name, value):
    with pytest.raises(RequestError, match=name):
        params(**{name: value})
