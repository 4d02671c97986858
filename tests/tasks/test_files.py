"""Pins reading users' files: the three formats, column mapping, chats, and one clear message for each damage."""

import json

import pytest

from peerwise.errors import DataError, RequestError
from peerwise.tasks.base import load_task

ROW = {"prompt": "1 + 1?", "answer": "2", "solution": "1 + 1 = 2"}


def load(path, **more):
    return load_task("files", path=str(path), held_out=0, **more).train.problems


def save(tmp_path, content, name="data.jsonl"):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_the_three_formats_give_the_same_problem(tmp_path):
    import pyarrow.parquet

    save(tmp_path, json.dumps(ROW), "a.jsonl")
    save(tmp_path, "prompt,answer,solution\n1 + 1?,2,1 + 1 = 2\n", "a.csv")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([ROW]), tmp_path / "a.parquet")
    found = [load(tmp_path / name)[0] for name in ("a.jsonl", "a.csv", "a.parquet")]
    assert [p.answer for p in found] == ["2"] * 3
    assert {p.messages[0]["content"] for p in found} == {found[0].messages[0]["content"]}
    assert {p.solution for p in found} == {"1 + 1 = 2\n\\boxed{2}"}


def test_columns_are_mapped_and_other_columns_kept_for_reports(tmp_path):
    path = save(tmp_path, json.dumps({"q": "1 + 1?", "gold": 2.0, "level": "easy"}))
    (problem,) = load(path, columns={"prompt": "q", "answer": "gold"}, template="plain")
    assert (problem.messages[0]["content"], problem.answer, problem.solution) == ("1 + 1?", "2", None)
    assert problem.meta == {"line": 1, "level": "easy"}


def test_chat_messages_are_used_as_they_are(tmp_path):
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 1?"}]
    (problem,) = load(save(tmp_path, json.dumps({"prompt": chat, "answer": "2"})))
    assert list(problem.messages) == chat


def test_a_solution_that_states_its_answer_is_left_alone(tmp_path):
    solution = "So it is \\boxed{2}."
    (problem,) = load(save(tmp_path, json.dumps({**ROW, "solution": solution})))
    assert problem.solution == solution


def test_a_byte_order_mark_is_no_part_of_the_data(tmp_path):
    assert load(save(tmp_path, b"\xef\xbb\xbf" + json.dumps(ROW).encode()))[0].answer == "2"
    assert load(save(tmp_path, b"\xef\xbb\xbfprompt,answer\n1,2\n", "a.csv"))[0].answer == "2"


GOOD = json.dumps(ROW).encode() + b"\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (GOOD + b"\n" + b"{not json}\n", "line 3: not JSON"),
        (GOOD + b"[1]\n", "line 2: a JSON list, expected an object"),
        (b"[" * 100_000 + b"\n", "line 1: not JSON"),
        (GOOD + '{"prompt": "中", "answer": "1"}\n'.encode("gb18030"), "line 2: its byte 13 is no UTF-8.*iconv"),
        (b"", "the file has no rows"),
        (b'{"question": "1?", "answer": "2"}\n', "no column 'prompt'; found: question, answer; .*--task.columns"),
        (GOOD + b'{"prompt": "1?", "answer": " "}\n{"prompt": "1?", "answer": null}\n', "2 row.* line 2, 3"),
        (b'{"prompt": "", "answer": "2"}\n', "line 1: 'prompt' is empty"),
        (b'{"prompt": "1?", "answer": ["2"]}\n', "line 1: column 'answer' is a list"),
        (b'{"prompt": [{"role": "user"}], "answer": "2"}\n', "line 1: 'prompt' is .*role"),
        (b'{"prompt": [], "answer": "2"}\n', "line 1: 'prompt' is .*expected"),
    ],
)
def test_damage_is_named_with_its_line(tmp_path, content, message):
    with pytest.raises(DataError, match=message):
        load(save(tmp_path, content))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "prompt,answer\n1,2\n3\n", "line 3: not 2 fields"),
        ("a.csv", "prompt,answer\n1,2,3\n", "line 2: not 2 fields"),
        ("a.csv", 'prompt,answer\n1,"2" x\n', "line 2: not CSV"),
        ("a.parquet", "PAR1 it is not", "not a parquet file"),
        ("a.txt", "x", r"cannot read .txt; expected .jsonl, .csv, .parquet"),
    ],
)
def test_damage_in_other_formats_is_named_too(tmp_path, name, content, message):
    with pytest.raises(DataError, match=message):
        load(save(tmp_path, content, name))


def test_a_missing_path_split_or_role_says_so(tmp_path):
    with pytest.raises(DataError, match="no file or folder"):
        load(tmp_path / "nowhere.jsonl")
    with pytest.raises(DataError, match=r"no file for split 'train'; expected one of train.jsonl"):
        load(tmp_path)
    with pytest.raises(RequestError, match="needs a file or folder"):
        load_task("files")
    with pytest.raises(RequestError, match="did you mean 'answer'"):
        load(save(tmp_path, GOOD), columns={"answr": "gold"})


def test_files_of_one_name_in_two_folders_have_different_ids(tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        save(tmp_path / folder, GOOD, "train.jsonl")
    assert load(tmp_path / "one")[0].id != load(tmp_path / "two")[0].id
