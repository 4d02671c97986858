"""Pins what is found in a set of problems: golds, solutions, leaks, pass rates; that each problem is counted once; and
when it is too much to go on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peerwise.errors import DataError, RequestError
from peerwise.records import Problem
from peerwise.tasks import inspect, prompts, splits
from peerwise.tasks.rows import STATEMENT_ADDED
from peerwise.tasks.source import EXAMPLES, Example, ProblemSet, merged

BOXED = prompts.get("boxed")


def judge(text, gold, *, last_number=True):
    """The last box, or else the last word that is a number: enough of a judge for these tests."""
    if "\\boxed{" in text:
        answer = text.rpartition("\\boxed{")[2].partition("}")[0]
    else:
        numbers = [word.strip(".$") for word in text.split() if word.strip(".$").isdigit()]
        answer = numbers[-1] if numbers and last_number else None
    return answer == gold != "nan", answer


GRADING = inspect.Grading(template=BOXED, judge=judge, verifiable=lambda p: len(p.answer) < 20)


def problem(question="q?", answer="1", solution=None, line=1, **meta):
    return Problem(
        id=f"t/{line}",
        task="t",
        messages=BOXED.ask(question),
        answer=answer,
        solution=solution,
        meta={"line": line, **meta},
    )


def a_set(*problems):
    return ProblemSet(problems=problems)


def test_golds_that_cannot_be_graded_are_counted_apart():
    found = inspect.graded(
        a_set(problem(line=1), problem(answer="nan", line=2), problem(answer="because of the weather", line=3)), GRADING
    )
    assert [p.id for p in found.problems] == ["t/1"]
    assert found.dropped == {"unequal": 1, "unverifiable": 1}
    assert found.examples["unequal"] == (Example(2, "t/2, gold 'nan'"),)


@pytest.mark.parametrize(
    ("solution", "answer", "found"),
    [
        ("So \\boxed{5}.", "4", "5"),
        ("3 + 2 = 5", "4", "5"),
        ("So \\boxed{4}.", "4", None),
        ("First 4 of them and then 9 more in 2 days", "4", None),  # the gold stands in it
        ("It takes 1 000 g, that is 2 bags of sugar and 3 of salt", "1,000", None),
        ("\\boxed{5}? No: 2 + 2 = 4", "4", None),  # its last number is the gold
        ("By symmetry.", "4", None),
        (None, "4", None),
    ],
)
def test_a_solution_that_comes_to_another_answer_disagrees(solution, answer, found):
    checked = inspect.graded(a_set(problem(solution=solution, answer=answer)), GRADING)
    assert checked.dropped == ({"disagreeing": 1} if found else {})
    if found:
        assert f"solution says '{found}'" in checked.examples["disagreeing"][0].note


def test_a_statement_that_loading_added_speaks_for_nobody():
    stated = "3 + 2 = 5\n\\boxed{4}"
    added = problem(solution=stated, answer="4", **{STATEMENT_ADDED: True})
    assert inspect.graded(a_set(added), GRADING).dropped == {"disagreeing": 1}
    assert inspect.graded(a_set(problem(solution=stated, answer="4")), GRADING).dropped == {}


# 14 words, and the same with another beginning and end: 13 and 12 in a row are alike.
TEST = "every morning the old baker puts nine small loaves into each of seven baskets"
NEAR = "today the old baker puts nine small loaves into each of seven baskets. Why?"
THIRTEEN = "today morning the old baker puts nine small loaves into each of seven baskets. Why?"


@pytest.mark.parametrize(("question", "near"), [(NEAR, False), (THIRTEEN, True), (TEST.upper() + " then?", True)])
def test_thirteen_words_in_a_row_are_near_and_twelve_are_not(question, near):
    found = inspect.without_near(a_set(problem(question, line=3)), [problem(TEST, line=8)])
    assert found.dropped == ({"near-overlap": 1} if near else {})
    if near:
        assert found.examples["near-overlap"] == (Example(3, "like t/8"),)


def test_chinese_is_compared_by_runs_of_nineteen_characters():
    test = [problem("甲乙丙丁戊己庚辛壬癸子丑寅卯辰巳午未申")]
    near = problem("问：甲乙丙丁戊己庚辛壬癸子丑寅卯辰巳午未申，几个？")
    eighteen = problem("问：甲乙丙丁戊己庚辛壬癸子丑寅卯辰巳午未，几个？")
    assert inspect.without_near(a_set(near), test).dropped == {"near-overlap": 1}
    assert inspect.without_near(a_set(eighteen), test).dropped == {}


def test_words_that_many_questions_share_are_boilerplate():
    # COMMON questions together may share a run of words; one more and it says nothing.
    trained = [problem(f"{TEST} {i}?", line=i) for i in range(inspect.COMMON)]
    few = inspect.without_near(a_set(*trained[:-1]), [problem(TEST)])
    assert few.dropped == {"near-overlap": inspect.COMMON - 1}
    assert inspect.without_near(a_set(*trained), [problem(TEST)]).dropped == {}


def test_pass_rates_at_the_bounds_are_too_hard_and_too_easy():
    values = [0.0, 0.1, 0.5, 0.9, 1.0, "0.4", "many", None, -0.1]
    given = a_set(*(problem(line=i, rate=value) for i, value in enumerate(values)))
    found = inspect.by_pass_rate(given, inspect.PassRates("rate", 0.1, 0.9))
    assert [p.meta["rate"] for p in found.problems] == [0.5, "0.4"]
    assert found.dropped == {"malformed": 3, "too-easy": 2, "too-hard": 2}


def test_a_column_of_pass_rates_that_is_not_there_is_refused_with_what_is():
    with pytest.raises(RequestError, match="no column 'rat' with pass rates; found: rate"):
        inspect.by_pass_rate(a_set(problem(rate=0.5)), inspect.PassRates("rat"))


def test_only_rows_with_a_fault_of_their_own_stop_a_run():
    harmless = ProblemSet(problems=(problem(),), dropped={"duplicate": 90, "overlap": 9, "held out for evaluation": 50})
    inspect.refuse_above("task t", harmless)
    at_the_bound = ProblemSet(problems=(problem(),) * 95, dropped={"unverifiable": 5})
    inspect.refuse_above("task t", at_the_bound)
    above = ProblemSet(
        problems=(problem(),) * 94,
        dropped={"unverifiable": 2, "no answer after ####": 4},
        examples={"unverifiable": (Example(3, "x, line 3: prose"), Example(9, "")), "no answer after ####": ()},
    )
    with pytest.raises(DataError, match=r"6 of 100 rows .* 2 unverifiable \(x, line 3: prose; also line 9\); 4 no ans"):
        inspect.refuse_above("task t", above)
    inspect.refuse_above("task t", above, share=0.06)
    inspect.refuse_above("task t", above, reasons=inspect.UNREADABLE)


def test_the_summary_is_one_line_of_counts():
    given = ProblemSet(problems=(problem(),) * 3, dropped={"duplicate": 2, "malformed": 1})
    assert inspect.summary(given) == "3 of 6 rows; left out: 2 duplicate, 1 malformed"
    assert inspect.summary(a_set(problem())) == "1 of 1 rows"


def test_sets_are_merged_with_their_counts_and_first_examples():
    many = tuple(Example(i, "") for i in range(EXAMPLES))
    parts = [
        ProblemSet(problems=(problem(line=1),), dropped={"a": 1}, examples={"a": (Example(7, "first"),)}),
        ProblemSet(problems=(problem(line=2),), dropped={"a": 9, "b": 1}, examples={"a": many, "b": ()}),
    ]
    found = merged(parts)
    assert ([p.id for p in found.problems], found.dropped) == (["t/1", "t/2"], {"a": 10, "b": 1})
    assert found.examples["a"] == (Example(7, "first"), *many[:-1])


questions = st.lists(st.tuples(st.text("ab 12?", max_size=4), st.sampled_from(["1", "2", "nan"])), max_size=12)


@given(questions)
def test_every_row_is_kept_or_counted_once(rows):
    given = a_set(*(problem(q, a, line=i) for i, (q, a) in enumerate(rows)))
    found = inspect.graded(splits.deduplicate(given), GRADING)
    assert found.rows == len(rows)
    assert splits.deduplicate(found) == found
    assert list(found.problems) == [p for p in given.problems if p in found.problems]
    assert all(len(found.examples[reason]) == min(n, EXAMPLES) for reason, n in found.dropped.items())
