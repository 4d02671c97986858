"""Pins what a run learns of its reward: before it starts, whether a right answer is known as one; within its first
steps, whether the parts say anything.
"""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peerwise.records import Problem, Score
from peerwise.rewards import rubric
from peerwise.rewards.selftest import SAMPLE, selftest
from peerwise.rewards.watch import Watch
from peerwise.tasks.prompts import TEMPLATES


def problems(*golds):
    return [Problem(id=f"p/{place}", task="t", messages=(), answer=gold) for place, gold in enumerate(golds)]


def boxed(problem):
    return f"\\boxed{{{problem.answer}}}"


def build(reward, weights=None):
    return rubric.build(reward, weights, longest=64, most_failures=1.0, warn=lambda text: None)


# Before the run

GOLDS = ("42", "-3", "1/2", "3.5", "12000")
FOR_NUMBERS = [template for name, template in TEMPLATES.items() if not name.startswith("code")]


@pytest.mark.parametrize("template", FOR_NUMBERS, ids=lambda template: template.name)
@pytest.mark.parametrize(
    ("reward", "weights"),
    [
        ("correctness", None),
        ("graded", None),
        ("shaped", None),
        ("parts", {"correct": 1.0, "format": 0.2, "steps": 0.2, "length": 0.1, "repetition": 0.1, "language": 0.1}),
        ("parts", {"cosine": 1.0}),
    ],
)
def test_every_named_reward_knows_the_gold_in_every_template(template, reward, weights):
    assert selftest(build(reward, weights), problems(*GOLDS), lambda problem: template.state(problem.answer)) is None


def test_a_gold_that_the_judge_cannot_find_again_is_named_with_its_problem():
    found = selftest(
        build("correctness"), problems("42", "7"), lambda problem: "\\boxed{" if problem.id == "p/1" else boxed(problem)
    )
    assert "correctness does not know a right answer on 1 of 2 problems" in found
    assert "p/1, gold '7'" in found
    assert "counts as wrong, read as None" in found


def test_a_wrapping_that_misses_the_form_is_found_by_the_part_that_pays_for_it():
    found = selftest(build("parts", {"correct": 1.0, "format": 0.2}), problems("42"), lambda problem: problem.answer)
    assert "its part format is 0, expected 1" in found


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda text: 1.0, "an empty completion is paid 1, the gold answer 1"),
        (lambda text: -len(text), "an empty completion is paid 0, the gold answer -10"),
        (lambda text: {"correct": text == ""}, "counts as wrong"),
        (lambda text: {"correct": 1.0, "more": len(text)}, "an empty completion counts as right"),
        (lambda text: text[99], "the reward failed on the gold answer: raised IndexError"),
        (lambda text: text[0] == "\\", "the reward failed on an empty completion: raised IndexError"),
        (lambda text: math.nan, "not finite"),
    ],
)
def test_an_own_reward_that_cannot_tell_gold_from_nothing_is_found(function, message):
    assert message in selftest(build(function), problems("42"), boxed)


def test_an_own_reward_that_pays_the_gold_more_or_abstains_is_fine():
    assert selftest(build(lambda text: len(text)), problems("42"), boxed) is None
    assert selftest(build(lambda text: None), problems("42"), boxed) is None


def test_a_sample_is_spread_evenly_over_many_problems():
    asked = []
    many = problems(*map(str, range(10 * SAMPLE)))
    selftest(build("correctness"), many, lambda problem: asked.append(problem.id) or boxed(problem))
    assert asked == [f"p/{10 * place}" for place in range(SAMPLE)]
    assert selftest(build("correctness"), [], boxed) is None


# Within the first steps


def scores(*rows):
    """One score for each {part: value}, whose total is the sum."""
    return [Score(total=sum(v for v in row.values() if v is not None), correct=False, parts=row) for row in rows]


def looked(watch, steps, *rows):
    return [watch.look(scores(*rows)) for _ in range(steps)]


def test_parts_that_cancel_are_said_once_after_enough_steps_and_samples():
    said = looked(Watch(steps=3, samples=6), 5, {"a": 1.0, "b": 0.0}, {"a": 0.0, "b": 1.0})
    assert [text is None for text in said] == [True, True, False, True, True]
    assert "The parts a, b vary, but the total is the same" in said[2]


def test_few_samples_are_waited_for():
    said = looked(Watch(steps=1, samples=10), 5, {"a": 1.0}, {"a": 1.0})
    assert [text is None for text in said] == [True, True, True, True, False]


def test_a_part_that_never_varies_is_named_with_its_value():
    said = looked(Watch(steps=2, samples=0), 2, {"correct": 0.0, "steps": 0.5}, {"correct": 1.0, "steps": 0.5})[-1]
    assert said == "The part steps was 0.5 for all samples so far; it teaches nothing."


def test_a_part_that_never_applied_and_one_that_changes_between_steps_only_are_told_apart():
    watch = Watch(steps=2, samples=0)
    watch.look(scores({"a": None, "b": 1.0, "c": 0.0}, {"a": None, "b": 1.0, "c": 1.0}))
    said = watch.look(scores({"a": None, "b": 2.0, "c": 0.0}, {"a": None, "b": 2.0, "c": 1.0}))
    assert said == (
        "The part a applied to no sample so far. "
        "The part b was the same within every step for all samples so far; it teaches nothing."
    )


def test_only_paid_parts_are_looked_at():
    watch = Watch(frozenset({"a"}), steps=1, samples=0)
    assert watch.look(scores({"a": 0.0, "free": 1.0}, {"a": 1.0, "free": 1.0})) is None


def test_failed_samples_say_nothing():
    failed = [Score(total=0.0, correct=False, failed="timed out")]
    watch = Watch(steps=1, samples=0)
    assert watch.look(failed) is None
    assert "The part a was 1" in watch.look(failed + scores({"a": 1.0}, {"a": 1.0}))


@given(st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=2, max_size=4), min_size=1, max_size=6))
def test_a_part_is_said_to_be_constant_exactly_when_no_step_had_two_of_its_values(steps):
    watch = Watch(steps=len(steps), samples=0)
    said = [watch.look(scores(*({"a": value} for value in values))) for values in steps]
    constant = all(len(set(values)) == 1 for values in steps)
    assert (said[-1] is not None) == constant
    assert said[:-1] == [None] * (len(steps) - 1)
