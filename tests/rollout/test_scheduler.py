"""Pins the bookkeeping of the native engine over random finishing orders: dense slots, every answer once, moves that a
plain list of contents can follow, prompts kept exactly as long as one of their answers needs them."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from peerwise.rollout.native.scheduler import Branch, Moves, Scheduler

schedules = st.lists(st.lists(st.integers(1, 5), max_size=5), max_size=7)
"""For each request, for each of its answers, how many steps it takes: every finishing order there can be."""


def follow(contents: list[object], moves: Moves, left: int) -> None:
    """What a cache does: copy places onto others, then forget the end."""
    sources, targets = {source for source, _ in moves}, {target for _, target in moves}
    assert len(sources) == len(targets) == len(moves)
    assert not sources & targets
    assert all(target < left <= source for source, target in moves)
    for source, target in moves:
        contents[target] = contents[source]
    del contents[left:]


class Played:
    """A schedule played to its end, each answer finishing after as many steps as it takes."""

    def __init__(self, lengths: list[list[int]], max_branches: int) -> None:
        self.lengths = lengths
        self.scheduler = Scheduler([len(answers) for answers in lengths], max_branches)
        self.slots: list[object] = []  # what a cache of answers would hold
        self.prompts: list[object] = []  # what a cache of prompts would hold
        self.prefilled: list[int] = []
        self.admitted: list[tuple[int, int]] = []
        self.ended: list[tuple[int, int]] = []

    def steps(self) -> Iterator[Scheduler]:
        """The scheduler after each admission, and after each retirement."""
        scheduler = self.scheduler
        while scheduler.waiting or scheduler.active:
            new_requests, new_branches = scheduler.admit()
            self.prefilled += new_requests
            self.prompts += new_requests
            self.admitted += map(named, new_branches)
            self.slots += map(named, new_branches)
            yield scheduler
            for branch in scheduler.active:
                branch.token_ids.append(0)
                if len(branch.token_ids) == self.lengths[branch.request][branch.sample]:
                    branch.finish = "stop"
            finished, slot_moves, group_moves = scheduler.retire()
            self.ended += map(named, finished)
            follow(self.slots, slot_moves, len(scheduler.active))
            follow(self.prompts, group_moves, len(scheduler.groups))
            yield scheduler


def named(branch: Branch) -> tuple[int, int]:
    return branch.request, branch.sample


@given(schedules, st.integers(1, 6))
def test_slots_stay_dense_and_moves_bring_every_answer_where_its_branch_is(lengths, max_branches):
    played = Played(lengths, max_branches)
    for scheduler in played.steps():
        assert len(scheduler.active) <= max_branches
        assert played.slots == [named(branch) for branch in scheduler.active]
        assert all(branch.finish is None for branch in scheduler.active)


@given(schedules, st.integers(1, 6))
def test_no_slot_is_free_while_an_answer_waits(lengths, max_branches):
    for number, scheduler in enumerate(Played(lengths, max_branches).steps()):
        if number % 2 == 0 and scheduler.waiting:
            assert len(scheduler.active) == max_branches


@given(schedules, st.integers(1, 6))
def test_every_answer_is_admitted_in_order_and_finishes_once(lengths, max_branches):
    played = Played(lengths, max_branches)
    for _ in played.steps():
        pass
    everything = [(request, sample) for request, answers in enumerate(lengths) for sample in range(len(answers))]
    assert played.admitted == everything
    assert sorted(played.ended) == everything
    assert (played.slots, played.prompts) == ([], [])


@given(schedules, st.integers(1, 6))
def test_a_prompt_is_kept_exactly_while_one_of_its_answers_is_waiting_or_active(lengths, max_branches):
    played = Played(lengths, max_branches)
    for scheduler in played.steps():
        needed = {branch.request for branch in (*scheduler.active, *scheduler.waiting)}
        assert set(scheduler.groups) == needed & set(played.prefilled)
        assert len(set(scheduler.groups)) == len(scheduler.groups)
        assert played.prompts == scheduler.groups
        assert all(scheduler.groups[branch.group] == branch.request for branch in scheduler.active)
    assert played.prefilled == [request for request, answers in enumerate(lengths) if answers]


@given(schedules, st.integers(1, 6))
def test_no_more_prompts_are_kept_than_there_are_slots(lengths, max_branches):
    # The cache has one place for a prompt for each slot.
    for scheduler in Played(lengths, max_branches).steps():
        assert len(scheduler.groups) <= max_branches


def test_the_example_of_two_prompts_in_twelve_slots():
    scheduler = Scheduler([8, 8], max_branches=12)
    new_requests, new_branches = scheduler.admit()
    assert new_requests == [0, 1]
    assert [named(branch) for branch in new_branches] == [(0, i) for i in range(8)] + [(1, i) for i in range(4)]
    for slot in (0, 3, 11):
        scheduler.active[slot].finish = "length"
    finished, slot_moves, group_moves = scheduler.retire()
    assert [named(branch) for branch in finished] == [(0, 0), (0, 3), (1, 3)]
    # Nine answers stay, in slots 0 to 8; slots 9 and 10 move into the gaps at 0 and 3.
    assert slot_moves == [(9, 0), (10, 3)]
    assert group_moves == []
    assert scheduler.admit() == ([], list(scheduler.active[9:]))
    assert [named(branch) for branch in scheduler.active[9:]] == [(1, 4), (1, 5), (1, 6)]


def test_retiring_without_a_finished_answer_moves_nothing():
    scheduler = Scheduler([2], max_branches=2)
    scheduler.admit()
    before = list(scheduler.active)
    assert scheduler.retire() == ([], [], [])
    assert scheduler.active == before
