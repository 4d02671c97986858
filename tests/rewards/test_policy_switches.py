"""Pins each switch of the policy: what it decides, what the default is, and that docs/grading.md names it."""

from dataclasses import fields
from pathlib import Path

import pytest

from peerwise.rewards.equal import equal
from peerwise.rewards.extract import extract
from peerwise.rewards.math import grade
from peerwise.rewards.policy import Policy

DOCS = Path(__file__).parents[2] / "docs" / "grading.md"


@pytest.mark.parametrize(
    ("switch", "one", "other"),
    [
        ("percent_as_figure", "25%", "25"),
        ("rounded_decimals", "0.333", "1/3"),
        ("rounded_decimals", "1.414", "\\sqrt{2}"),
        ("degrees_as_radians", "60^\\circ", "\\frac{\\pi}{3}"),
        ("convert_units", "120 cm", "1.2 m"),
        ("convert_units", "90 minutes", "1.5 hours"),
        ("convert_units", "2平方米", "20000平方厘米"),
        ("ratio_as_fraction", "3:4", "3/4"),
        ("scaled_ratios", "6:8", "3:4"),
        ("bare_base", "52_8", "52"),
        ("any_form", "(x+1)^2", "x^2+2x+1"),
        ("discount_as_factor", "八折", "0.8"),
        ("discount_as_factor", "八五折", "0.85"),
        ("either_vector", "\\begin{pmatrix}1&2\\end{pmatrix}", "\\begin{pmatrix}1\\\\2\\end{pmatrix}"),
        ("log_is_natural", "\\log x", "\\ln x"),
        ("renamed_constants", "x^2+C", "x^2+K"),
    ],
)
def test_a_switch_decides_its_case_and_no_default_forgets_it(switch, one, other):
    for on in (True, False):
        assert equal(one, other, policy=Policy(**{switch: on})) is on
        assert equal(other, one, policy=Policy(**{switch: on})) is on
    assert equal(one, other) is getattr(Policy(), switch)


@pytest.mark.parametrize(
    ("switch", "one", "other"),
    [
        ("rounded_decimals", "0.334", "1/3"),
        ("rounded_decimals", "0.3", "1/3"),
        ("convert_units", "120 cm", "1.3 m"),
        ("convert_units", "120 cm", "1.2 kg"),
        ("degrees_as_radians", "60^\\circ", "\\frac{\\pi}{6}"),
        ("scaled_ratios", "6:8", "4:3"),
        ("renamed_constants", "x^2+C", "x^3+K"),
        ("discount_as_factor", "八折", "0.7"),
    ],
)
def test_a_switch_opens_no_more_than_its_case(switch, one, other):
    assert not equal(one, other, policy=Policy(**{switch: True}))


def test_irrational_values_are_compared_to_the_relative_tolerance():
    assert equal("\\sqrt{11}", "3.31662479035540") and not equal("\\pi", "3.14159265")
    assert equal("\\pi", "3.14159265", policy=Policy(relative_tolerance=1e-8))
    assert not equal("\\sqrt{11}", "3.31662479035", policy=Policy(relative_tolerance=1e-13))


def test_the_switches_of_extraction():
    open_thought = "<think>so \\boxed{8}"
    assert extract(open_thought).answer is None
    assert extract(open_thought, policy=Policy(open_reasoning=True)).answer == "8"
    quoted = "\\boxed{8}. It had to be in \\boxed{}."
    assert extract(quoted).answer == "8"
    assert extract(quoted, policy=Policy(empty_box_withdraws=True)).rule == "hollow"
    more = "#### 8\n\nQuestion: and now?\n#### 9"
    assert extract(more).answer == "8"
    assert extract(more, policy=Policy(first_question=False)).answer == "9"
    assert grade("\\boxed{8} and", "8", truncated=True).right
    assert grade("\\boxed{8} and", "8", truncated=True, policy=Policy(cut_off_answers=False)).outcome == "unreadable"


def test_every_switch_and_its_default_is_in_the_documentation():
    text = DOCS.read_text(encoding="utf-8")
    for field in fields(Policy):
        assert f"| `{field.name}` | {str(field.default).lower()} |" in text, field.name
