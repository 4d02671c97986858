"""Pins which answer is read out of a completion: the order of precedence, in time linear in the text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peerwise.rewards.extract import extract
from peerwise.rewards.math import grade
from peerwise.sandbox.pool import Pool


@pytest.mark.parametrize(
    ("text", "answer", "rule"),
    [
        ("6 * 7 = 42\n\\boxed{42}", "42", "box"),
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}", "box"),
        ("\\boxed{\\left\\{1, 2\\right\\}}", "\\left\\{1, 2\\right\\}", "box"),
        ("First \\boxed{8}. No, I was wrong: \\boxed{9}.", "9", "box"),
        ("\\boxed{3}, \\boxed{5} and \\boxed{8}", "3, 5, 8", "box"),
        ("Put it in \\boxed{}. So \\boxed{4}", "4", "box"),
        ("\\boxed{\\boxed{6}}", "6", "box"),
        ("It is $\\boxed 7$.", "7", "box"),
        ("<answer>3</answer> no <answer> 4 </answer>", "4", "tag"),
        ("<answer>\\boxed{5}</answer>", "5", "tag"),
        ("\\boxed{1} <answer>2</answer>", "2", "tag"),
        ("<think>\\boxed{1}</think>So \\boxed{2}", "2", "box"),
        ("1+1=2</think>\\boxed{2}", "2", "box"),
        ("3 + 4 = 7\n#### 7", "7", "marker"),
        ("####36.", "36", "marker"),
        ("#### 12 and that is all I can say", "12", "marker"),
        ("一共七个。\n### 答案: [7]", "7", "marker"),
        ("#### 5\n\nQuestion: and now?\n#### 9", "5", "marker"),
        ("#### Step 1: add 3\nThe answer is 7.", "7", "statement"),
        ("The answer is 7.", "7", "statement"),
        ("The answer is 12.5 meters.", "12.5 meters", "statement"),
        ("Final Answer: **58**", "58", "statement"),
        ("Answer: \\(13\\)", "13", "statement"),
        ("Answer: m + n = 100 + 7 = 107", "107", "statement"),
        ("So the answer is that he has 9 of them.", "9", "statement"),
        ("The answer is 5. Wait. The answer is 6.", "6", "statement"),
        ("The answer is B because A is too small.", "B", "statement"),
        ("答案是48。", "48", "statement"),
        ("答案：[48]", "48", "statement"),
        ("答案不是5，而是7。", "7", "statement"),
        ("答：一共有48个苹果。", "48", "statement"),
        ("A项错误，故选C。", "C", "statement"),
        ("He has **58** left.", "58", "bold"),
        ("He sold 96 kites, all told.", "96", "number"),
        ("It costs $1,234.50 in total", "$1,234.50", "number"),
        ("It fell to -3", "-3", "number"),
        ("It is 5-3", "3", "number"),
        ("There are 9.\n1. stars\n2. rings", "9", "number"),
    ],
)
def test_the_answer_and_the_rule_it_is_found_by(text, answer, rule):
    found = extract(text)
    assert (found.answer, found.rule) == (answer, rule)


@pytest.mark.parametrize(
    "text",
    [
        "One part is \\boxed{8}. The total is \\boxed{",
        "\\boxed{8} and \\boxed{\\frac{1}{2}",
        "#### 8\nwhich is \\boxed{8",
        "<answer>8</answer><answer>9",
        "<answer></answer> The answer is 8.",
        "<think>so \\boxed{8}",
        "<think>The answer is 8.</think>",
        " \n\t",
        "I do not know",
    ],
)
def test_a_cut_off_or_empty_form_is_no_answer_and_nothing_before_it_counts(text):
    assert extract(text).answer is None


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("so \\boxed{8}", "read"),
        ("about 8", "read"),
        ("so \\boxed{", "unreadable"),
        ("\\boxed{7} and \\boxed", "unreadable"),
        ("<answer>8", "unreadable"),
        ("<answer> </answer>", "unreadable"),
        ("7 and\n####", "unreadable"),
        ("", "absent"),
        ("I do not know", "absent"),
        ("<think>\\boxed{8}", "absent"),
    ],
)
def test_an_answer_is_read_unreadable_or_absent(text, outcome):
    assert extract(text).outcome == outcome


def test_prose_in_the_place_of_an_answer_is_unreadable_unless_it_is_the_gold():
    prose = "<answer>" + "we have to look at this in quite another way before we know " * 2 + "</answer>"
    assert grade(prose, "8").outcome == "unreadable"
    assert grade("<answer>9</answer>", "8").outcome == "read"
    assert grade("", "8").outcome == "absent"


def test_the_last_number_is_taken_only_if_allowed():
    assert extract("about 8 of them").answer == "8"
    assert extract("about 8 of them", last_number=False).answer is None
    assert extract("\\boxed{8}", last_number=False).answer == "8"


@given(st.text(alphabet="0123456789.,{}\\boxed$*#<>answerthik/ \n答案是：-+=%ABI", max_size=200))
def test_any_text_is_read_without_an_exception(text):
    found = extract(text)
    assert (found.answer is None) == (found.rule in ("none", "empty", "cut off", "hollow"))
    assert found.answer is None or found.answer.strip()


UNITS = ["{", "}", "\\boxed{", "\\boxed{1}", "the ", "the answer is ", "1", "1,", "111,", " ", "\n", "#", "*", "\\"]
UNITS += [
    "<think>",
    "<answer>",
    "1=1 ",
    "1/",
    "\nQuestion",
    "答案不是",
    "answer to ",
    "answer          ",
    "\\frac{",
    "$",
    ".",
    " .",
    "\\text{",
    "x=",
    "选A，",
]


@pytest.fixture(scope="module")
def pool():
    pool = Pool(1)
    yield pool
    pool.close()


@pytest.mark.parametrize("unit", UNITS)
def test_degenerate_repetition_is_read_in_linear_time(unit, pool):
    """Linear is well under a second here; a quadratic scan of so much text is hours away from the deadline."""
    text = unit * (600_000 // len(unit))
    correct, _ = pool.run("peerwise.rewards.math:judge", (text, "6"), 30.0)
    assert correct is False
    assert pool.run("peerwise.rewards.equal:equal", (text, "x+6"), 30.0) is False
