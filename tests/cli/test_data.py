"""Pins `peerwise data check`: what is said for people and as JSON, exit codes, clean copies that touch nothing else,
and that no file, however hostile, gets more than a message."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from peerwise.cli.main import main

SHARED = Path(__file__).parents[2] / ".." / "shared" / "data"


def check(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    """The one object that --json prints."""
    assert main(["data", "check", *map(str, words), "--json"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    record: dict[str, Any] = json.loads(out)
    return record


def counts(record: dict[str, Any]) -> dict[str, int]:
    return {reason: found["count"] for reason, found in record["reasons"].items() if found["count"]}


def lines_of(record: dict[str, Any], reason: str) -> list[int]:
    return [example["line"] for example in record["reasons"][reason]["examples"]]


def save(path: Path, *rows: dict[str, Any] | str) -> Path:
    texts = (row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows)
    path.write_text("".join(text + "\n" for text in texts), encoding="utf-8")
    return path


def row(prompt: str, answer: object, **more: object) -> dict[str, Any]:
    return {"prompt": prompt, "answer": answer, **more}


PROSE = "it depends on how one looks at it, since there are many good reasons for and against either of them"
BAD = (
    row("What is 1 + 1?", 2, rate=0.5),  # 1
    "{not json",  # 2
    row("what is  1 + 1 ?", "2"),  # 3 duplicate of 1
    {"prompt": "No answer?"},  # 4 missing
    row("Torn?", "18"),  # 5 contradicts 6
    row("Torn?", "10"),  # 6
    row("Halves?", "1/2"),  # 7
    row("Halves?", "0.5"),  # 8 duplicate of 7: the golds are equal
    row("Why?", PROSE),  # 9 unverifiable
    row("Sum of 3 and 4?", "8", solution="3 + 4 = 7"),  # 10 disagreeing
    row("Long " + "word " * 50, "3"),  # 11 overlong
    row("Tested?", "3"),  # 12 in the test split
    row("", "3"),  # 13 missing
)


def test_each_row_is_counted_once_under_its_reason_with_its_line(tmp_path, capsys):
    data = save(tmp_path / "data.jsonl", *BAD)
    test = save(tmp_path / "test.jsonl", {"q": "tested", "gold": 3})
    record = check(capsys, data, "--test", test, "--test-columns", "prompt=q", "answer=gold")
    assert counts(record) == {
        "malformed": 1, "missing": 2, "contradictory": 2, "duplicate": 2, "unverifiable": 1, "disagreeing": 1,
        "overlap": 1,
    }  # fmt: skip
    assert record["rows"] == 13 and record["clean"] == 3
    assert lines_of(record, "malformed") == [2]
    assert lines_of(record, "missing") == [4, 13]
    assert lines_of(record, "contradictory") == [5, 6]
    assert lines_of(record, "duplicate") == [3, 8]
    assert lines_of(record, "disagreeing") == [10]
    assert "'18' at line 5; '10' at line 6" in record["reasons"]["contradictory"]["examples"][0]["note"]
    assert set(record["not_checked"]) == {"overlong", "too-easy", "too-hard"}
    assert record["test"]["clean"] == record["test"]["rows"] == 1


def test_a_model_and_a_column_of_pass_rates_add_their_checks(here, capsys):
    rates = [row(f"{i} and {i}?", 2 * i, rate=i / 4) for i in range(5)]
    save(here / "rates.jsonl", *rates, row("Long " + "word " * 50, "3", rate=0.5))
    words = ("rates.jsonl", "--model", "model", "--max-prompt-tokens", "100", "--template", "plain")
    record = check(capsys, *words, "--pass-rate", "rate", "--keep-rates", "0", "0.75")
    assert counts(record) == {"overlong": 1, "too-hard": 1, "too-easy": 2}
    assert lines_of(record, "overlong") == [6]
    assert lines_of(record, "too-easy") == [4, 5]


def test_people_are_shown_counts_lines_and_what_was_not_checked(tmp_path, capsys):
    assert main(["data", "check", str(save(tmp_path / "data.jsonl", *BAD))]) == 0
    out = capsys.readouterr().out
    assert "13 rows, 4 clean" in out
    assert "      2 contradictory: same question as another row, different gold" in out
    assert "line 5: '18' at line 5; '10' at line 6" in out
    assert "line 2: not JSON" in out
    assert "not checked: overlong (tokens are a model's; name one with --model)" in out


def test_a_clean_copy_has_the_clean_rows_as_they_were(tmp_path, capsys):
    data = save(tmp_path / "data.jsonl", *BAD)
    before = data.read_bytes()
    out = tmp_path / "clean.jsonl"
    record = check(capsys, data, "--fix", out)
    assert record["fixed"] == str(out)
    kept = before.decode().splitlines(keepends=True)
    assert out.read_text() == "".join(kept[i - 1] for i in (1, 7, 11, 12))
    report = json.loads((tmp_path / "clean.jsonl.report.json").read_text())
    assert report == {key: value for key, value in record.items() if key != "fixed"}
    assert data.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clean.jsonl", "clean.jsonl.report.json", "data.jsonl"]
    # What was written is clean, and is not written twice.
    assert counts(check(capsys, out)) == {}
    assert main(["data", "check", str(data), "--fix", str(out)]) == 2
    assert "exists and is not overwritten" in capsys.readouterr().err


def test_a_column_called_line_says_nothing_of_where_a_row_stands(tmp_path, capsys):
    path = save(tmp_path / "a.jsonl", row("Same?", 1, line=7), row("same ?", 1, line=9), row("Other?", 3, line="x"))
    record = check(capsys, path, "--fix", tmp_path / "b.jsonl")
    assert lines_of(record, "duplicate") == [2]
    first, _, third = path.read_text(encoding="utf-8").splitlines()
    assert (tmp_path / "b.jsonl").read_text(encoding="utf-8").splitlines() == [first, third]


def test_a_name_that_is_no_text_is_spelled_out(tmp_path, capsys):
    path = tmp_path / os.fsdecode(b"b\xff.jsonl")
    try:
        save(path, row("1 + 1?", 2))
    except OSError:
        pytest.skip("the file system takes no such name")
    assert check(capsys, path)["data"].endswith("b\\udcff.jsonl")


@pytest.mark.parametrize("encoding", ["ascii", "gbk", "utf-8"])
def test_golds_are_shown_on_every_console(tmp_path, monkeypatch, encoding):
    path = save(tmp_path / "a.jsonl", row("几个？", "八个"), row("几个？", "九个\U0001f600"), row("1 + 1?", 2))
    for words, shown in (((), {"ascii": "\\u516b", "gbk": "八", "utf-8": "\U0001f600"}[encoding]), (("--json",), "8")):
        out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        monkeypatch.setattr("sys.stdout", out)
        assert main(["data", "check", str(path), *words]) == 0
        out.seek(0)
        text = out.read()
        assert shown in text
        if words:
            assert "\U0001f600" in json.loads(text)["reasons"]["contradictory"]["examples"][0]["note"]


def test_a_clean_copy_of_a_gbk_table_is_a_utf_8_table(tmp_path, capsys):
    rows = [["一加一\n等于几？", "2"], ['"二"，加二？', "4"], ["二加三？", ""]]
    with (tmp_path / "a.csv").open("w", encoding="gbk", newline="") as file:
        csv.writer(file).writerows([["prompt", "answer"], *rows])
    out = tmp_path / "b.csv"
    assert counts(check(capsys, tmp_path / "a.csv", "--encoding", "gbk", "--fix", out)) == {"missing": 1}
    with out.open(encoding="utf-8", newline="") as file:
        assert list(csv.reader(file)) == [["prompt", "answer"], *rows[:2]]
    check(capsys, tmp_path / "a.csv", "--encoding", "gbk", "--fix", tmp_path / "c.jsonl")
    assert json.loads((tmp_path / "c.jsonl").read_text(encoding="utf-8").splitlines()[1])["prompt"] == rows[1][0]


def test_a_clean_copy_of_parquet_keeps_types_and_nested_columns(tmp_path, capsys):
    import pyarrow.parquet

    rows = [{"prompt": [{"role": "user", "content": f"{i}?"}], "answer": i, "more": {"x": [i]}} for i in range(3)]
    given = pyarrow.Table.from_pylist([*rows, rows[0]])
    pyarrow.parquet.write_table(given, tmp_path / "a.parquet")
    record = check(capsys, tmp_path / "a.parquet", "--fix", tmp_path / "b.parquet")
    assert counts(record) == {"duplicate": 1}
    found = pyarrow.parquet.read_table(tmp_path / "b.parquet")
    assert found.to_pylist() == rows and found.schema == given.schema


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "required: check"),
        (["check"], "required: FILE|TASK"),
        (["check", "nowhere.jsonl"], "no file or folder 'nowhere.jsonl'"),
        (["check", "gms8k"], "no file or folder 'gms8k'; of tasks, did you mean 'gsm8k'"),
        (["check", "data.jsonl", "--keep-rates", "0.9", "0.1"], "LOW must be less than HIGH"),
        (["check", "data.jsonl", "--keep-rates", "0", "90"], "got '90', expected a number from 0 to 1"),
        (["check", "data.jsonl", "--test", "bad.jsonl"], "peerwise: bad.jsonl: none of 1 rows"),
        (["check", "data.jsonl", "--fix", "x" * 300 + ".jsonl"], "cannot be written .*too long"),
        (["check", "."], "no file for split 'train'"),
        (["check", "data.jsonl", "--path", "x"], "--path goes with a task's name"),
        (["check", "data.jsonl", "--test-columns", "a=b"], "--test-columns goes with --test"),
        (["check", "data.jsonl", "--columns", "promt=q"], "did you mean 'prompt'"),
        (["check", "data.jsonl", "--columns", "answer=gold"], "none of 12 rows .* no column 'gold'; found: prompt, a"),
        (["check", "data.jsonl", "--encoding", "gkb"], "encoding 'gkb' is not known"),
        (["check", "data.jsonl", "--pass-rate", "rate"], "no column 'rate' with pass rates; found: none"),
        (["check", "data.jsonl", "--model", "no/such/model"], "its tokenizer could not be loaded"),
        (["check", "data.jsonl", "--fix", "data.jsonl"], "data.jsonl exists and is not overwritten"),
        (["check", "data.jsonl", "--fix", "x.csv"], "expected a name that ends in .jsonl"),
        (["check", "data.jsonl", "--fix", "no/x.jsonl"], "there is no folder"),
        (["check", "arithmetic", "--fix", "x.jsonl"], "--fix copies a file"),
        (["check", "arithmetic", "--params", "[1]"], "expected an object"),
        (["check", "mbpp", "--path", "."], "template"),
    ],
)
def test_what_cannot_be_served_gets_one_message_and_writes_nothing(here, capsys, monkeypatch, words, message):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    save(here / "bad.jsonl", "not JSON")
    before = sorted(here.iterdir())
    assert main(["data", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("peerwise: ") == 1
    import re

    assert re.search(message, captured.err)
    assert sorted(here.iterdir()) == before


GOOD = json.dumps(row("1 + 1?", 2)).encode() + b"\n"
HOSTILE = {
    "empty.jsonl": b"",
    "blank.jsonl": b"\n\n \n",
    "binary.jsonl": bytes(range(256)) * 64,
    "nul.jsonl": b"\0" * 1000,
    "utf16.jsonl": GOOD.decode().encode("utf-16"),
    "list.jsonl": b"[1, 2]\n",
    "one-column.csv": b"prompt\n1 + 1?\n",
    "twice.csv": b"prompt,answer,answer\n1,2,3\n",
    "quote.csv": b'prompt,answer\n"1 + 1?,2\n' + b"3,4\n" * 9,
    "not.parquet": b"PAR1" + b"\0" * 100 + b"PAR1",
    "empty.csv": b"prompt,answer\n",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_without_one_good_row_is_refused_in_one_line(tmp_path, capsys, name):
    path = tmp_path / name
    path.write_bytes(HOSTILE[name])
    assert main(["data", "check", str(path), "--json"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert str(path) in captured.err and "internal error" not in captured.err


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"[" * 200_000, "malformed"),
        (b'{"a":' * 200_000, "malformed"),
        (b'{"prompt": "a?", "answer": ' + b"9" * 5000 + b"}", "malformed"),
        (b'{"prompt": "a?", "answer": NaN}', None),
        (b'{"prompt": "a?", "answer": true}', None),
        (b'{"prompt": "a?", "answer": 1e400}', None),
        (b'{"prompt": "\\ud800?", "answer": "1"}', "malformed"),
        (b'{"\\ud800": "\\u001b[31m"}', "missing"),
        (b'{"prompt": "a?", "answer": "' + b"9^" * 300 + b'9"}', None),
        (b'{"prompt": "a?", "answer": "4", "solution": "' + b"{" * 5000 + b'"}', None),
        (b'{"prompt": "' + b"the " * 1_000_000 + b'", "answer": "4"}', None),
        (b"x" * (1 << 24) + b"y" * 1000, "malformed"),
    ],
)
def test_a_hostile_row_costs_itself_only(tmp_path, capsys, line, reason):
    path = tmp_path / "a.jsonl"
    path.write_bytes(GOOD + line + b"\r\n" + GOOD.replace(b"1 +", b"3 +").replace(b"2}", b"4}"))
    record = check(capsys, path)
    assert record["rows"] == 3 and record["clean"] >= 2
    if reason:
        assert counts(record) == {reason: 1} and lines_of(record, reason) == [2]
    assert main(["data", "check", str(path)]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_a_quotation_mark_that_is_never_closed_names_the_lines_it_costs(tmp_path, capsys):
    path = tmp_path / "a.csv"
    path.write_bytes(b'prompt,answer\n"1 + 1?,2\n' + b"3,4\n" * 33_000)
    record = check(capsys, path)
    note = record["reasons"]["malformed"]["examples"][0]["note"]
    assert "lines 2 to 32768 are lost: is a quotation mark never closed?" in note
    assert record["clean"] == 1


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs shared/data")
def test_known_facts_of_public_sets_are_found(capsys):
    # SOURCES.md: no GSM8K question is in both splits, every gold is a number; cmath dev and test share 3 questions.
    found = counts(check(capsys, "gsm8k", "--path", SHARED / "gsm8k"))
    assert not found.keys() - {"disagreeing", "near-overlap"}
    words = ("--columns", "prompt=input", "answer=golden", "--test-columns", "prompt=question")
    record = check(capsys, SHARED / "cmath" / "dev.jsonl", *words, "--test", SHARED / "cmath" / "test.jsonl")
    assert counts(record)["overlap"] == 3
