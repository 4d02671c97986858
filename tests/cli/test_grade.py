"""Pins `peerwise grade`: the counts on stdout, the verdicts in a file, and what becomes of lines that are no rows."""

import json

import pytest

from peerwise.cli.main import main

ROWS = [
    {"id": "a", "kind": "completion", "prediction": "so \\boxed{8}", "gold": "8", "equal": True},
    {"id": "b", "kind": "completion", "prediction": "so \\boxed{9}", "gold": "8", "equal": True},
    {"id": "c", "kind": "answer", "prediction": "0.5", "gold": "1/2", "equal": False},
    {"kind": "answer", "prediction": "so \\boxed{8}", "gold": "8", "equal": False},
    {"id": "e", "kind": "completion", "prediction": "so \\boxed{", "gold": "8", "equal": False},
    {"id": "f", "kind": "completion", "prediction": None, "gold": 8, "equal": False},
]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    return path


def grade(capsys, *words):
    code = main(["grade", *map(str, words)])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_counts_are_one_json_object(file, capsys):
    code, out, err = grade(capsys, file, "--label-key", "equal", "--kind-key", "kind", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert {name: found[name] for name in ("n", "right", "wrong", "unread", "timeouts")} == {
        "n": 6, "right": 2, "wrong": 2, "unread": 2, "timeouts": 0,
    }  # fmt: skip
    assert (found["unreadable"], found["absent"], found["bad_lines"]) == (1, 1, [])
    assert found["accuracy"] == 2 / 6 and found["agree"] == 4 / 6
    assert (found["false_positive"], found["false_negative"]) == (["c"], ["b"])


def test_without_a_label_key_there_is_no_agreement_and_every_row_is_a_completion(file, capsys):
    found = json.loads(grade(capsys, file, "--json")[1])
    assert "agree" not in found and "false_positive" not in found
    assert found["right"] == 3


def test_a_verdict_is_written_for_each_row(file, capsys, tmp_path):
    out = tmp_path / "verdicts.jsonl"
    grade(capsys, file, "--kind-key", "kind", "--json", "--out", out)
    verdicts = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [verdict["id"] for verdict in verdicts] == ["a", "b", "c", 4, "e", "f"]
    assert [verdict["right"] for verdict in verdicts] == [True, False, True, False, False, False]
    assert [verdict["outcome"] for verdict in verdicts][-2:] == ["unreadable", "absent"]
    first = verdicts[0]
    assert (first["extracted"], first["normalised"], first["rule"], first["extraction_rule"]) == (
        "8",
        "8",
        "number",
        "box",
    )


def test_lines_that_are_no_rows_are_counted_and_named(tmp_path, capsys):
    path = tmp_path / "rows.jsonl"
    lines = [b"\xef\xbb\xbf" + json.dumps(ROWS[0]).encode(), b"{", b"[1]", b"", b'{"gold": "8"}', b'"\xff"']
    lines += [b'{"prediction": {}, "gold": "8"}', b'{"prediction": "8", "gold": "8", "kind": "guess"}', b"[" * 100_000]
    path.write_bytes(b"\n".join(lines))
    code, out, err = grade(capsys, path, "--kind-key", "kind", "--json")
    found = json.loads(out)
    assert (code, found["n"], found["right"]) == (0, 1, 1)
    assert found["bad_lines"] == [2, 3, 5, 6, 7, 8, 9]
    assert "line 2: not JSON" in err and "line 5: no 'prediction'; found: 'gold'" in err and "and 2 more" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["missing.jsonl"], "no such file"),
        (["FILE", "--policy", "percent_figure=true"], "did you mean 'percent_as_figure'"),
        (["FILE", "--policy", "convert_units=maybe"], "expected true or false"),
        (["FILE", "--policy", "relative_tolerance=2"], "not a number from 0"),
        (["FILE", "--prediction-key", "answer"], "no line can be graded"),
        (["FILE", "--out", "no/such/folder/out.jsonl"], "cannot be written"),
        (["FILE", "--label-key", "gold"], "expected true or false"),
    ],
)
def test_a_wrong_request_ends_with_2_and_says_what_was_expected(words, said, file, capsys):
    code, out, err = grade(capsys, *(str(file) if word == "FILE" else word for word in words))
    assert (code, out) == (2, "")
    assert said in err


def test_a_policy_is_followed(tmp_path, capsys):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"prediction": "The answer is 120 cm.", "gold": "1.2 m"}))
    assert json.loads(grade(capsys, path, "--json")[1])["right"] == 0
    assert json.loads(grade(capsys, path, "--policy", "convert_units=true", "--json")[1])["right"] == 1


def test_people_get_lines(file, capsys):
    code, out, _ = grade(capsys, file, "--kind-key", "kind", "--label-key", "equal")
    assert code == 0
    assert "6 answers: 2 right (33.3 %), 2 wrong, 2 unread (1 unreadable, 1 absent), 0 out of time" in out
    assert "false negative: 1 (b)" in out


def test_the_file_that_is_graded_is_not_written_over(tmp_path, capsys):
    file = tmp_path / "answers.jsonl"
    file.write_text('{"prediction": "\\\\boxed{7}", "gold": "7"}\n')
    before = file.read_bytes()
    assert main(["grade", str(file), "--out", f"{tmp_path}/./answers.jsonl"]) == 2
    assert "is the file that is graded" in capsys.readouterr().err
    assert file.read_bytes() == before
