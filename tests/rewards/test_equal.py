"""Pins equality of answers: exact for numbers, by shape for structures, symmetric, safe, and never paid for nothing."""

import json
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peerwise.rewards import asking
from peerwise.rewards.equal import compare, equal, readable
from peerwise.rewards.math import judge
from peerwise.sandbox.pool import WorkerFailed

CASES = Path(__file__).parents[2] / ".." / "shared" / "cases" / "verify.jsonl"
AGREEMENT_FLOOR = 189
"""Of 189. The table was at hand when this was written: a floor against decay, no estimate for unseen cases."""


@pytest.fixture
def no_worker(monkeypatch):
    def refuse():
        raise AssertionError("a worker was asked")

    monkeypatch.setattr(asking, "_workers", refuse)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("0.75", "\\frac{3}{4}"), ("7,500", "7500"), ("25%", "0.25"), ("25%", "25"), ("$5", "5 dollars"),
        ("5 apples", "5"), ("2 feet", "2 ft"), ("x=5", "5"), ("\\text{Friday}", "friday"), ("{2, 1}", "1, 2"),
        ("1, 2", "2 and 1"), ("x=1或x=-2", "x=-2 \\text{ or } x=1"), ("(C)", "c"), ("C: red", "C"), ("A、C", "CA"),
        ("\\pm 3", "3, -3"), ("2\\le x<5", "[2,5)"), ("x>3", "(3,\\infty)"), ("2 \\pi", "2\\pi"), ("50％", "1/2"),
        ("\\varnothing", "\\{\\}"), ("(0.5, 3)", "(\\frac12, 3)"),
        ("\\begin{pmatrix}1&0.5\\end{pmatrix}", "\\begin{bmatrix}1&\\frac12\\end{bmatrix}"),
    ],
)  # fmt: skip
def test_equal_without_asking_a_worker(one, other, no_worker):
    assert equal(one, other) and equal(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1,2", "12"), ("1 2", "12"), ("4", "34"), ("12 m", "12 cm"), ("12分钟", "12小时"), ("0.333", "1/3"),
        ("3e-7", "4e-7"), ("12345678901234567891", "12345678901234567890"), ("1:30", "10:30"), ("101_3", "101_2"),
        ("Clara", "Carla"), ("奇数", "偶数"), ("(1,2)", "(2,1)"), ("[2,5)", "(2,5)"), ("343", "125 and 343"),
        ("2, 9", "2"), ("3 or 8", "8"), ("A、C", "ABC"), ("2万", "2"), ("50%", "5"), ("-8", "8"),
        ("\\begin{pmatrix}1&2\\end{pmatrix}", "\\begin{pmatrix}1\\\\2\\end{pmatrix}"),
    ],
)  # fmt: skip
def test_different_without_asking_a_worker(one, other, no_worker):
    assert not equal(one, other) and not equal(other, one)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("\\sqrt{12}", "2\\sqrt{3}", True),
        ("2x+3", "3+2x", True),
        ("x+1", "y+1", False),
        ("4x-14y+18=0", "2x-7y+9=0", True),
        ("2x-7y+9=0", "2x+5y+3=0", False),
        ("5\\sqrt(3)", "5", False),
        ("\\sqrt{11}", "3.3166247903554", True),
        ("\\frac{1}{2003!}", "\\frac{1}{2007!}", False),
        ("{\\sqrt{12}, 1}", "{1, 2\\sqrt{3}}", True),
    ],
)
def test_expressions_are_compared_symbolically_the_same_both_ways(one, other, same):
    assert equal(one, other) is equal(other, one) is same


@pytest.mark.parametrize("nothing", [None, "", " ", "$$", "."])
def test_nothing_equals_nothing_not_even_itself(nothing):
    assert not equal(nothing, nothing)
    assert not equal(nothing, "5") and not equal("5", nothing)


@given(st.fractions(max_denominator=1000), st.fractions(max_denominator=1000))
def test_two_rationals_are_equal_exactly_when_their_values_are(one, other):
    forms = [f"{one.numerator}/{one.denominator}", f"\\frac{{{one.numerator}}}{{{one.denominator}}}"]
    for form in forms:
        assert equal(form, f"{other.numerator}/{other.denominator}") == (one == other)
        assert equal(form, str(one))


@given(st.integers(-(10**6), 10**6), st.integers(-(10**6), 10**6))
def test_two_integers_in_any_two_notations_are_equal_exactly_when_they_are_one(a, b):
    written = [str, lambda n: f"{n:,}", lambda n: f"{n}.0", lambda n: f"${n}$", lambda n: f"{n} pens"]
    assert all(equal(w(a), v(b)) == (a == b) for w in written for v in written)


@settings(deadline=None)
@given(st.text(alphabet="0123456789.,/-%$ ", max_size=12), st.text(alphabet="0123456789.,/-%$ ", max_size=12))
def test_number_like_texts_are_compared_symmetrically_and_without_an_exception(one, other):
    assert equal(one, other) == equal(other, one)


def test_a_power_tower_ends_at_the_deadline_is_counted_and_the_next_answer_is_graded(caplog):
    assert equal("9^{9^{9^{9}}}", "9^{9^{9^9}}")
    assert equal("\\sqrt{50}", "5\\sqrt{2}")
    before, started = asking.timeouts(), time.monotonic()
    with caplog.at_level(logging.DEBUG):
        verdict = compare("9^{9^{9^{9}}}", "81")
    assert time.monotonic() - started < 5
    assert (verdict.same, verdict.rule, verdict.timed_out) == (False, "symbolic", True)
    assert asking.timeouts() == before + 1
    assert "counted as different" in caplog.text and "was killed" in caplog.text
    assert equal("\\sqrt{98}", "7\\sqrt{2}")


def test_a_list_of_power_towers_costs_one_deadline_and_not_one_each():
    tower = "9^{9^{9^{%d}}}"
    started = time.monotonic()
    assert not equal(", ".join(tower % n for n in range(11, 17)), ", ".join(tower % n for n in range(21, 27)))
    assert time.monotonic() - started < 10


def test_answers_are_compared_from_any_thread_in_order_and_all_of_them():
    pairs = [(f"\\sqrt{{{n}}}\\cdot\\sqrt{{{n}}}", str(n + n % 2)) for n in range(2, 14)]
    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(lambda pair: equal(*pair), pairs))
    assert found == [n % 2 == 0 for n in range(2, 14)]


def test_a_worker_that_fails_means_different_and_is_counted(monkeypatch):
    class Broken:
        def run(self, *request):
            raise WorkerFailed("MemoryError")

    monkeypatch.setattr(asking, "_workers", Broken)
    before = asking.failures()
    assert not equal("\\sqrt{3}+x", "x+\\sqrt{5}")
    assert asking.failures() == before + 1


def test_code_in_an_answer_is_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert not equal("__import__('os').system('touch pwned')", "x+1")
    assert not list(tmp_path.iterdir())


def test_a_gold_is_readable_unless_it_is_empty_or_prose():
    assert all(map(readable, ["5", "\\frac{1}{2}", "C", "x+1", "Friday", "全体实数"]))
    prose = "First we add the numbers of both boxes and then we see that each of them holds as many as before."
    assert not any(map(readable, ["", " ", "$", prose, "1" * 5000]))


def test_judge_extracts_once_and_reports_what_it_read():
    assert judge("so \\boxed{\\frac{1}{2}}", "0.5") == (True, "\\frac{1}{2}")
    assert judge("so \\boxed{3}", "4") == (False, "3")
    assert judge("", "4") == (False, None)


def cases():
    return [json.loads(line) for line in CASES.read_text(encoding="utf-8").splitlines()]


def verdict(case):
    ask = judge if case["kind"] == "completion" else equal
    found = ask(case["prediction"], case["gold"])
    return found[0] if isinstance(found, tuple) else found


@pytest.mark.skipif(not CASES.is_file(), reason="needs shared/cases/verify.jsonl")
def test_the_public_table_is_agreed_with():
    wrong = [case["id"] for case in cases() if verdict(case) != case["equal"]]
    assert 189 - len(wrong) >= AGREEMENT_FLOOR, wrong


@pytest.mark.skipif(not CASES.is_file(), reason="needs shared/cases/verify.jsonl")
def test_no_plain_number_of_the_table_is_called_equal_to_another_one():
    from peerwise.rewards.numbers import parse

    golds = sorted({case["gold"] for case in cases() if parse(case["gold"]) is not None})
    values: dict[str, Fraction] = {gold: parse(gold) for gold in golds}
    for one in golds:
        for other in golds:
            if abs(values[one]) not in (abs(values[other]), abs(values[other]) * 100, abs(values[other]) / 100):
                assert not equal(one, other), (one, other)
