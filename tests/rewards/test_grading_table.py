"""Pins the project's own table of cases: every kind of answer in two languages, verdict by verdict, both ways round."""

import json
from collections import Counter
from pathlib import Path

import pytest

from peerwise.rewards.equal import equal
from peerwise.rewards.math import judge

TABLE = Path(__file__).with_name("cases.jsonl")
CASES = [json.loads(line) for line in TABLE.read_text(encoding="utf-8").splitlines()]
KNOWN_MISSES: dict[str, str] = {}
"""Id -> why the verdict differs from the table's."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_a_case_gets_its_verdict(case):
    if case["kind"] == "completion":
        found = judge(case["prediction"], case["gold"])[0]
    else:
        found = equal(case["prediction"], case["gold"])
        assert equal(case["gold"], case["prediction"]) is found, f"not symmetric: {case}"
    assert (found is case["equal"]) is (case["id"] not in KNOWN_MISSES), case


def test_the_table_has_both_languages_both_kinds_and_many_negatives():
    assert len({case["id"] for case in CASES}) == len(CASES) >= 300
    assert len({(case["kind"], case["prediction"], case["gold"]) for case in CASES}) == len(CASES)
    for language in ("en", "zh"):
        for kind in ("answer", "completion"):
            verdicts = Counter(c["equal"] for c in CASES if (c["lang"], c["kind"]) == (language, kind))
            assert min(verdicts[True], verdicts[False]) >= 10, (language, kind, verdicts)
