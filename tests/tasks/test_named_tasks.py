"""Pins the loaders of known data sets: where the gold is found, what a worked solution looks like, what is dropped."""

import json
from pathlib import Path

import pytest

from peerwise.errors import DataError, RequestError
from peerwise.tasks import prompts
from peerwise.tasks.base import load_task

GSM8K = Path(__file__).parents[2] / ".." / "shared" / "data" / "gsm8k"


def save(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def test_gsm8k_gold_has_no_separators_and_the_solution_no_calculator_notes(tmp_path):
    answer = "She has 600+600=<<600+600=1200>>1,200 beads.\n#### 1,200"
    path = save(tmp_path / "train.jsonl", [{"question": "How many beads?", "answer": answer}])
    (problem,) = load_task("gsm8k", path=path, held_out=0).train.problems
    assert problem.answer == "1200"
    assert problem.solution == "She has 600+600=1,200 beads.\n\\boxed{1200}"
    assert problem.id == "gsm8k/train/1"


def test_gsm8k_rows_without_a_gold_are_counted(tmp_path):
    rows = [{"question": "a?", "answer": "no marker"}, {"question": "b?", "answer": "x\n#### 3"}]
    train = load_task("gsm8k", path=save(tmp_path / "train.jsonl", rows), held_out=0).train
    assert [p.answer for p in train.problems] == ["3"]
    assert train.dropped == {"no answer after ####": 1}


@pytest.mark.skipif(not GSM8K.is_dir(), reason="needs shared/data/gsm8k")
def test_the_real_gsm8k_loads_whole_with_its_test_split_held_out():
    data = load_task("gsm8k", path=str(GSM8K), held_out=None)
    # SOURCES.md: 7473 and 1319 rows, no question in both splits, every gold a whole number.
    assert (len(data.train.problems), len(data.held_out.problems)) == (7473, 1319)
    assert not data.train.dropped
    assert all(p.answer.removeprefix("-").isdigit() and "<<" not in p.solution for p in data.train.problems)


def test_math_takes_the_last_balanced_box_and_counts_rows_without_one(tmp_path):
    rows = [
        {"problem": "a", "level": "Level 1", "type": "Algebra", "solution": "\\boxed{1}, no: $\\boxed{\\frac{1}{2}}$."},
        {"problem": "b", "level": "Level 1", "type": "Algebra", "solution": "nothing"},
        {"problem": "c", "level": "Level 1", "type": "Algebra", "solution": "\\boxed{cut"},
        {"problem": "d", "level": "Level 2", "type": "Algebra", "solution": "So \\fbox{\\{1, 2\\}}"},
    ]
    train = load_task("math", path=save(tmp_path / "train.jsonl", rows), held_out=0, template="answer-zh").train
    assert [p.answer for p in train.problems] == ["\\frac{1}{2}", "\\{1, 2\\}"]
    assert train.dropped == {"no complete \\boxed in the solution": 2}
    assert train.problems[0].meta == {"line": 1, "level": "Level 1", "type": "Algebra"}
    assert train.problems[0].solution.endswith("\n### 答案: [\\frac{1}{2}]")


def test_a_hub_that_cannot_be_reached_is_answered_with_the_way_out(monkeypatch):
    import datasets

    def unreachable(*_, **__):
        raise ConnectionError("offline")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    for name in ("gsm8k", "math"):
        with pytest.raises(DataError, match=r"offline.*--task\.path"):
            load_task(name)


def test_the_hub_rows_are_read_by_split(monkeypatch):
    import datasets

    def fake(name, config, *, split):
        assert (name, config) == ("openai/gsm8k", "main")
        return [{"question": f"{split} question?", "answer": "1+1=2\n#### 2"}]

    monkeypatch.setattr(datasets, "load_dataset", fake)
    data = load_task("gsm8k", template="plain")
    assert [s.problems[0].messages[0]["content"] for s in (data.train, data.held_out)] == [
        "train question?",
        "test question?",
    ]


def test_parameters_a_task_would_ignore_are_refused():
    with pytest.raises(RequestError, match="takes neither params nor columns"):
        load_task("gsm8k", columns={"answer": "gold"})


def test_reasoning_gym_is_deterministic_disjoint_and_keeps_its_entry():
    arguments = {"params": {"dataset": "chain_sum", "size": 12, "max_terms": 3}, "held_out": 5, "seed": 7}
    data, again = load_task("reasoning-gym", **arguments), load_task("reasoning-gym", **arguments)
    assert data.train.problems == again.train.problems
    assert (len(data.train.problems), len(data.held_out.problems)) == (12, 5)
    questions = [{p.messages[0]["content"] for p in s.problems} for s in (data.train, data.held_out)]
    assert not questions[0] & questions[1]
    entry = data.train.problems[0].meta["entry"]
    assert data.train.problems[0].answer == entry["answer"] and entry["question"]
    assert data.train.problems[0].meta["dataset"] == "chain_sum"


def test_reasoning_gym_refuses_a_bad_value_in_its_own_words():
    with pytest.raises(RequestError, match="min_terms must be positive"):
        load_task("reasoning-gym", params={"dataset": "chain_sum", "min_terms": -1})


@pytest.mark.parametrize("template", prompts.TEMPLATES.values(), ids=lambda t: t.name)
def test_a_template_asks_in_one_user_message_and_states_answers_with_braces(template):
    (message,) = template.ask("What is {answer}?")
    assert message["role"] == "user" and message["content"].startswith("What is {answer}?")
    assert "\\frac{1}{2}" in template.state("\\frac{1}{2}")
