"""Pins an evaluation: which answers are asked for, and what the record says of them (accuracy, interval, pass@k, maj@k,
lengths, examples). The model is a stand-in that gives written answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from peerwise.errors import DataError
from peerwise.evaluate.run import EXAMPLES, answer, summarise
from peerwise.evaluate.task import checked, try_reward
from peerwise.recipe.schema import Task
from peerwise.records import Completion, Finish, Group, Message, Problem
from peerwise.rewards.rubric import build
from peerwise.rollout.base import Progress, Request, SamplingParams, sample_key
from peerwise.tasks.base import ProblemSet

PARAMS = SamplingParams(max_new_tokens=16, temperature=0.0)


def problem(number: int, gold: str = "42") -> Problem:
    return Problem(
        id=f"toy/{number}",
        task="toy",
        messages=({"role": "system", "content": "be brief"}, {"role": "user", "content": f"question {number}"}),
        answer=gold,
    )


def said(text: str, finish: Finish = "stop", tokens: int = 3) -> Completion:
    return Completion(token_ids=(7,) * tokens, logprobs=(-0.5,) * tokens, finish=finish, text=text)


def boxed(value: str) -> Completion:
    return said(f"so it is \\boxed{{{value}}}")


class Scripted:
    """A generator that answers by heart and remembers what it was asked."""

    def __init__(self, answers: Sequence[Sequence[Completion]]) -> None:
        self.answers = answers
        self.requests: list[Request] = []
        self.params: list[SamplingParams] = []

    def generate(
        self, requests: Sequence[Request], params: SamplingParams, progress: Progress | None = None
    ) -> list[tuple[Completion, ...]]:
        self.requests += requests
        self.params.append(params)
        if progress is not None:
            progress(1, 1)
        return [tuple(answers) for answers in self.answers]


def prompt_ids(messages: Sequence[Message]) -> tuple[int, ...]:
    return tuple(len(message["content"]) for message in messages)


def evaluated(
    answers: Sequence[Sequence[Completion]], golds: Sequence[str] | None = None, reward: str = "correctness"
) -> list[Group]:
    problems = [problem(i, gold) for i, gold in enumerate(golds or ["42"] * len(answers))]
    return answer(
        Scripted(answers), problems, {"toy": build(reward)}, prompt_ids, PARAMS, samples=len(answers[0])
    )  # fmt: skip


def test_each_problem_is_asked_once_for_each_sample_with_a_key_of_its_own():
    generator = Scripted([[boxed("42")] * 3, [boxed("41")] * 3])
    calls: list[tuple[int, int]] = []
    answer(
        generator,
        [problem(0), problem(1)],
        {"toy": build("correctness")},
        prompt_ids,
        PARAMS,
        samples=3,
        seed=9,
        progress=lambda done, total: calls.append((done, total)),
    )
    assert generator.params == [PARAMS]
    assert calls == [(1, 1)]
    assert [request.prompt_ids for request in generator.requests] == [(8, 10), (8, 10)]
    # Step -1 is no training step, so evaluation never draws what training draws.
    for number, request in enumerate(generator.requests):
        assert request.keys == tuple(sample_key(9, -1, f"toy/{number}", i) for i in range(3))
    assert len({key for request in generator.requests for key in request.keys}) == 6


def test_groups_carry_problem_prompt_completions_and_scores_in_order():
    first, second = evaluated([[boxed("42"), boxed("41")], [said("nothing"), boxed("7")]], golds=["42", "7"])
    assert (first.problem.id, second.problem.id) == ("toy/0", "toy/1")
    assert first.prompt_ids == (8, 10)
    assert [score.correct for score in (*first.scores, *second.scores)] == [True, False, False, True]
    assert [score.extracted for score in (*first.scores, *second.scores)] == ["42", "41", None, "7"]


def test_one_answer_a_problem_gives_accuracy_with_wilson_interval():
    # 8 of 10 right: Wilson's 95 % interval is [0.4902, 0.9433] (Brown, Cai and DasGupta's formula by hand).
    record = summarise(evaluated([[boxed("42")]] * 8 + [[boxed("41")]] * 2))
    assert (record["n"], record["samples"], record["accuracy"]) == (10, 1, 0.8)
    assert record["interval"] == pytest.approx([0.4902, 0.9433], abs=1e-4)
    assert record["right"] == [1] * 8 + [0] * 2
    assert "pass_at_k" not in record
    assert "maj_at_k" not in record


def test_several_answers_a_problem_give_pass_at_k_and_maj_at_k():
    record = summarise(
        evaluated(
            [
                [boxed("42"), boxed("42"), boxed("41"), boxed("40")],  # 2 right, majority right
                [boxed("42"), boxed("41"), boxed("41"), said("?")],  # 1 right, majority wrong
                [boxed("1"), boxed("2"), boxed("3"), boxed("4")],  # none
                [boxed("42"), boxed("42"), boxed("41"), boxed("41")],  # 2 right, a tie: half
            ]
        )
    )
    assert (record["n"], record["samples"]) == (4, 4)
    assert record["right"] == [2, 1, 0, 2]
    # (2 + 1 + 0 + 2) / 16.
    assert record["accuracy"] == pytest.approx(5 / 16)
    low, high = record["interval"]
    assert 0 <= low < 5 / 16 < high <= 1
    assert list(record["pass_at_k"]) == [1, 2, 4]
    # 1 - C(4 - c, k) / C(4, k): for k = 2, c = 2 gives 1 - 1/6, c = 1 gives 1 - 3/6; for k = 4 any right one is enough.
    expected = {1: 5 / 16, 2: (5 / 6 + 1 / 2 + 0 + 5 / 6) / 4, 4: 3 / 4}
    for k, value in expected.items():
        found = record["pass_at_k"][k]
        assert found["value"] == pytest.approx(value)
        assert 0 <= found["interval"][0] <= value <= found["interval"][1] <= 1
    assert list(record["maj_at_k"]) == [4]
    assert record["maj_at_k"][4]["value"] == pytest.approx((1 + 0 + 0 + 0.5) / 4)


@pytest.mark.parametrize(("samples", "ks"), [(2, [1, 2]), (3, [1, 2, 3]), (8, [1, 2, 4, 8]), (12, [1, 2, 4, 8, 12])])
def test_k_runs_over_the_powers_of_two_and_the_number_of_samples(samples, ks):
    record = summarise(evaluated([[boxed("42")] * samples] * 2))
    assert list(record["pass_at_k"]) == ks
    assert list(record["maj_at_k"]) == [samples]


def test_lengths_cut_off_and_unread_answers_and_reward_are_shares_of_all_answers():
    record = summarise(
        evaluated(
            [
                [said("\\boxed{42}", tokens=4), said("no idea", finish="length", tokens=16)],
                [said("\\boxed{41}", finish="length", tokens=16), said("", tokens=1)],
            ],
            reward="graded",
        )
    )
    assert record["mean_tokens"] == pytest.approx((4 + 16 + 16 + 1) / 4)
    assert record["truncated"] == pytest.approx(2 / 4)
    assert record["unread"] == pytest.approx(2 / 4)
    # Graded: right 1, no form and no steps -0.5, wrong in form without steps 0, empty -1.
    assert record["reward"] == pytest.approx((1 - 0.5 + 0 - 1) / 4)
    assert record["accuracy"] == pytest.approx(1 / 4)


def test_the_examples_are_the_first_answers_to_the_first_problems():
    answers = [[boxed("42"), boxed("0")], [boxed("41"), boxed("0")], *[[said("hm"), boxed("0")]] * 4]
    record = summarise(evaluated(answers))
    assert [example["problem"] for example in record["examples"]] == [f"toy/{i}" for i in range(EXAMPLES)]
    assert record["examples"][0] == {
        "problem": "toy/0",
        "question": "question 0",
        "gold": "42",
        "text": "so it is \\boxed{42}",
        "correct": True,
        "reward": 1.0,
        "extracted": "42",
    }
    assert [example["extracted"] for example in record["examples"]] == ["42", "41", None]


@pytest.mark.parametrize("samples", [1, 4])
@pytest.mark.parametrize("text", ["\\boxed{42}", "nothing", "四十二 \ud83d"])
def test_the_record_is_strict_json(samples, text):
    record = summarise(evaluated([[said(text)] * samples] * 2))
    again = json.loads(json.dumps(record, allow_nan=False))
    assert again["accuracy"] == record["accuracy"]
    assert again["right"] == record["right"]
    assert again["examples"] == record["examples"]


def test_all_right_and_all_wrong_have_an_interval_that_holds_them():
    for value, accuracy in (("42", 1.0), ("41", 0.0)):
        record = summarise(evaluated([[boxed(value)]] * 5))
        low, high = record["interval"]
        assert record["accuracy"] == accuracy
        assert low < high
        assert low <= accuracy <= high


def test_equal_answers_vote_together_however_they_are_written() -> None:
    # 1,000 and 1000 are two votes for the right answer against two for 7 and one for 8.
    (record,) = [summarise(evaluated([[*map(boxed, ["1,000", "7", "8", "1000", "7"])]], ["1000"]))]
    assert record["maj_at_k"][5]["value"] == 0.5  # a tie of 1000 and 7, one of them right
    (record,) = [summarise(evaluated([[*map(boxed, ["1,000", "7", "8", "1000", "1000.0"])]], ["1000"]))]
    assert record["maj_at_k"][5]["value"] == 1.0


def test_problems_whose_gold_cannot_be_read_are_counted_and_many_of_them_are_refused() -> None:
    prose = "the answer follows from a long argument that nobody could ever compare with anything at all"
    few = ProblemSet(problems=tuple(problem(i, prose if i == 0 else "42") for i in range(40)))
    assert checked("toy", few, Task(), solutions=True).dropped == {"unverifiable": 1}
    many = ProblemSet(problems=tuple(problem(i, prose if i < 3 else "42") for i in range(40)))
    with pytest.raises(DataError, match=r"task 'toy': 3 of 40 rows cannot be used, more than 5%: 3 unverifiable"):
        checked("toy", many, Task(), solutions=True)
    assert checked("toy", many, Task(max_faulty=0.1), solutions=True).dropped == {"unverifiable": 3}
    assert not checked("toy", many, Task(reward="own.py:judge"), solutions=True).dropped


def test_a_solution_that_comes_to_another_answer_is_left_out_of_training_only() -> None:
    problems = [replace(problem(i, "42"), solution="6 * 7 = 42\n\\boxed{42}") for i in range(40)]
    problems[3] = replace(problems[3], solution="6 * 7 = 41\n\\boxed{41}")
    found = ProblemSet(problems=tuple(problems))
    assert checked("toy", found, Task(), solutions=True).dropped == {"disagreeing": 1}
    assert not checked("toy", found, Task(), solutions=False).dropped


def test_a_reward_that_does_not_know_a_right_answer_is_refused_and_ones_own_is_warned_of(tmp_path: Path) -> None:
    golds = [problem(i, "42") for i in range(3)]
    said: list[str] = []
    try_reward("toy", golds, Task(), longest=8, warn=said.append)
    # The template states the answer in words, and only a box would be read as one.
    bad = [replace(problem(0, "42"), answer="")]
    with pytest.raises(DataError, match="task 'toy': reward correctness does not know a right answer on 1 of 1"):
        try_reward("toy", bad, Task(), longest=8, warn=said.append)
    assert not said
    own = tmp_path / "never.py"
    own.write_text("def never(problem, completion):\n    return 0.0\n")
    try_reward("toy", golds, Task(reward=f"{own}:never"), longest=8, warn=said.append)
    assert len(said) == 1 and "an empty completion is paid 0, the gold answer 0" in said[0]
