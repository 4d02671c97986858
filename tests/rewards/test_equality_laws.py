"""Pins the laws of grading on real golds and on any text: reflexive, symmetric, blind to typography, never raising."""

import csv
import json
import re
from fractions import Fraction
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peerwise.rewards.equal import equal, readable
from peerwise.rewards.extract import extract
from peerwise.rewards.math import judge
from peerwise.rewards.statements import last_statement

DATA = Path(__file__).parents[2] / ".." / "shared" / "data"
FULL_WIDTH = {code: code + 0xFEE0 for code in range(0x21, 0x7F)}
WRAPPERS = ("{}", "${}$", " {} ", "{}.", "{}。", "**{}**", "\\({}\\)", "$${}$$", "\\text{{{}}}")


def rows(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@cache
def golds(name):
    folder = DATA / name
    if not folder.is_dir():
        pytest.skip(f"needs shared/data/{name}")
    if name == "gsm8k":
        found = [row["answer"].rpartition("####")[2].strip() for row in rows(folder / "test.jsonl")]
    elif name == "cmath":
        found = [str(row["golden"]) for row in rows(folder / "dev.jsonl")]
    elif name == "mgsm":
        with (folder / "test_zh.tsv").open(encoding="utf-8", newline="") as file:
            found = [line[1] for line in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]
    elif name == "olymmath":
        found = [str(row["answer"]) for path in sorted(folder.glob("*.jsonl")) for row in rows(path)]
    else:
        found = [str(row["answer_value"]) for row in rows(folder / "test.jsonl")]
    return sorted(set(found))


SETS = ("gsm8k", "cmath", "mgsm", "olymmath", "tal_scq5k_cn")


@pytest.mark.parametrize("name", SETS)
def test_every_gold_equals_itself_however_it_is_wrapped(name):
    assert golds(name)
    for gold in golds(name):
        assert readable(gold), gold
        assert all(
            equal(wrapper.format(gold), gold) for wrapper in WRAPPERS if "{" not in gold or "text" not in wrapper
        )


@pytest.mark.parametrize("name", SETS)
def test_every_gold_is_read_out_of_a_box_and_a_tag(name):
    for gold in golds(name):
        assert judge(f"So we are done: $\\boxed{{{gold}}}$.", gold)[0], gold
        assert judge(f"<think>hm</think><answer>{gold}</answer>", gold)[0], gold


@pytest.mark.parametrize("name", ["gsm8k", "cmath", "mgsm"])
def test_numbers_are_the_same_in_full_width_and_after_a_statement(name):
    for gold in golds(name):
        assert equal(gold.translate(FULL_WIDTH), gold), gold
        assert judge(f"The answer is {gold}.", gold)[0] and judge(f"答案是{gold}。", gold)[0], gold


@pytest.mark.parametrize("name", ["gsm8k", "cmath", "mgsm", "tal_scq5k_cn"])
def test_no_two_golds_of_different_value_are_equal(name):
    kept = [gold for gold in golds(name) if name == "tal_scq5k_cn" or re.fullmatch(r"[\d,./-]+", gold)][:150]
    values = {gold: gold if name == "tal_scq5k_cn" else Fraction(gold.replace(",", "")) for gold in kept}
    for one in kept:
        for other in kept:
            assert equal(one, other) is (values[one] == values[other]), (one, other)


ROW = (
    "25%|0.25|25|1/4|x=5|5|5 cm|5 m|{1,2}|1,2|(1,2)|C|(C) 24|24|Friday|3:30|3:30 pm|15:30|x>3|(3,\\infty)|三分之一|1/3"
    "|5元|¥5|1:2|1/2|A、C|AC||\\pm 5|2021-03-05|March 5, 2021|{25%,25}|{25,0.25}|5 apples|5 red apples"
)
ANSWERS = st.sampled_from(ROW.split("|"))


@given(ANSWERS, ANSWERS)
@settings(deadline=None)
def test_equality_is_symmetric(one, other):
    assert equal(one, other) is equal(other, one)


ALPHABET = "0123456789.,:;%$/\\-+=<>(){}[]^_ \nxeiAC一二十百万亿点分之半负元千米年月日时℃°²½√π∞≤⅓、，。（）＝５｛"


@given(st.text(alphabet=ALPHABET, max_size=24), st.text(alphabet=ALPHABET, max_size=24))
@settings(deadline=None, max_examples=60)
def test_any_two_texts_are_compared_symmetrically_and_without_an_exception(one, other):
    assert equal(one, other) is equal(other, one)


@given(st.text(max_size=80))
@settings(deadline=None)
def test_any_text_is_read_and_a_text_equals_itself_or_is_nothing(text):
    extract(text)
    last_statement(text)
    assert equal(text, text) or not text.strip() or not readable(text)


@given(st.integers(-(10**12), 10**12), st.sampled_from(WRAPPERS), st.sampled_from(WRAPPERS))
def test_wrapping_changes_no_number(n, one, other):
    assert equal(one.format(n), other.format(f"{n:,}"))
    assert not equal(one.format(n), other.format(n + 1))


@given(st.fractions(min_value=-1000, max_value=1000, max_denominator=60), st.integers(0, 3))
def test_blanks_and_sizes_change_no_fraction(value, blanks):
    gap = " " * blanks
    written = f"{gap}\\left(\\dfrac{{{value.numerator}}}{gap}{{{value.denominator}}}{gap}\\right)"
    assert equal(f"{value.numerator}{gap}/{gap}{value.denominator}", str(value))
    assert extract(f"\\boxed{{{written}}}").answer == written.strip()
