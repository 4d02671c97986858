"""`peerwise grade FILE.jsonl`: how many answers of a file are right, by the grader that training uses."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from peerwise.cli.words import Parser, pair
from peerwise.errors import DataError, RequestError, nearest

if TYPE_CHECKING:
    from peerwise.rewards.math import Judgement
    from peerwise.rewards.policy import Policy

SUMMARY = "grade the answers in a file against its gold answers"
KINDS = ("completion", "answer")
MOST_NAMED = 5
"""Bad lines that are named on the terminal; all of them are counted."""
LIST_IDS = 20
"""Disagreements that are named without --json; with it all of them are."""


@dataclass(frozen=True, slots=True)
class _Row:
    """One line of the file that can be graded."""

    id: Any
    kind: str
    prediction: str
    gold: str
    label: bool | None
    truncated: bool


@dataclass(frozen=True, slots=True)
class _Bad:
    """One line that cannot."""

    line: int
    reason: str


def run(argv: Sequence[str]) -> int:
    """Print the counts: lines for people, or one JSON object with --json. Lines that cannot be graded are left out,
    counted and named.

    Raises:
        RequestError: wrong words, an unknown switch of the policy.
        DataError: the file is missing, or no line of it can be graded.
    """
    options = _parser().parse_args(argv)
    policy = _policy(options.policy)
    path = Path(options.file)
    if not path.is_file():
        raise DataError(f"{path}: no such file; expected a file of one JSON object a line")
    if options.out is not None and Path(options.out).resolve() == path.resolve():
        raise RequestError(f"--out {options.out} is the file that is graded, which would be lost; give another path")
    tally = _Tally()
    with _verdicts(options.out) as out:
        for row in _rows(path, options):
            if isinstance(row, _Bad):
                tally.reject(row)
                continue
            judgement = _judged(row, options, policy)
            tally.add(row, judgement)
            if out is not None:
                out.write(json.dumps(_verdict(row, judgement), ensure_ascii=False) + "\n")
    if not tally.counts["n"]:
        raise DataError(f"{path}: no line can be graded ({tally.complaints()})")
    if tally.bad:
        print(f"left out {len(tally.bad)} of {path}: {tally.complaints()}", file=sys.stderr)
    record = tally.record(labelled=options.label_key is not None)
    print(json.dumps(record, ensure_ascii=False) if options.json else _text(record))
    return 0


class _Tally:
    """The counts of one file."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.wrongly: dict[str, list[Any]] = {"false_positive": [], "false_negative": []}
        self.bad: list[_Bad] = []

    def reject(self, bad: _Bad) -> None:
        self.bad.append(bad)

    def add(self, row: _Row, judgement: Judgement) -> None:
        right = judgement.right
        self.counts["n"] += 1
        self.counts["right" if right else "wrong" if judgement.outcome == "read" else judgement.outcome] += 1
        self.counts["timeouts"] += judgement.verdict.timed_out
        if row.label is None:
            return
        self.counts["labelled"] += 1
        if right != row.label:
            self.wrongly["false_positive" if right else "false_negative"].append(row.id)

    def complaints(self) -> str:
        named = "; ".join(f"line {bad.line}: {bad.reason}" for bad in self.bad[:MOST_NAMED])
        return named + (f"; and {len(self.bad) - MOST_NAMED} more" if len(self.bad) > MOST_NAMED else "")

    def record(self, *, labelled: bool) -> dict[str, Any]:
        counts = self.counts
        unread = counts["unreadable"] + counts["absent"]
        found: dict[str, Any] = {
            "n": counts["n"],
            "right": counts["right"],
            "wrong": counts["wrong"],
            "unread": unread,
            "timeouts": counts["timeouts"],
            "accuracy": counts["right"] / counts["n"],
            "unreadable": counts["unreadable"],
            "absent": counts["absent"],
            "bad_lines": [bad.line for bad in self.bad],
        }
        if labelled:
            differing = sum(map(len, self.wrongly.values()))
            found["agree"] = (counts["labelled"] - differing) / counts["labelled"] if counts["labelled"] else None
            found |= self.wrongly
        return found


def _judged(row: _Row, options: argparse.Namespace, policy: Policy) -> Judgement:
    from peerwise.rewards.math import grade, grade_answer

    if row.kind == "answer":
        return grade_answer(row.prediction, row.gold, policy=policy)
    return grade(row.prediction, row.gold, last_number=not options.stated_only, truncated=row.truncated, policy=policy)


def _verdict(row: _Row, judgement: Judgement) -> dict[str, Any]:
    from peerwise.rewards.plain import plain

    answer = judgement.extraction.answer
    return {
        "id": row.id,
        "right": judgement.right,
        "outcome": judgement.outcome,
        "extracted": answer,
        "normalised": None if answer is None else plain(answer),
        "gold": plain(row.gold),
        "extraction_rule": judgement.extraction.rule,
        "rule": judgement.verdict.rule,
        "timed_out": judgement.verdict.timed_out,
    } | ({} if row.label is None else {"label": row.label})


def _rows(path: Path, options: argparse.Namespace) -> Iterator[_Row | _Bad]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            if line.strip():
                yield _row(line, number, options)


def _row(line: bytes, number: int, options: argparse.Namespace) -> _Row | _Bad:
    try:
        row = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        return _Bad(number, f"not UTF-8 ({error.reason})")
    except (ValueError, RecursionError) as error:
        return _Bad(number, f"not JSON ({str(error) or type(error).__name__})")
    if not isinstance(row, dict):
        return _Bad(number, f"a JSON {type(row).__name__}, expected an object")
    texts = {}
    for key in (options.prediction_key, options.gold_key):
        if key not in row:
            return _Bad(number, f"no {key!r}; found: {', '.join(map(repr, sorted(row))) or 'nothing'}")
        texts[key] = _as_text(row[key])
        if texts[key] is None:
            return _Bad(number, f"{key!r} is a {type(row[key]).__name__}, expected text or a number")
    return _checked(row, number, texts, options)


def _checked(
    row: Mapping[str, Any], number: int, texts: Mapping[str, str | None], options: argparse.Namespace
) -> _Row | _Bad:
    kind = row.get(options.kind_key, "completion") if options.kind_key else "completion"
    if kind not in KINDS:
        return _Bad(number, f"{options.kind_key!r} is {kind!r}, expected one of {', '.join(KINDS)}")
    label = row.get(options.label_key) if options.label_key else None
    if options.label_key and not isinstance(label, bool):
        return _Bad(number, f"{options.label_key!r} is {label!r}, expected true or false")
    return _Row(
        id=row.get("id", number),
        kind=kind,
        prediction=texts[options.prediction_key] or "",
        gold=texts[options.gold_key] or "",
        label=label,
        truncated=row.get("finish") == "length",
    )


def _as_text(value: object) -> str | None:
    """Text as it is, a number as it is written, nothing (null) as empty; None for everything else."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return json.dumps(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _policy(settings: Sequence[tuple[str, str]]) -> Policy:
    from peerwise.rewards.policy import Policy

    known = {field.name: field.type for field in fields(Policy)}
    values: dict[str, Any] = {}
    for name, value in settings:
        if name not in known:
            raise RequestError(f"--policy: unknown switch {name!r}; {nearest(name, known)}")
        values[name] = _switch(name, value, is_number=known[name] == "float")
    return Policy(**values)


def _switch(name: str, value: str, *, is_number: bool) -> bool | float:
    if is_number:
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if not 0 <= number < 1:
            raise RequestError(f"--policy: {name}={value} is not a number from 0 to below 1")
        return number
    if value.lower() not in ("true", "false"):
        raise RequestError(f"--policy: {name}={value}; expected true or false")
    return value.lower() == "true"


@contextlib.contextmanager
def _verdicts(path: str | None) -> Iterator[IO[str] | None]:
    if path is None:
        yield None
        return
    try:
        file = Path(path).open("w", encoding="utf-8")  # noqa: SIM115 - closed below, opening alone may fail
    except OSError as error:
        raise RequestError(f"--out {path!r} cannot be written ({error.strerror}); give a path in a folder") from error
    with file:
        yield file


def _text(record: Mapping[str, Any]) -> str:
    lines = [
        f"{record['n']} answers: {record['right']} right ({100 * record['accuracy']:.1f} %), {record['wrong']} wrong, "
        f"{record['unread']} unread ({record['unreadable']} unreadable, {record['absent']} absent), "
        f"{record['timeouts']} out of time"
    ]
    if "agree" in record:
        share = "no labels" if record["agree"] is None else f"{100 * record['agree']:.1f} %"
        lines.append(f"agreement with the labels: {share}")
        for name in ("false_positive", "false_negative"):
            ids = ", ".join(map(str, record[name][:LIST_IDS])) or "none"
            lines.append(f"{name.replace('_', ' ')}: {len(record[name])} ({ids})")
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="peerwise grade", description=SUMMARY, allow_abbrev=False)
    parser.add_argument("file", metavar="FILE.jsonl", help="one JSON object a line")
    parser.add_argument("--prediction-key", default="prediction", help="the answers (default %(default)s)")
    parser.add_argument("--gold-key", default="gold", help="the right answers (default %(default)s)")
    parser.add_argument("--label-key", help="true or false: what the verdict should be; agreement is counted")
    parser.add_argument("--kind-key", help="completion (the answer is looked for first) or answer (compared as it is)")
    parser.add_argument(
        "--stated-only", action="store_true", help="do not take the last number where no answer is stated"
    )
    parser.add_argument(
        "--policy", nargs="+", type=pair, default=[], metavar="SWITCH=VALUE", help="see docs/grading.md"
    )
    parser.add_argument("--out", metavar="VERDICTS.jsonl", help="write a verdict for each row")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    return parser
