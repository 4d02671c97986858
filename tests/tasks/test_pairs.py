"""Pins reading pairs of a better and a worse answer: the formats, chats and templates, what is left out and counted,
and one clear message for each damage."""

import json

import pytest

from peerwise.errors import DataError
from peerwise.tasks.pairs import Pair, load_pairs
from peerwise.tasks.prompts import get

PLAIN, BOXED = get("plain"), get("boxed")
ROW = {"prompt": "6 * 7?", "chosen": "42", "rejected": "41"}


def save(tmp_path, *rows, name="mine.jsonl"):
    path = tmp_path / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def asked(text):
    return ({"role": "user", "content": text},)


def test_a_row_is_a_pair_with_the_line_it_stands_on(tmp_path):
    path = save(tmp_path, ROW, {**ROW, "prompt": "6 * 8?", "chosen": "48"})
    pairs, dropped = load_pairs(path, PLAIN)
    assert pairs == (
        Pair(id="mine/1", messages=asked("6 * 7?"), chosen="42", rejected="41"),
        Pair(id="mine/2", messages=asked("6 * 8?"), chosen="48", rejected="41"),
    )
    assert dropped == {}


def test_the_three_formats_give_the_same_pairs(tmp_path):
    import pyarrow.parquet

    second = {"prompt": "a, b?", "chosen": "yes\nyes", "rejected": '"no"'}
    save(tmp_path, ROW, second, name="mine.jsonl")
    (tmp_path / "mine.csv").write_text('prompt,chosen,rejected\n6 * 7?,42,41\n"a, b?","yes\nyes","""no"""\n')
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([ROW, second]), tmp_path / "mine.parquet")
    found = [load_pairs(str(tmp_path / f"mine.{kind}"), PLAIN)[0] for kind in ("jsonl", "csv", "parquet")]
    texts = [[(pair.messages, pair.chosen, pair.rejected) for pair in pairs] for pairs in found]
    assert texts[0] == [(asked("6 * 7?"), "42", "41"), (asked("a, b?"), "yes\nyes", '"no"')]
    assert texts[1] == texts[2] == texts[0]


def test_a_text_is_asked_with_the_template_and_a_chat_stands_as_it_is(tmp_path):
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "6 * 7?"}]
    path = save(tmp_path, ROW, {**ROW, "prompt": chat})
    first, second = load_pairs(path, BOXED)[0]
    assert first.messages == BOXED.ask("6 * 7?") != asked("6 * 7?")
    assert second.messages == tuple(chat)


def test_parquet_holds_chats_too(tmp_path):
    import pyarrow.parquet

    chat = [{"role": "user", "content": "6 * 7?"}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([{**ROW, "prompt": chat}]), tmp_path / "mine.parquet")
    ((pair,), _) = load_pairs(str(tmp_path / "mine.parquet"), BOXED)
    assert pair.messages == tuple(chat)


def test_what_cannot_teach_is_left_out_and_counted_by_reason(tmp_path):
    path = save(
        tmp_path,
        ROW,
        {**ROW, "chosen": ""},
        {**ROW, "rejected": None},
        {**ROW, "chosen": "  ", "rejected": "\n"},
        {**ROW, "rejected": "42"},
        {**ROW, "rejected": " 42 "},
        {**ROW, "chosen": " 42"},
        ROW,
        {**ROW, "rejected": "43"},
        {**ROW, "chosen": "41", "rejected": "42"},
    )
    pairs, dropped = load_pairs(path, PLAIN)
    assert [pair.id for pair in pairs] == ["mine/1", "mine/9", "mine/10"]
    assert dropped == {"empty answer": 3, "chosen and rejected alike": 2, "duplicate pair": 2}


def test_the_same_answers_to_another_prompt_are_another_pair(tmp_path):
    chat = [{"role": "user", "content": "6 * 7?"}]
    other = [{"role": "user", "content": "7 * 6?"}]
    path = save(tmp_path, {**ROW, "prompt": chat}, {**ROW, "prompt": other}, {**ROW, "prompt": chat}, ROW)
    pairs, dropped = load_pairs(path, PLAIN)
    # A chat of one question is what the plain template makes of the text.
    assert [pair.id for pair in pairs] == ["mine/1", "mine/2"]
    assert dropped == {"duplicate pair": 2}


def test_numbers_are_answers_and_zero_is_not_empty(tmp_path):
    path = save(tmp_path, {"prompt": "6 * 7?", "chosen": 42.0, "rejected": 0})
    ((pair,), dropped) = load_pairs(path, PLAIN)
    assert (pair.chosen, pair.rejected, dropped) == ("42", "0", {})


@pytest.mark.parametrize("column", ["prompt", "chosen", "rejected"])
def test_a_missing_column_is_named_with_those_that_are_there(tmp_path, column):
    row = {key: value for key, value in ROW.items() if key != column} | {"other": "x"}
    with pytest.raises(DataError, match=rf"mine\.jsonl, line 2: no column '{column}'; found: .*other"):
        load_pairs(save(tmp_path, ROW, row), PLAIN)


def test_a_missing_column_is_not_answered_with_a_setting_that_does_nothing_for_pairs(tmp_path):
    # task.columns maps the task's own file; the columns of pairs have fixed names.
    with pytest.raises(DataError, match="no column 'chosen'") as caught:
        load_pairs(save(tmp_path, {"prompt": "?", "good": "a", "rejected": "b"}), PLAIN)
    assert "task.columns" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"chosen": ["42"]}, "column 'chosen' is a list, expected text or a number"),
        ({"rejected": {"text": "41"}}, "column 'rejected' is a dict, expected text or a number"),
        ({"prompt": {"role": "user"}}, "column 'prompt' is a dict"),
        ({"prompt": []}, "'prompt' is [], expected"),
        ({"prompt": ["6 * 7?"]}, "'prompt' is [\"6 * 7?\"], expected"),
        ({"prompt": [{"role": "user"}]}, '\'prompt\' is [{"role": "user"}], expected'),
        ({"prompt": " "}, "'prompt' is empty; fill or remove the row"),
        ({"chosen": "\ud83d"}, "column 'chosen' holds half a character"),
    ],
)
def test_a_column_that_holds_something_else_is_an_error_with_its_line(tmp_path, change, expected):
    with pytest.raises(DataError) as caught:
        load_pairs(save(tmp_path, ROW, {**ROW, **change}), PLAIN)
    assert f"mine.jsonl, line 2: {expected}" in str(caught.value)


def test_a_file_of_which_nothing_is_left_is_an_error_that_says_why(tmp_path):
    path = save(tmp_path, {**ROW, "chosen": ""}, {**ROW, "rejected": "42"}, {**ROW, "rejected": ""})
    with pytest.raises(DataError) as caught:
        load_pairs(path, PLAIN)
    assert "has no pair left to learn from (2 empty answer, 1 chosen and rejected alike)" in str(caught.value)


def test_a_file_that_is_not_there_is_named_with_what_to_give(tmp_path):
    for path in (tmp_path / "missing.jsonl", tmp_path):
        with pytest.raises(DataError, match=r"dpo\.pairs: there is no file .*; give a jsonl, csv or parquet file"):
            load_pairs(str(path), PLAIN)


def test_a_file_of_another_kind_or_without_rows_is_refused(tmp_path):
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(DataError, match=r"cannot read \.txt; expected \.jsonl, \.csv, \.parquet"):
        load_pairs(str(tmp_path / "mine.txt"), PLAIN)
    with pytest.raises(DataError, match="the file has no rows"):
        load_pairs(save(tmp_path), PLAIN)


def test_a_file_below_the_home_folder_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    save(tmp_path, ROW)
    assert len(load_pairs("~/mine.jsonl", PLAIN)[0]) == 1
