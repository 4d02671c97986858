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
        (GOOD + b'{"prompt": "1?", "answer": " "}\n{"prompt": "1?", "answer": null}\n', "2 missing.*line 2.*line 3"),
        (GOOD + b'{"prompt": "1?", "prompt": "2?", "answer": "3"}\n', "line 2: not JSON .*'prompt' stands twice"),
        (GOOD + b'{"prompt": "1\0?", "answer": "3"}\n', "line 2: it holds a NUL"),
        (GOOD.decode().encode("utf-16"), "line 1: its byte 1 is no UTF-8.*utf-16"),
        (GOOD.decode().encode("utf-32"), "line 1: its byte 1 is no UTF-8.*utf-32"),
        (b'{"prompt": "", "answer": "2"}\n', "line 1: 'prompt' is empty"),
        (b'{"prompt": "1?", "answer": ["2"]}\n', "line 1: column 'answer' is a list"),
        (b'{"prompt": [{"role": "user"}], "answer": "2"}\n', "line 1: 'prompt' is .*role"),
        (b'{"prompt": [], "answer": "2"}\n', "line 1: 'prompt' is .*expected"),
        (b'{"prompt": [{"role": "user", "content": " "}], "answer": "2"}\n', "line 1: 'prompt' is empty"),
        (b'{"prompt": [{"role": "", "content": "1?"}], "answer": "2"}\n', "line 1: 'prompt' is .*expected"),
        (b'{"prompt": [{"role": "user", "content": "\\ud800"}], "answer": "2"}\n', "'prompt' holds half a character"),
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


ROWS = [{"prompt": f"{i} 个苹果，每个 2 元，一共几元？", "answer": str(2 * i)} for i in range(1, 41)]


def text_of(rows):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "gbk", "gb18030", "big5hkscs", "utf-16", "utf-16-le"])
def test_a_file_is_read_in_the_encoding_that_is_named(tmp_path, encoding):
    rows = [{"prompt": "几元？", "answer": "2"}] if encoding.startswith("big5") else ROWS
    for name, text in (("a.jsonl", text_of(rows)), ("a.csv", "prompt,answer\r\n一加一？,2\r\n")):
        found = load(save(tmp_path, text.encode(encoding), name), encoding=encoding, template="plain")
        assert [p.answer for p in found] == (["2"] if name == "a.csv" else [row["answer"] for row in rows])
        assert found[0].messages[0]["content"] == ("一加一？" if name == "a.csv" else rows[0]["prompt"])


def test_a_few_rows_that_cannot_be_read_are_left_out_with_their_lines(tmp_path):
    # 2 of 42 rows are below the twentieth at which loading stops.
    lines = text_of(ROWS).encode().splitlines(keepends=True)
    lines[2:2] = [lines[0].replace("个".encode(), b"\xff", 1)]
    train = load_task("files", path=str(save(tmp_path, b"".join(lines) + b"[1]\n")), held_out=0).train
    assert len(train.problems) == 40 and train.rows == 42
    assert train.dropped == {"misencoded": 1, "malformed": 1}
    assert [e.line for reason in ("misencoded", "malformed") for e in train.examples[reason]] == [3, 42]
    # The bad byte follows {"prompt": "1 , of 14 bytes.
    assert "line 3: its byte 15 is no UTF-8" in train.examples["misencoded"][0].note


def test_more_than_a_twentieth_of_rows_that_cannot_be_read_stops_the_loading(tmp_path):
    with pytest.raises(DataError, match=r"3 of 43 rows cannot be used, more than 5%: 3 malformed .*also line 42, 43"):
        load(save(tmp_path, text_of(ROWS) + "[1]\n" * 3))


def test_an_unknown_encoding_is_refused(tmp_path):
    for name in ("gkb", "rot13", "hex", "a\0b"):
        with pytest.raises(RequestError, match=r"encoding .* is not known"):
            load(save(tmp_path, GOOD), encoding=name)


def test_a_damaged_line_of_a_csv_costs_its_own_record_only(tmp_path):
    content = "prompt,answer\n" + "1 + 1?,2\n" * 20 + "X\n" + '"2 +\n3?",5\n'
    damaged = content.encode().replace(b"X", b"\xff\xff,1")
    train = load_task("files", path=str(save(tmp_path, damaged, "a.csv")), held_out=0, template="plain").train
    assert [p.messages[0]["content"] for p in train.problems] == ["1 + 1?", "2 +\n3?"]
    assert train.problems[1].meta["line"] == 24
    assert (train.dropped["misencoded"], train.examples["misencoded"][0].line) == (1, 22)


def test_an_endless_line_is_passed_over_without_being_held(tmp_path, monkeypatch):
    from peerwise.tasks import formats

    monkeypatch.setattr(formats, "LONGEST_LINE", 200)
    given = text_of(ROWS) + '{"prompt": "' + "a" * 1000 + '", "answer": "1"}\n' + text_of([{**ROWS[0], "prompt": "x"}])
    train = load_task("files", path=str(save(tmp_path, given)), held_out=0).train
    assert (len(train.problems), train.dropped, train.examples["malformed"][0].line) == (41, {"malformed": 1}, 41)
    assert train.problems[-1].meta["line"] == 42


def test_nested_and_binary_parquet_columns_are_no_text(tmp_path):
    import pyarrow.parquet

    rows = [{"prompt": [{"role": "user", "content": f"{i}?"}], "answer": str(i)} for i in range(3)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "chat.parquet")
    assert [p.messages[0]["content"] for p in load(tmp_path / "chat.parquet")] == ["0?", "1?", "2?"]
    for answer in (b"2", {"value": "2"}, ["2"]):
        table = pyarrow.Table.from_pylist([{"prompt": "1?", "answer": answer}])
        pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
        with pytest.raises(DataError, match=r"column 'answer' is a (bytes|dict|list)"):
            load(tmp_path / "a.parquet")


def test_parquet_that_names_a_column_twice_is_refused_and_a_value_out_of_range_costs_its_row(tmp_path):
    import pyarrow.parquet

    path = tmp_path / "a.parquet"
    twice = pyarrow.table([["1?"], ["2"], ["3"]], names=["prompt", "answer", "answer"])
    pyarrow.parquet.write_table(twice, path)
    with pytest.raises(DataError, match="a column stands twice in the header: prompt, answer, answer"):
        load(path)
    times = pyarrow.array([1, 2**50, 3], pyarrow.timestamp("ms"))  # the second is in the year 37648
    pyarrow.parquet.write_table(pyarrow.table({"prompt": list("abc"), "answer": list("123"), "at": times}), path)
    train = load_task("files", path=str(path), held_out=1, max_faulty=0.5).train
    assert train.dropped["malformed"] == 1 and train.examples["malformed"][0].line == 2


def test_columns_called_like_what_is_remembered_of_a_row_do_not_stand_for_it(tmp_path):
    row = {**ROW, "solution": "So it is \\boxed{2}.", "line": 7, "statement_added": True, "level": 3}
    (problem,) = load(save(tmp_path, json.dumps(row)))
    assert problem.meta == {"line": 1, "level": 3}


def test_a_missing_path_split_or_role_says_so(tmp_path):
    with pytest.raises(DataError, match=r"cannot be read .*name too long"):
        load("x" * 5000 + ".jsonl")
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
