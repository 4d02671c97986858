"""Pins the table of metric names: families resolve, typing errors are helped, and docs/metrics.md is what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from peerwise.metrics.names import METRICS, lookup, markdown

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_docs_metrics_md_is_what_the_table_generates() -> None:
    written = DOCUMENT.read_text(encoding="utf-8")
    assert written == markdown(), "run: python -m peerwise.metrics.names > docs/metrics.md"


def test_every_metric_is_one_row_of_five_cells_and_no_two_share_a_key() -> None:
    rows = [line for line in markdown().splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == list(METRICS)
    assert {row.count("|") for row in rows} == {6}


def test_every_entry_is_filled_in_and_stands_under_its_own_key() -> None:
    assert all(key == metric.key for key, metric in METRICS.items())
    assert all(metric.unit and metric.formula and metric.meaning for metric in METRICS.values())


def test_a_part_of_the_reward_resolves_to_its_family() -> None:
    assert lookup("reward/part/format") is METRICS["reward/part/<name>"]
    assert lookup("reward/mean").key == "reward/mean"


@pytest.mark.parametrize("key", ["reward/part/", "reward/part/<name>", "reward", "", "reward/mean/x"])
def test_what_is_not_a_key_is_refused(key: str) -> None:
    with pytest.raises(KeyError, match="unknown metric"):
        lookup(key)


def test_a_mistyped_key_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(KeyError, match="did you mean 'grad_norm'"):
        lookup("gradnorm")


def test_no_metric_is_named_like_a_column_of_its_row() -> None:
    assert not {"stage", "step", "global_step", "non_finite"} & METRICS.keys()
