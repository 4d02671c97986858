"""Pins the order of training problems: each once per epoch, shares by weight at every prefix, random access."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peerwise.errors import RequestError
from peerwise.records import Problem
from peerwise.tasks.order import Order


def problems(task, n):
    return [Problem(id=f"{task}/{i}", task=task, messages=(), answer="1") for i in range(n)]


@given(size=st.integers(1, 30), seed=st.integers(0, 99))
def test_each_epoch_is_a_permutation_of_the_problems(size, seed):
    order = Order([problems("a", size)], [1.0], seed=seed)
    for epoch in range(3):
        assert sorted(p.id for p in order.take(epoch * size, size)) == sorted(p.id for p in problems("a", size))


def test_epochs_and_seeds_differ():
    order = Order([problems("a", 50)], [1.0], seed=0)
    assert order.take(0, 50) != order.take(50, 50)
    assert order.take(0, 50) != Order([problems("a", 50)], [1.0], seed=1).take(0, 50)


@settings(deadline=None)
@given(
    weights=st.lists(st.floats(0.05, 20), min_size=2, max_size=5),
    sizes=st.lists(st.integers(1, 9), min_size=5, max_size=5),
)
def test_at_every_prefix_each_share_is_within_one_of_exact(weights, sizes):
    sets = [problems(str(k), sizes[k]) for k in range(len(weights))]
    met = [0] * len(weights)
    for n, problem in enumerate(Order(sets, weights, seed=0).take(0, 200), 1):
        met[int(problem.task)] += 1
        assert all(abs(m - n * w / sum(weights)) < 1 for m, w in zip(met, weights, strict=True))


def test_in_a_mixture_each_task_keeps_its_own_epochs():
    order = Order([problems("a", 4), problems("b", 3)], [2, 1], seed=5)
    stream = order.take(0, 36)
    of_a, of_b = ([p.id for p in stream if p.task == task] for task in "ab")
    assert (len(of_a), len(of_b)) == (24, 12)
    assert all(len(set(of_a[i : i + 4])) == 4 for i in range(0, 24, 4))
    assert all(len(set(of_b[i : i + 3])) == 3 for i in range(0, 12, 3))


@given(start=st.integers(0, 300), count=st.integers(0, 40))
def test_any_position_can_be_taken_without_those_before_it(start, count):
    sets = [problems("a", 7), problems("b", 5)]
    straight = Order(sets, [1, 3], seed=2).take(0, start + count)
    assert Order(sets, [1, 3], seed=2).take(start, count) == straight[start:]


def test_the_epoch_counts_passes_over_all_problems():
    order = Order([problems("a", 6), problems("b", 2)], [1, 1], seed=0)
    assert (order.epoch(0), order.epoch(4), order.epoch(16)) == (0.0, 0.5, 2.0)


@pytest.mark.parametrize(("sizes", "weights"), [([], []), ([3], [1, 1]), ([3, 0], [1, 1]), ([3, 3], [1, 0])])
def test_an_impossible_mixture_is_refused(sizes, weights):
    with pytest.raises(RequestError, match="expected at least one set"):
        Order([problems("a", n) for n in sizes], weights, seed=0)
