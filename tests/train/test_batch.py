"""Pins how groups are cut into micro-batches: nothing lost, nothing twice, the budget kept."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from peerwise.models.forward import PackedGroup
from peerwise.train.batch import micro_batches

packed_groups = st.lists(
    st.builds(
        lambda prompt, lengths: PackedGroup(prompt=(5,) * prompt, completions=tuple((7,) * n for n in lengths)),
        st.integers(1, 20),
        st.lists(st.integers(1, 30), min_size=1, max_size=6),
    ),
    min_size=1,
    max_size=5,
)


@given(groups=packed_groups, budget=st.integers(1, 120), data=st.data())
def test_every_row_goes_through_once_and_in_order(groups: list[PackedGroup], budget: int, data: st.DataObject) -> None:
    skip = data.draw(st.lists(st.booleans(), min_size=len(groups), max_size=len(groups)))
    everything = [
        (group, answer, skipped) for group, skipped in zip(groups, skip, strict=True) for answer in group.completions
    ]
    expected = [(row, group.prompt, answer) for row, (group, answer, skipped) in enumerate(everything) if not skipped]
    found = [
        (row, part.group.prompt, answer)
        for batch in micro_batches(groups, budget, skip=skip)
        for part in batch
        for row, answer in zip(part.rows, part.group.completions, strict=True)
    ]
    assert found == expected


@given(groups=packed_groups, budget=st.integers(1, 120))
def test_a_micro_batch_keeps_its_budget_unless_it_is_one_answer(groups: list[PackedGroup], budget: int) -> None:
    for batch in micro_batches(groups, budget, skip=[False] * len(groups)):
        assert batch
        tokens = sum(part.group.num_tokens for part in batch)
        assert tokens <= budget or [len(part.rows) for part in batch] == [1]


def test_groups_that_fit_stay_whole_and_share_a_micro_batch() -> None:
    # 2 + 3 + 3 = 8 tokens each: two fit in 16. Of the 24 each share is 12, where the middle of the second lies.
    group = PackedGroup(prompt=(5, 5), completions=((7, 7, 7), (7, 7, 7)))
    batches = list(micro_batches([group] * 3, 16, skip=[False] * 3))
    assert [[part.rows for part in batch] for batch in batches] == [[(0, 1)], [(2, 3), (4, 5)]]


def test_micro_batches_are_equally_large_where_groups_allow_it() -> None:
    # 8 groups of 8 tokens at a budget of 56: not 56 and 8, but 32 and 32.
    group = PackedGroup(prompt=(5, 5), completions=((7, 7, 7), (7, 7, 7)))
    batches = list(micro_batches([group] * 8, 56, skip=[False] * 8))
    assert [sum(part.group.num_tokens for part in batch) for batch in batches] == [32, 32]


def test_a_group_above_the_budget_is_split_and_takes_its_prompt_along() -> None:
    # Prompt 4, answers of 3: two answers make 10 tokens, a third would make 13.
    group = PackedGroup(prompt=(5,) * 4, completions=((7,) * 3,) * 5)
    batches = list(micro_batches([group], 10, skip=[False]))
    assert [[(part.rows, part.group.num_tokens) for part in batch] for batch in batches] == [
        [((0, 1), 10)],
        [((2, 3), 10)],
        [((4,), 7)],
    ]
