"""Pins the formula of each part of a rubric, with values worked by hand, and that no text breaks or delays one."""

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peerwise.records import Completion, Problem
from peerwise.rewards import language, parts, shape
from peerwise.rewards.parts import PARTS, Judged


def judged(text, *, correct=False, tokens=1, longest=None, question="6 * 7 = ?", **meta):
    problem = Problem(id="p", task="t", messages=({"role": "user", "content": question},), answer="42", meta=meta)
    answer = Completion(token_ids=(7,) * tokens, logprobs=(0.0,) * tokens, finish="stop", text=text)
    return Judged(problem=problem, completion=answer, correct=correct, longest=longest)


WHOLE = "1 + 1 = 2\n2 + 2 = 4\n4 + 4 = 8\n\\boxed{8}"
"""In form, with all steps."""


@pytest.mark.parametrize(
    ("text", "correct", "expected"),
    [
        (WHOLE, True, 1.0),  # 1 + 0.3 + 0.2, capped
        ("8", True, 1.0),
        (WHOLE, False, 0.5),  # 0 + 0.3 + 0.2
        ("\\boxed{8}", False, 0.3),
        ("1 + 1 = 2\n2 + 2 = 4\n4 + 4 = 8", False, 0.2),
        ("1 + 1 = 2", False, 0.2 / 3),
        ("8", False, 0.0),
        ("", False, 0.0),
    ],
)
def test_shaped_adds_form_and_steps_to_the_base_and_is_capped_at_one(text, correct, expected):
    assert parts.shaped(judged(text, correct=correct)) == pytest.approx(expected)


def test_shaped_pays_a_wrong_answer_for_intermediate_values_and_never_like_a_right_one():
    # Half of two values: 0.25; all of both with form and steps: 0.5 + 0.3 + 0.2, held at 0.9.
    assert parts.shaped(judged("it is 2", intermediate=[2, 5])) == pytest.approx(0.25)
    assert parts.shaped(judged(WHOLE, intermediate=[2, 4])) == pytest.approx(0.9)
    assert parts.shaped(judged("no", correct=True, intermediate=[2, 4])) == 1.0


@pytest.mark.parametrize(
    ("values", "text", "expected"),
    [
        ([12, 30], "first 12, then 30", 0.5),
        (["12", "30", "7", "9"], "12 and 9", 0.25),
        ([4], "34 and 4.5 and 14", 0.0),
        ([1200.0], "1,200 apples", 0.5),
        (["0.50"], "half is .5, that is 0.5", 0.5),
        ([-3], "x = -3", 0.5),
        (["3/4"], "13/40", 0.0),
        (["3/4"], "so 3/4 of it", 0.5),
        (["x + 1"], "then  X +\n1 follows", 0.5),
        (["三角形"], "这是一个三角形。", 0.5),
        ("12", "12", 0.5),
        ([""], "anything", 0.0),
        ([12], "", 0.0),
    ],
)
def test_intermediate_pays_half_for_the_share_of_values_found(values, text, expected):
    assert parts.intermediate(judged(text, intermediate=values)) == pytest.approx(expected)


def test_intermediate_does_not_apply_where_the_problem_gives_no_values():
    assert parts.intermediate(judged("12")) is None
    assert parts.intermediate(judged("12", intermediate=[])) is None


@pytest.mark.parametrize(
    ("tokens", "expected"), [(0, 0.0), (80, 0.0), (85, -0.25), (90, -0.5), (100, -1.0), (150, -1.0)]
)
def test_length_costs_from_four_fifths_of_the_limit_on(tokens, expected):
    assert parts.length(judged("x", tokens=tokens, longest=100)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("correct", "tokens", "expected"),
    [
        (True, 0, 2.0),
        (True, 50, 1.5),
        (True, 25, 1 + (1 + math.sqrt(0.5)) / 2),
        (False, 0, -10.0),
        (False, 50, -5.0),
        (False, 75, -5 * (1 - math.sqrt(0.5))),
        (True, 100, -10.0),
        (False, 101, -10.0),
    ],
)
def test_cosine_wants_right_answers_short_and_wrong_ones_long(correct, tokens, expected):
    assert parts.cosine(judged("x", correct=correct, tokens=tokens, longest=100)) == pytest.approx(expected)


def test_repetition_is_minus_the_share_of_runs_that_occurred_before():
    letters = "a b c d e f g h i j"
    assert shape.repetition(letters) == 0.0
    # 20 words hold 13 runs of 8; those of the second half that lie within it, 3, occurred before.
    assert shape.repetition(f"{letters} {letters}") == pytest.approx(-3 / 13)
    assert shape.repetition("too short") is None


@pytest.mark.parametrize("loop", ["the " * 200, "重复" * 100, "1" * 400, "a" * 5000, "1 + 1 = 2\n" * 80])
def test_a_loop_costs_nearly_everything_in_any_script(loop):
    assert shape.repetition(loop) < -0.9


def test_an_ordinary_solution_repeats_nothing():
    solution = (
        "Tom has 3 boxes with 12 apples each, so he has 3 * 12 = 36 apples. He gives away a quarter of them, "
        "which is 36 / 4 = 9 apples. That leaves him with 36 - 9 = 27 apples.\n\\boxed{27}"
    )
    assert shape.repetition(solution) == 0.0


@pytest.mark.parametrize(
    ("prompt", "text", "expected"),
    [
        ("小明有三个苹果，吃了一个", "三减一等于二", 1.0),
        ("小明有三个苹果，吃了一个", "three minus one is two", 0.0),
        ("How many apples are left?", "还剩两个", 0.0),
        ("How many apples are left?", "two are left 两个", 3 / 5),
        ("小明有三个苹果。 Put the final answer in \\boxed{}.", "所以 \\boxed{2}", 1.0),
        ("Сколько яблок осталось?", "Осталось два apples", 2 / 3),
        ("How many apples?", "\\boxed{2}", None),
        ("6 * 7 = ?", "forty two", None),
        ("How many apples?", "```python\nprint(2)\n```", None),
    ],
)
def test_language_is_the_share_of_words_in_the_script_of_the_prompt(prompt, text, expected):
    found = language.consistency(prompt, text)
    assert found == (expected if expected is None else pytest.approx(expected))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("首先算 3 个。\n其次加 4。\n最后得到结果", 1.0),
        ("步骤一：相加\n因为相等", 2 / 3),
        ("First, add.\nThen, double.", 2 / 3),
        ("1. add them\n2. double them\n3. stop", 1.0),
    ],
)
def test_steps_are_marked_in_chinese_and_english(text, expected):
    assert shape.steps(text) == pytest.approx(expected)


RANGES = {
    "correct": (0, 1), "levels": (-1, 1), "shaped": (0, 1), "intermediate": (0, 0.5), "format": (0, 1),
    "steps": (0, 1), "length": (-1, 0), "cosine": (-10, 2), "repetition": (-1, 0), "language": (0, 1),
}  # fmt: skip


@given(st.text(max_size=200), st.booleans(), st.integers(0, 300))
def test_every_part_of_any_text_is_in_its_range_or_does_not_apply(text, correct, tokens):
    answer = judged(text, correct=correct, tokens=tokens, longest=200, question="几个 apples?", intermediate=["1", 2.5])
    for name, (low, high) in RANGES.items():
        value = PARTS[name].value(answer)
        assert value is None or low <= value <= high, name


@pytest.mark.parametrize("text", ["the " * 20_000, "{" * 5_000, "\\boxed{" * 3_000, "1," * 20_000, "```" * 5_000])
def test_no_part_is_slow_on_a_degenerate_text(text):
    answer = judged(text, longest=100, intermediate=[1, "x" * 50])
    started = time.perf_counter()
    for name in RANGES:
        PARTS[name].value(answer)
    assert time.perf_counter() - started < 5
