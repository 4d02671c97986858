"""Pins a user's own reward: what its function is given and may return, one sample or a batch, sync or async, and the
one policy for all that can go wrong: counted, shown once, the sample marked, stopped when it is too many.
"""

import asyncio
import gc
import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peerwise.errors import RequestError, RewardError
from peerwise.records import Completion, Problem
from peerwise.rewards import failures, rubric


def sample(text="x", answer="42", tokens=1, place=1, **meta):
    messages = ({"role": "user", "content": "6 * 7 = ?"},)
    problem = Problem(id=f"p/{place}", task="t", messages=messages, answer=answer, meta=meta)
    completion = Completion(token_ids=tuple(range(tokens)), logprobs=(0.0,) * tokens, finish="stop", text=text)
    return problem, completion


def scores(function, samples, **settings):
    """Scores with every failure allowed, unless said otherwise."""
    return rubric.build(function, **{"most_failures": 1.0, "warn": lambda text: None, **settings})(samples)


def own_file(tmp_path, body):
    path = tmp_path / "mine.py"
    path.write_text(body, encoding="utf-8")
    return f"{path}:f"


# What a function is given


def test_a_function_of_one_sample_gets_what_its_parameters_name():
    seen = []

    def f(answer, text, problem, completion, question, meta, tokens, correct, step):
        seen.append((answer, text, problem.id, completion.finish, question, meta["level"], tokens, correct, step))
        return 1

    rubric.build(f)([sample("\\boxed{42}", tokens=3, level=5)], step=7)
    assert seen == [("42", "\\boxed{42}", "p/1", "stop", "6 * 7 = ?", 5, (0, 1, 2), True, 7)]


def test_a_function_of_a_batch_gets_lists_in_the_order_of_the_samples():
    seen = []

    def f(texts, answers, problems, completions, questions, metas, tokens, correct, step):
        seen.append((texts, answers, [p.id for p in problems], len(completions), len(questions), metas, tokens))
        seen.append((correct, step))
        return [1.0, 2.0]

    found = rubric.build(f)([sample("42"), sample("b", "7", 2, place=2, level=1)], step=3)
    assert [score.total for score in found] == [1.0, 2.0]
    assert seen == [
        (["42", "b"], ["42", "7"], ["p/1", "p/2"], 2, 2, [{}, {"level": 1}], [(0,), (0, 1)]),
        ([True, False], 3),
    ]


def test_unknown_parameters_keep_their_defaults_and_kwargs_get_everything():
    seen = []

    def one(text, scale=2.0, **rest):
        seen.append(sorted(rest))
        return scale

    def many(texts, **rest):
        seen.append(sorted(rest))
        return [0.0 for _ in texts]

    assert scores(one, [sample()])[0].total == 2.0
    scores(many, [sample()])
    assert seen == [
        ["answer", "completion", "correct", "meta", "problem", "question", "step", "tokens"],
        ["answers", "completions", "correct", "metas", "problems", "questions", "step", "tokens"],
    ]


def test_a_function_that_names_only_what_both_kinds_share_is_one_of_single_samples():
    found = scores(lambda tokens, correct: correct - 0.1 * len(tokens), [sample("42", tokens=2), sample("1")])
    assert [score.total for score in found] == pytest.approx([0.8, -0.1])


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda txt: 0, "no value is known for its parameter 'txt'; did you mean 'text'"),
        (lambda text, answers: [0], "takes both one sample .text. and a batch"),
        (lambda text, /: 0, "parameter 'text' cannot be given by name; remove the /"),
        (dict, "parameters"),
    ],
)
def test_parameters_that_cannot_be_given_are_refused_before_the_run(function, message):
    with pytest.raises(RequestError, match=message):
        rubric.build(function)


# What it may return


def test_a_number_is_the_total_a_dict_its_parts_and_none_abstains():
    returned = iter([3, {"a": 1, "b": 0.5, "c": None}, None, np.float32(0.25), True])
    found = scores(lambda text: next(returned), [sample("42")] * 5)
    assert [score.total for score in found] == [3.0, 1.5, 0.0, 0.25, 1.0]
    assert found[1].parts == {"a": 1.0, "b": 0.5, "c": None}
    assert found[2].parts == {"<lambda>": None}
    assert all(score.correct and score.failed is None for score in found)


def test_a_part_called_correct_decides_correctness():
    found = scores(lambda text: {"correct": text == "yes"}, [sample("yes"), sample("\\boxed{42}")])
    assert [(score.correct, score.extracted) for score in found] == [(True, None), (False, "42")]


@pytest.mark.parametrize("kind", [list, tuple, np.array])
def test_a_batch_may_come_back_as_list_tuple_or_array(kind):
    assert [s.total for s in scores(lambda texts: kind([0.5, 1.5]), [sample(), sample()])] == [0.5, 1.5]


def test_a_file_is_loaded_and_its_function_named(tmp_path):
    (found,) = rubric.build(own_file(tmp_path, "def f(text, answer): return len(text)"))([sample("\\boxed{42}")])
    assert (found.total, found.correct, found.parts) == (10.0, True, {"f": 10.0})


# Async


def test_coroutines_of_one_sample_run_side_by_side_and_stay_in_order():
    running, most = 0, 0

    async def f(text):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.05 / float(text))
        running -= 1
        return float(text)

    found = scores(f, [sample(str(number)) for number in range(1, 9)])
    assert [score.total for score in found] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert most == 8


def test_a_coroutine_of_a_batch_and_a_callable_object_are_awaited():
    class Judge:
        async def __call__(self, texts):
            await asyncio.sleep(0)
            return [len(text) for text in texts]

    assert [score.total for score in scores(Judge(), [sample("a"), sample("bbb")])] == [1.0, 3.0]


def test_all_calls_share_one_event_loop_also_from_within_another():
    loops = set()

    async def f(text):
        loops.add(asyncio.get_running_loop())
        return 0

    scorer = rubric.build(f)
    scorer([sample()] * 3)

    async def main():
        return scorer([sample()])

    assert asyncio.run(main())[0].failed is None
    assert len(loops) == 1


# Failures


def misbehaving(text):
    if text == "raise":
        raise KeyError("level")
    return {"nan": math.nan, "inf": {"a": math.inf}, "word": "good", "list": [1.0], "huge": {"a": 1e308, "b": 1e308}}[
        text
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("raise", "raised KeyError"),
        ("nan", "not finite"),
        ("inf", "not finite"),
        ("huge", "not finite"),
        ("word", "no number"),
        ("list", "no number"),
    ],
)
def test_whatever_is_no_finite_number_marks_that_sample_alone(text, reason):
    def f(texts):
        return [misbehaving(text) if text != "fine" else 1.0 for text in texts]

    def g(text):
        return misbehaving(text) if text != "fine" else 1.0

    batch = [sample("fine"), sample(text, answer=text), sample("fine")]
    found = scores(g, batch)
    assert [(s.total, s.failed) for s in found] == [(1.0, None), (0.0, reason), (1.0, None)]
    assert found[1].parts == {}
    if text != "raise":  # a batch that raises has no values at all
        assert [s.failed for s in scores(f, batch)] == [None, reason, None]


class Misbehaving(list):
    """A value that says it has three items, and does harm wherever it is read."""

    def __init__(self, harm):
        super().__init__([1.0])
        self.harm = harm

    def __len__(self):
        return 3

    def __float__(self):
        return self.harm()


class NoMapping(dict):
    def items(self):
        raise LookupError("no items")


class NoName:
    def __str__(self):
        raise LookupError("no name")

    @property
    def tolist(self):
        raise LookupError("no list")


def interrupt():
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (Misbehaving(lambda: time.sleep(3) or 1.0), "timed out"),
        (Misbehaving(interrupt), "raised KeyboardInterrupt"),
        (NoMapping(a=1.0), "raised LookupError"),
        ({NoName(): 1.0}, "raised LookupError"),
        (bytearray(b"1"), "no number"),
    ],
)
def test_a_value_that_misbehaves_when_it_is_read_fails_like_a_function_that_does(value, reason):
    found = scores(lambda text: value if text == "bad" else 1.0, [sample("bad"), sample()], timeout_s=0.3)
    assert [(score.total, score.failed) for score in found] == [(0.0, reason), (1.0, None)]


@pytest.mark.parametrize(
    ("returned", "reason"), [(NoName(), "raised LookupError"), (Misbehaving(lambda: 1.0), "wrong length")]
)
def test_a_batch_that_misbehaves_when_it_is_read_fails_whole(returned, reason):
    assert [score.failed for score in scores(lambda texts: returned, [sample()] * 3)] == [reason] * 3


def test_what_a_function_does_to_its_arguments_reaches_neither_other_samples_nor_the_records():
    seen = []

    def spoil(problem, meta):
        seen.append((problem.meta["tags"] == meta["tags"] == ["a"], problem.messages[0]["content"]))
        problem.meta["tags"].append("b")
        meta.clear()
        problem.messages[0]["content"] = "spoilt"

    def f(problem, meta):
        return spoil(problem, meta) or 1.0

    def g(problems, metas):
        return [spoil(*given) or 1.0 for given in zip(problems, metas, strict=True)]

    problem, completion = sample(tags=["a"])
    for function in (f, g):
        assert [score.failed for score in scores(function, [(problem, completion)] * 2)] == [None, None]
    assert seen == [(True, "6 * 7 = ?")] * 4
    assert problem == sample(tags=["a"])[0]


def test_each_sample_keeps_its_own_value_when_coroutines_return_one_shared_dict():
    shared = {}

    async def f(text):
        shared["length"] = len(text)
        return shared

    assert [score.total for score in scores(f, [sample("a"), sample("bb"), sample("ccc")])] == [1.0, 2.0, 3.0]


def test_a_coroutine_that_nobody_awaits_says_what_to_do():
    async def f(text):
        return 1.0

    said = []
    with pytest.warns(RuntimeWarning, match="never awaited"):
        assert scores(lambda text: f(text), [sample()], warn=said.append)[0].failed == "no number"
        gc.collect()
    assert said[0].endswith("expected a number or None; define the function itself with `async def`")


def test_the_text_of_a_failure_stays_short():
    said = []

    def f(text):
        raise ValueError("x" * 1_000_000 + "\n" + "line\n" * 1000 + "y" * 1_000_000)

    scores(f, [sample()], warn=said.append)
    assert len(said[0]) < 5000 and said[0].endswith("y")


def test_a_failed_sample_keeps_the_verdict_of_the_ordinary_judge():
    (found,) = scores(lambda text: 1 / 0, [sample("\\boxed{42}")])
    assert (found.correct, found.extracted, found.failed) == (True, "42", "raised ZeroDivisionError")


@pytest.mark.parametrize(
    ("returned", "reason"),
    [
        ([1.0], "wrong length"),
        ([], "wrong length"),
        ([1.0] * 4, "wrong length"),
        (np.array([1.0]), "wrong length"),
        (1.0, "no list"),
        (None, "no list"),
        ("abc", "no list"),
        ({"a": [1.0, 1.0, 1.0]}, "no list"),
        (np.array(1.0), "no list"),
        (iter([1.0] * 3), "no list"),
    ],
)
def test_a_batch_that_is_no_list_of_the_right_length_fails_whole_and_is_never_repeated(returned, reason):
    found = scores(lambda texts: returned, [sample()] * 3)
    assert [(score.total, score.failed) for score in found] == [(0.0, reason)] * 3


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(0), KeyboardInterrupt()])
def test_whatever_a_function_raises_stays_in_it(error):
    def f(text):
        raise error

    async def g(text):
        raise error

    assert scores(f, [sample()])[0].failed == scores(g, [sample()])[0].failed == f"raised {type(error).__name__}"


def test_a_call_that_overruns_is_left_behind_and_the_others_are_scored():
    def f(text):
        time.sleep(5 if text == "slow" else 0)
        return 1.0

    started = time.perf_counter()
    found = scores(f, [sample(), sample("slow"), sample()], timeout_s=0.2)
    assert [score.failed for score in found] == [None, "timed out", None]
    assert time.perf_counter() - started < 3


def test_a_coroutine_that_overruns_is_cancelled_and_the_others_are_scored():
    ended = []

    async def f(text):
        try:
            await asyncio.sleep(5 if text == "slow" else 0)
        finally:
            ended.append(text)
        return 1.0

    found = scores(f, [sample("slow"), sample("fast")], timeout_s=0.2)
    assert [score.failed for score in found] == ["timed out", None]
    assert ended == ["fast", "slow"]


def test_a_coroutine_that_blocks_its_loop_does_not_spoil_the_next_batch():
    async def f(text):
        if text == "block":
            time.sleep(2.5)
        return 1.0

    scorer = rubric.build(f, timeout_s=0.2, most_failures=1.0, warn=lambda text: None)
    assert scorer([sample("block")])[0].failed == "timed out"
    assert scorer([sample("fine")])[0].failed is None


def test_failures_are_counted_by_reason_and_only_the_first_is_shown():
    said = []
    scorer = rubric.build(misbehaving, most_failures=1.0, warn=said.append)
    scorer([sample("raise", place=1), sample("nan", place=2), sample("word", place=3), sample("raise", place=4)])
    assert scorer.failures.counts == {"raised KeyError": 2, "not finite": 1, "no number": 1}
    (text,) = said
    assert "misbehaving failed on problem p/1" in text
    assert 'raise KeyError("level")' in text
    assert text.endswith("KeyError: 'level'")
    assert "calls.py" not in text


def test_too_many_failures_end_the_run_with_reward_problem_and_cause():
    scorer = rubric.build(misbehaving, warn=lambda text: None)
    batch = [sample("raise", place=place) for place in range(8)]
    with pytest.raises(RewardError) as caught:
        scorer(batch)
    for part in ("misbehaving", "4 of the last 8 samples", "10%", "4 raised KeyError", "p/0", "KeyError: 'level'"):
        assert part in str(caught.value)


def test_a_bad_sample_in_a_small_batch_ends_nothing_and_a_share_over_the_limit_does():
    scorer = rubric.build(lambda text: 1.0 if text == "fine" else math.nan, most_failures=0.1, warn=lambda text: None)
    for _ in range(failures.FEWEST - 1):
        assert scorer([sample("bad")])[0].failed == "not finite"
    scorer([sample("fine")] * 37)
    scorer([sample("bad")])  # 4 of 41 are within 10 %
    with pytest.raises(RewardError, match="5 of the last 42"):
        scorer([sample("bad")])


def test_a_reward_that_dies_late_is_noticed_however_well_it_did_before():
    scorer = rubric.build(lambda text: 1.0 if text == "fine" else math.nan, most_failures=0.1, warn=lambda text: None)
    for _ in range(300):
        scorer([sample("fine")] * 10)
    batches = 0
    with pytest.raises(RewardError):
        for _ in range(30):
            scorer([sample("bad")] * 10)
            batches += 1
    assert batches == failures.WINDOW // 100


@given(st.lists(st.sampled_from(["fine", "nan", "word", "raise"]), max_size=20))
def test_there_is_one_score_a_sample_in_its_place_whatever_fails(texts):
    found = scores(lambda text: 1.0 if text == "fine" else misbehaving(text), [sample(text) for text in texts])
    assert [score.failed is None for score in found] == [text == "fine" for text in texts]


# Files that cannot be loaded


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        ("import math\nimport no_such_thing", ["mine.py", "line 2", "No module named 'no_such_thing'"]),
        ("x = 1\ndef deep():\n    return {}['key']\ndeep()", ["line 4", "line 3, in deep", "KeyError: 'key'"]),
        ("def f(:", ["mine.py", "line 1", "SyntaxError"]),
        ("raise SystemExit(3)", ["line 1", "SystemExit: 3"]),
    ],
)
def test_a_file_that_does_not_import_shows_its_own_traceback(tmp_path, body, parts):
    with pytest.raises(RequestError, match="failed to import") as caught:
        rubric.build(own_file(tmp_path, body))
    assert all(part in str(caught.value) for part in parts)
    assert "custom.py" not in str(caught.value)
    assert "importlib" not in str(caught.value)


def test_a_path_that_no_file_can_have_is_refused():
    with pytest.raises(RequestError, match="cannot be read"):
        rubric.build("x" * 5000 + ".py:f")


def test_a_function_that_is_not_there_and_a_file_that_is_not_there_are_named(tmp_path):
    with pytest.raises(RequestError, match="has no function 'f'; did you mean 'ff'"):
        rubric.build(own_file(tmp_path, "def ff(text): return 0"))
    with pytest.raises(RequestError, match=r"no file 'nowhere\.py'"):
        rubric.build("nowhere.py:f")
