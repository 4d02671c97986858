"""Pins the generated arithmetic: right at every step, within its bounds, and the same in every process."""

import re
import subprocess
import sys
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peerwise.errors import DataError, RequestError
from peerwise.tasks.base import load_task

STEP = re.compile(r"(\d+) ([-+*]) (\d+) = (\d+)")


def value_by_precedence(text):
    """A small recursive evaluator of + - * and parentheses, independent of how the chain was built."""
    tokens = re.findall(r"\d+|[-+*()]", text)

    def atom():
        token = tokens.pop(0)
        if token == "(":
            inner = total()
            assert tokens.pop(0) == ")"
            return inner
        return int(token)

    def product():
        value = atom()
        while tokens and tokens[0] == "*":
            tokens.pop(0)
            value *= atom()
        return value

    def total():
        value = product()
        while tokens and tokens[0] in "+-":
            value = value + product() if tokens.pop(0) == "+" else value - product()
        return value

    result = total()
    assert not tokens
    return result


@settings(max_examples=40, deadline=None)
@given(
    low=st.integers(1, 4),
    more=st.integers(0, 4),
    largest=st.integers(2, 99),
    operators=st.sampled_from(["+", "+-", "+-*", "*+"]),
    seed=st.integers(0, 10**6),
)
def test_every_chain_is_right_at_each_step_and_stays_in_bounds(low, more, largest, operators, seed):
    params = {"min_ops": low, "max_ops": low + more, "max_number": largest, "operators": operators, "size": 20}
    try:
        problems = load_task("arithmetic", template="plain", params=params, held_out=0, seed=seed).train.problems
    except DataError:
        pytest.fail("no chain was made")
    for problem in problems:
        question = problem.messages[0]["content"]
        steps = [STEP.fullmatch(line).groups() for line in problem.solution.split("\n")[:-1]]
        assert low <= len(steps) <= low + more
        assert steps[0][0] == re.search(r"\d+", question).group()
        for (left, operator, right, result), following in zip(steps, [*steps[1:], None], strict=True):
            assert operator in operators and 1 <= int(right) <= largest
            by_hand = {"+": int(left) + int(right), "-": int(left) - int(right), "*": int(left) * int(right)}[operator]
            assert int(result) == by_hand >= 0
            if operator == "*":
                assert int(right) <= 10 and int(result) <= 1000
            assert following is None or following[0] == result
        assert problem.answer == steps[-1][3] == str(value_by_precedence(question))


def test_the_solution_ends_in_the_form_the_template_asks_for():
    problem = load_task("arithmetic", template="lines", params={"size": 1}, held_out=0).train.problems[0]
    assert problem.solution.split("\n")[-1] == "\\boxed{" + problem.answer + "}"
    assert problem.messages[0]["content"].endswith("\nOne step per line, then \\boxed{answer}.")


def test_another_process_with_another_hash_seed_makes_the_same_problems():
    code = (
        "from peerwise.tasks.base import load_task;"
        "print(load_task('arithmetic', params={'size': 5}, seed=3).train.problems)"
    )
    outputs = {
        subprocess.run([sys.executable, "-c", code], env={"PYTHONHASHSEED": h}, capture_output=True, check=True).stdout
        for h in ("1", "2")
    }
    assert len(outputs) == 1


def test_a_problem_does_not_depend_on_how_many_others_are_made():
    few = load_task("arithmetic", params={"size": 5}, held_out=0).train.problems
    many = load_task("arithmetic", params={"size": 50}, held_out=0).train.problems
    assert few == many[:5]


def test_another_seed_makes_other_problems():
    one = load_task("arithmetic", params={"size": 20}, seed=1).train.problems
    two = load_task("arithmetic", params={"size": 20}, seed=2).train.problems
    assert not {p.messages[0]["content"] for p in one} & {p.messages[0]["content"] for p in two}


def test_held_out_problems_are_distinct_and_never_in_train():
    # 3 operands up to 4 with + and -: few questions, so that train and held-out must collide before removal.
    data = load_task("arithmetic", params={"min_ops": 2, "max_ops": 2, "max_number": 4, "size": 500}, held_out=30)
    train, held_out = ({p.messages[0]["content"] for p in s.problems} for s in (data.train, data.held_out))
    assert len(held_out) == len(data.held_out.problems) == 30
    assert not train & held_out
    assert data.train.dropped["held out for evaluation"] > 0
    assert len(data.train.problems) + sum(data.train.dropped.values()) == 500


@pytest.mark.parametrize(
    "params",
    [{"max_op": 3}, {"min_ops": 0}, {"min_ops": 5}, {"max_number": 2.5}, {"operators": "/"}, {"size": True}],
)
def test_a_wrong_parameter_is_refused_with_all_the_known_ones(params):
    with pytest.raises(RequestError) as caught:
        load_task("arithmetic", params=params)
    assert all(name in str(caught.value) for name in ("min_ops", "max_ops", "max_number", "operators", "size"))


def test_the_precedence_evaluator_of_this_file_is_right():
    # (12 + 7) * 3 - 4 = 57 - 4 = 53; without parentheses 12 + 21 - 4 = 29.
    assert value_by_precedence("(12 + 7) * 3 - 4") == Fraction(53)
    assert value_by_precedence("12 + 7 * 3 - 4") == 29
