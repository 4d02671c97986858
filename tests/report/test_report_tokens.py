"""Pins what a report makes of the figures by token: which fit, how they lie over harmless texts, how many a page holds;
the rule that decided; and where reward, judge and gold are at odds."""

from __future__ import annotations

import json
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import answer, group, lines, write_run
from test_report_page import MARKUP, REVERSED, seen, unpacked

from peerwise.report import build, tokens
from peerwise.report.folder import read_folder
from peerwise.report.inert import harmless
from peerwise.report.samples import groups, index
from peerwise.report.tokens import laid_over, trace_of

TRACED = {"token_lengths": [4, 2, 0], "logprobs": [-0.1, -2, 0], "entropies": [0.5, 1.5, 0.0], "ratios": [1, 1.1, 0.9]}


def found_in(rows, folder):
    run = read_folder(write_run(folder, rollouts=lines(rows)))
    return groups(run.rollouts, run.missing), run.missing


def test_figures_and_rule_reach_the_answer_and_stay_out_of_the_twin(tmp_path):
    (shown,), _ = found_in([group(3, [answer("say 42", 1.0, 0.5, rule="box, number", **TRACED)])], tmp_path)
    (first,) = shown["answers"]
    assert first["rule"] == "box, number"
    assert first["trace"] == TRACED
    assert "answers" not in index([shown])[0]


def test_a_run_of_an_earlier_version_has_neither(tmp_path):
    (shown,), missing = found_in([group(3, [answer("say 42", 1.0, 0.5)])], tmp_path)
    assert (shown["answers"][0]["rule"], shown["answers"][0]["trace"]) == (None, None)
    assert missing == []


@pytest.mark.parametrize(
    "spoilt",
    [
        {"token_lengths": "4, 2"},
        {"token_lengths": [4, -1, 0]},
        {"token_lengths": [4, True, 0]},
        {"token_lengths": [4.0, 2, 0]},
        {"token_lengths": []},
        {"logprobs": [-0.1]},
    ],
)
def test_figures_that_do_not_fit_are_left_out_and_counted(tmp_path, spoilt):
    answers = [answer("say 42", 1.0, 0.5, **TRACED), answer("say 41", 0.0, -0.5, **(TRACED | spoilt))]
    (shown,), missing = found_in([group(3, answers)], tmp_path)
    assert [found["trace"] is not None for found in shown["answers"]] == [True, False]
    assert missing == ["rollouts.jsonl: the tokens of 1 answers are not coloured (their figures do not fit)."]


@pytest.mark.parametrize("large", ["1e999", "-1e999", "9" * 400, "9" * 400 + ".5", "NaN", "true"])
def test_figures_that_are_not_finite_are_gaps_and_break_no_page(tmp_path, large):
    row = lines([group(3, [answer("say 42", 1.0, 0.5, **TRACED)])])
    row = row.replace('"logprobs": [-0.1, -2, 0]', f'"logprobs": [-0.1, {large}, 0]')
    row = row.replace('"advantage": 0.5', f'"advantage": {large}')
    page = seen(write_run(tmp_path, rollouts=row))
    ((trace,),) = json.loads(unpacked(page, "traces")).values()
    assert trace["logprobs"] == [-0.1, None, 0]
    assert json.loads(unpacked(page, "groups"))[0]["answers"][0]["advantage"] is None


def test_a_figure_that_is_no_number_is_a_gap_and_a_figure_that_is_no_list_is_not_there():
    found = trace_of({"token_lengths": [1, 1], "logprobs": [None, "x"], "entropies": 3, "ratios": [1, 2]})
    assert found == {"token_lengths": [1, 1], "logprobs": [None, None], "ratios": [1, 2]}


def test_more_tokens_than_a_page_holds_leave_every_other_group_and_it_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(tokens, "TOKENS_KEPT", 6)
    shown, missing = found_in([group(3, [answer("say 42", 1.0, 0.5, **TRACED)]) for _ in range(4)], tmp_path)
    assert [found["answers"][0]["trace"] is not None for found in shown] == [True, False, True, False]
    assert missing == ["Only one group in 2 has its tokens coloured; rollouts.jsonl has the figures of all."]


def test_lengths_follow_a_text_in_which_characters_are_spelled_out():
    # a, then a reversal, then a smiley, which is two units in JavaScript; then a line end cut in two, and a rest.
    laid = laid_over({"text": "a\u202e😀\r\nrest", "trace": {"token_lengths": [1, 1, 1, 1, 1, 0]}})
    assert laid["text"] == "a⟨U+202E⟩😀⟨U+000D⟩\nrest"
    assert laid["trace"]["token_lengths"] == [1, 8, 2, 8, 1, 0]


@given(st.lists(st.text(max_size=3), min_size=1, max_size=6), st.text(max_size=3))
def test_every_token_still_covers_its_own_characters(pieces, rest):
    laid = laid_over({"text": "".join(pieces) + rest, "trace": {"token_lengths": [len(piece) for piece in pieces]}})
    units = laid["text"].encode("utf-16-le")
    ends = [2 * end for end in accumulate(laid["trace"]["token_lengths"], initial=0)]
    covered = [units[start:end].decode("utf-16-le") for start, end in pairwise(ends)]
    assert covered == [harmless(piece) for piece in pieces]
    assert units[ends[-1] :].decode("utf-16-le") == harmless(rest)


def test_tokens_of_a_hostile_text_are_packed_apart_and_are_numbers_only(tmp_path):
    text = MARKUP + REVERSED
    attack = answer(text, 1.0, 0.5, rule=text) | {"token_lengths": [7] * 15, "logprobs": [text] * 15}
    page = seen(write_run(tmp_path, rollouts=lines([group(3, [attack])])))
    (traces,) = json.loads(unpacked(page, "traces")).values()
    assert traces[0]["logprobs"] == [None] * 15
    assert all(isinstance(length, int) for length in traces[0]["token_lengths"])
    (shown,) = json.loads(unpacked(page, "groups"))
    assert "trace" not in shown["answers"][0]
    assert "\u202e" not in shown["answers"][0]["text"] + shown["answers"][0]["rule"]


def test_only_figures_that_the_run_recorded_are_offered(tmp_path):
    partly = {key: TRACED[key] for key in ("token_lengths", "logprobs")}
    html = build(write_run(tmp_path, rollouts=lines([group(3, [answer("say 42", 1.0, 0.5, **partly)])]))).html
    text = html.read_text(encoding="utf-8")
    assert 'id="colouring"' in text
    assert 'value="logprobs"' in text
    assert 'value="ratios"' not in text
    without = build(write_run(tmp_path / "old")).html.read_text(encoding="utf-8")
    assert 'id="colouring"' not in without


def disagreeing(gold, *answers):
    run = group(3, list(answers), gold=gold)
    (found,) = groups([run | {"line": 1}], [])
    return {shown["text"]: shown["disagrees"] for shown in found["answers"]}, found["disagreement"]


def test_a_wrong_answer_that_earned_as_much_as_a_right_one_is_at_odds():
    told, count = disagreeing(
        "7",
        answer("right 7", 0.5, 0.5, correct=True),
        answer("wrong 8", 0.5, 0.5, correct=False),
        answer("less 9", 0.4, -1.0, correct=False),
    )
    assert told == {"right 7": [], "wrong 8": ["paid"], "less 9": []}
    assert count == 1


def test_the_same_answer_judged_in_two_ways_is_at_odds_on_both_sides():
    told, count = disagreeing(
        "x", answer("a", 1.0, 0.5, correct=True, extracted="7"), answer("b", 0.0, -0.5, correct=False, extracted="7")
    )
    assert (told, count) == ({"a": ["judged"], "b": ["judged"]}, 2)


@pytest.mark.parametrize(
    ("gold", "text", "expected"),
    [
        ("42", "so it is 42", ["gold"]),
        ("42", "so it is **$42$**.\n", ["gold"]),
        ("1234", "that makes 1,234", ["gold"]),
        ("\\frac{1}{2}", "it is \\boxed{\\frac{1}{2}}", ["gold"]),
        ("42", "so it is 142", []),
        ("42", "so it is 3.42", []),
        ("42", "so it is -42", []),
        ("42", "42 apples and 7 pears", []),
        ("", "so it is", []),
        (None, "so it is None", []),
        ("x" * 61, "x" * 61, []),
    ],
)
def test_an_answer_that_counts_as_wrong_and_ends_with_the_gold_is_at_odds(gold, text, expected):
    told, _ = disagreeing(gold, answer(text, 0.0, 0.0, correct=False, extracted=None))
    assert told == {text: expected}


def test_an_answer_whose_reward_failed_is_at_odds_with_nothing():
    told, count = disagreeing("7", answer("is 7", 0.0, 0.0, correct=False, failed="timed out"), answer("7", 0.0, 1.0))
    assert (told["is 7"], count) == ([], 1)
