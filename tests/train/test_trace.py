"""Pins what is kept of single tokens: whose characters are whose, rounded figures by row, and the bound of a step."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_runs import rows

from peerwise.records import Completion, Group, Problem, Score
from peerwise.train.trace import TRACED_TOKENS, Seen, Tracer, token_lengths

# 4 and 5 make one character, 7 ends it and begins the next, 8 and 9 end that one.
VOCABULARY = {
    0: b"", 1: b"The", 2: b" sum", 3: b" is", 4: " 中".encode()[:2], 5: "中".encode()[1:], 6: b"2",
    7: "中国".encode()[1:5], 8: "国".encode()[2:], 9: b"\xff",
}  # fmt: skip


def a_group(*answers: tuple[tuple[int, ...], str], logprob: float = -0.125) -> Group:
    completions = tuple(
        Completion(token_ids=ids, logprobs=(logprob,) * len(ids), finish="stop", text=text) for ids, text in answers
    )
    problem = Problem(id="p/1", task="sums", messages=({"role": "user", "content": "1 + 1"},), answer="2")
    scores = tuple(Score(total=0.0, correct=False) for _ in answers)
    return Group(problem=problem, prompt_ids=(9,), completions=completions, scores=scores)


def decode(ids):
    return b"".join(VOCABULARY[token] for token in ids).decode("utf-8", errors="replace")


@pytest.mark.parametrize(
    ("pieces", "text", "expected"),
    [
        (["The", " sum", ""], "The sum", [3, 4, 0]),
        # A tokenizer that drops the blank of a token read alone.
        (["The", "sum", "is"], "The sum is", [3, 4, 3]),
        (["x", "nowhere", "y"], "xy", [1, 0, 1]),
        # An end token that was left out of the text, in the middle too.
        (["a", "", "b", ""], "ab", [1, 0, 1, 0]),
        # Texts that do not fit are given to the last token, and nothing is lost.
        (["x", "y"], "whatever", [0, 8]),
        ([""], "", [0]),
        ([], "", []),
    ],
)
def test_each_token_has_its_characters(pieces, text, expected):
    assert token_lengths(pieces, text) == expected


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        # Two tokens that make one character, and its blank, between others and at the end.
        ((1, 4, 5, 6, 0), [3, 0, 2, 1, 0]),
        ((1, 4, 5), [3, 0, 2]),
        # A token that ends one character and begins another.
        ((4, 7, 8, 6), [0, 0, 3, 1]),
        # Cut off within a character, and bytes that are none: the text holds signs for them.
        ((6, 4), [1, 2]),
        ((9, 9, 6), [0, 0, 3]),
        ((9,) * 9, [0, 0, 0, 0, 0, 0, 0, 8, 1]),
    ],
)
def test_a_character_of_several_tokens_is_the_last_ones(ids, expected):
    ((trace,),) = Tracer(decode).traces([a_group((ids, decode(ids)))], None)
    assert trace["token_lengths"] == expected


@given(st.lists(st.text(max_size=4), min_size=1), st.booleans())
def test_lengths_are_never_negative_and_add_up_to_the_text(pieces, of_these):
    text = "".join(pieces) if of_these else "another text"
    lengths = token_lengths(pieces, text)
    assert len(lengths) == len(pieces)
    assert min(lengths) >= 0
    assert sum(lengths) == len(text)


@given(st.lists(st.text(min_size=1, max_size=4), min_size=1))
def test_pieces_that_are_the_text_are_given_back(pieces):
    assert token_lengths(pieces, "".join(pieces)) == [len(piece) for piece in pieces]


def test_figures_are_rounded_and_lie_with_their_row():
    group = a_group(((1, 2, 0), "The sum"), ((3, 6), " is2"))
    seen = Seen(logprobs={1: torch.tensor([-0.125, 0.0])}, entropies={1: torch.tensor([1.23456, 0.0])})
    ((first, second),) = Tracer(decode).traces([group], seen)
    assert first == {"token_lengths": [3, 4, 0], "logprobs": [-0.12, -0.12, -0.12]}
    assert second == {
        "token_lengths": [3, 1],
        "logprobs": [-0.12, -0.12],
        "entropies": [1.23, 0],
        "ratios": [1, round(math.exp(0.125), 3)],
    }


def test_a_sure_token_is_written_as_zero():
    ((trace,),) = Tracer(decode).traces([a_group(((6,), "2"), logprob=-1e-9)], None)
    assert repr(trace["logprobs"]) == "[0]"


def test_a_step_keeps_no_more_than_its_bound():
    long = ((6,) * 3000, "2" * 3000)
    (first, second), (third,) = Tracer(decode).traces([a_group(long, long), a_group(long)], None)
    assert [len(trace.get("logprobs", [])) for trace in (first, second, third)] == [3000, TRACED_TOKENS - 3000, 0]
    assert third == {}


def test_a_run_records_its_tokens_and_the_rule_that_decided(straight):
    found = rows(straight("full"), "rollouts.jsonl")
    computed = 0
    for row in found:
        informative = len({answer["reward"] for answer in row["completions"]}) > 1
        for answer in row["completions"]:
            assert answer["rule"].endswith(", own function")
            assert sum(answer["token_lengths"]) == len(answer["text"])
            assert len(answer["logprobs"]) == len(answer["token_lengths"]) == answer["tokens"]
            # With one update for each batch the policy is the sampler's, but for rounding.
            assert answer.get("ratios", [1]) == pytest.approx([1] * len(answer.get("ratios", [1])), abs=0.002)
            assert ("entropies" in answer) == ("ratios" in answer) == informative
            computed += "entropies" in answer
    assert computed


def test_after_several_updates_the_ratio_departs_from_1(straight):
    found = [answer for row in rows(straight("kl"), "rollouts.jsonl") for answer in row["completions"]]
    assert max(abs(ratio - 1) for answer in found for ratio in answer.get("ratios", [])) > 0.005
