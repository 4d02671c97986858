"""Pins what keeps evaluation problems out of training, and that everything left out is counted by reason."""

import json

import pytest

from peerwise.errors import DataError, RequestError
from peerwise.records import Problem
from peerwise.tasks import prompts, splits
from peerwise.tasks.base import ProblemSet, drop_overlong, load_evaluation, load_task


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def rows(n, start=0):
    return [{"prompt": f"What is {i} + 1?", "answer": i + 1} for i in range(start, start + n)]


def questions(problems):
    return [p.messages[0]["content"].split("\n")[0] for p in problems.problems]


def test_the_own_test_split_is_held_out_by_a_seeded_choice(tmp_path):
    write(tmp_path / "train.jsonl", rows(10))
    write(tmp_path / "test.jsonl", rows(10, start=100))
    first, again, other = (load_task("files", path=str(tmp_path), held_out=4, seed=s) for s in (0, 0, 1))
    assert questions(first.held_out) == questions(again.held_out) != questions(other.held_out)
    assert len(first.held_out.problems) == 4 and len(first.train.problems) == 10


def test_none_holds_out_the_whole_test_split(tmp_path):
    write(tmp_path / "train.jsonl", rows(10))
    write(tmp_path / "test.jsonl", rows(7, start=100))
    assert len(load_task("files", path=str(tmp_path), held_out=None).held_out.problems) == 7


def test_an_eval_split_is_taken_by_name(tmp_path):
    write(tmp_path / "train.jsonl", rows(10))
    write(tmp_path / "dev.jsonl", rows(3, start=100))
    data = load_task("files", path=str(tmp_path), eval_split="dev")
    assert sorted(questions(data.held_out)) == ["What is 100 + 1?", "What is 101 + 1?", "What is 102 + 1?"]


def test_without_a_test_split_problems_are_drawn_from_train_at_most_half(tmp_path):
    data = load_task("files", path=write(tmp_path / "all.jsonl", rows(10)))
    assert len(data.held_out.problems) == len(data.train.problems) == 5
    assert not set(questions(data.held_out)) & set(questions(data.train))
    assert data.train.dropped == {"held out for evaluation": 5}


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("Caf\u00e9 bill?", "Cafe\u0301 bill?", True),
        ("Co\u00adoperate?", "cooperate", True),
        ("２ 个＋３个？", "2个+3 个?", True),
        ("What is 2²?", "What is 22?", False),
        ("What is ½?", "What is 1/2?", False),
    ],
)
def test_ways_to_write_the_same_question_are_folded_and_values_are_not(one, other, same):
    assert (splits.normalised(one) == splits.normalised(other)) is same


def test_a_held_out_question_in_other_case_and_spacing_is_removed_from_train(tmp_path):
    write(tmp_path / "train.jsonl", [{"prompt": "what  is\n2 + 2?", "answer": "4"}, *rows(3, start=50)])
    write(tmp_path / "test.jsonl", [{"prompt": "What is 2 + 2?", "answer": "4"}])
    data = load_task("files", path=str(tmp_path))
    assert len(data.train.problems) == 3 and data.train.dropped == {"held out for evaluation": 1}


def test_duplicates_keep_one_and_contradictions_keep_none(tmp_path):
    given = [
        {"prompt": "twice?", "answer": "1"},
        {"prompt": "Twice?", "answer": "1"},
        {"prompt": "torn?", "answer": "1"},
        {"prompt": "torn?", "answer": "2"},
        {"prompt": "once?", "answer": "3"},
    ]
    data = load_task("files", path=write(tmp_path / "a.jsonl", given), held_out=0)
    assert questions(data.train) == ["twice?", "once?"]
    assert data.train.dropped == {"duplicate": 1, "contradictory": 2}
    assert [(e.line, e.note) for e in data.train.examples["contradictory"]] == [
        (3, "'1' at line 3; '2' at line 4"),
        (4, "'1' at line 3; '2' at line 4"),
    ]
    assert [(e.line, e.note) for e in data.train.examples["duplicate"]] == [(2, "asks the same as line 1")]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("What is 2 + 2?", "what is  2 + 2 ？"),
        ("“Two” apples.", '"two" apples'),
        ("小明有 3 个苹果，吃了1个。", "小明有3个苹果，吃了 1 个"),
        ("Ａ＋Ｂ等于几？", "A+B等于几?"),
    ],
)
def test_spelling_does_not_make_another_question(one, other):
    assert splits.normalised(one) == splits.normalised(other)


@pytest.mark.parametrize(("one", "other"), [("2²", "22"), ("1 2", "12"), ("x - 1", "x + 1"), ("3.5", "35")])
def test_what_is_asked_for_is_not_folded_away(one, other):
    assert splits.normalised(one) != splits.normalised(other)


def test_golds_that_differ_only_in_spelling_do_not_contradict(tmp_path):
    given = [
        {"prompt": "a?", "answer": "1,000"},
        {"prompt": "a?", "answer": "$1000"},
        {"prompt": "b?", "answer": "1/2"},
    ]
    path = write(tmp_path / "a.jsonl", [*given, {"prompt": "b?", "answer": "0.5"}])
    assert load_task("files", path=path, held_out=0).train.dropped == {"duplicate": 1, "contradictory": 2}
    # A grader knows more than spelling.
    same = load_task("files", path=path, held_out=0, same=lambda one, other: True)
    assert same.train.dropped == {"duplicate": 2}


def test_limit_takes_the_first_problems_and_counts_the_rest(tmp_path):
    data = load_task("files", path=write(tmp_path / "a.jsonl", rows(6)), held_out=0, limit=2)
    assert questions(data.train) == ["What is 0 + 1?", "What is 1 + 1?"]
    assert data.train.dropped == {"beyond the limit": 4}


def test_when_nothing_is_left_to_train_on_the_reasons_are_named(tmp_path):
    write(tmp_path / "train.jsonl", rows(2))
    write(tmp_path / "test.jsonl", rows(2))
    with pytest.raises(DataError, match="2 held out for evaluation"):
        load_task("files", path=str(tmp_path))


def problem(text):
    return Problem(id=text, task="files", messages=({"role": "user", "content": text},), answer="1")


def test_overlong_prompts_are_left_out_and_counted():
    given = ProblemSet(problems=(problem("a"), problem("a b c"), problem("a b")), dropped={"other": 1})
    kept = drop_overlong(given, lambda p: len(p.messages[0]["content"].split()), 2)
    assert [p.id for p in kept.problems] == ["a", "a b"]
    assert kept.dropped == {"other": 1, "overlong": 1}


def test_when_every_prompt_is_overlong_it_is_an_error():
    with pytest.raises(DataError, match="every prompt is longer than 2 tokens"):
        drop_overlong(ProblemSet(problems=(problem("a b c"),)), lambda p: 3, 2)


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ({"name": "gms8k"}, "did you mean 'gsm8k'"),
        ({"name": "arithmetic", "template": "boxd"}, "did you mean 'boxed'"),
        ({"name": "reasoning-gym", "params": {"dataset": "chain_sums"}}, "did you mean 'chain_sum'"),
        ({"name": "reasoning-gym", "params": {"dataset": "chain_sum", "min_term": 2}}, "did you mean 'min_terms'"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(arguments, hint):
    with pytest.raises(RequestError, match=hint):
        load_task(**arguments)


def test_importing_the_tasks_imports_no_torch_and_no_data_library():
    import subprocess
    import sys

    code = (
        "import sys, peerwise.tasks.base; print({'torch', 'datasets', 'pyarrow', 'reasoning_gym'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_question_is_the_same_under_any_template():
    asked = [prompts.get(name).ask("How many?") for name in prompts.TEMPLATES]
    keys = {splits.question_key(Problem(id="x", task="t", messages=messages, answer="1")) for messages in asked}
    assert keys == {"how many"}


def test_for_evaluation_alone_a_file_is_taken_whole(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(f'{{"prompt": "{i} + 1 = ?", "answer": "{i + 1}"}}\n' for i in range(5)))
    for split in (None, "test", "anything"):
        assert len(load_evaluation("files", path=str(path), split=split).problems) == 5
    assert len(load_evaluation("files", path=str(path), held_out=3).problems) == 3


def test_for_evaluation_alone_a_generated_task_gives_what_a_training_run_holds_out():
    trained = load_task("arithmetic", params={"size": 50}, held_out=20, seed=4)
    alone = load_evaluation("arithmetic", params={"size": 50}, held_out=20, seed=4)
    assert [p.id for p in alone.problems] == [p.id for p in trained.held_out.problems]
