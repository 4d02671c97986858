"""Pins that rows of a growing file are given once each and whole, also when a resumed run has cut the file."""

from __future__ import annotations

from pathlib import Path

from peerwise.metrics.follow import Follow


def test_each_row_is_given_once_and_only_when_its_line_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    follow = Follow(path)
    assert list(follow.rows()) == []
    path.write_text('{"a": 1}\n{"a": 2}\n{"a": ')
    assert [row["a"] for row in follow.rows()] == [1, 2]
    assert list(follow.rows()) == []
    with path.open("a") as file:
        file.write('3}\n{"a": 4}\n')
    assert [row["a"] for row in follow.rows()] == [3, 4]


def test_a_line_that_is_no_object_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'nonsense\n[1]\n\xff\xfe\n{"a": 1}\n')
    assert list(Follow(path).rows()) == [{"a": 1}]


def test_after_a_rewind_what_is_written_behind_it_is_given(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n{"a": 3}\n')
    follow = Follow(path)
    assert len(list(follow.rows())) == 3
    path.write_text('{"a": 1}\n')
    assert list(follow.rows()) == []
    with path.open("a") as file:
        file.write('{"a": 20}\n')
    assert list(follow.rows()) == [{"a": 20}]
