"""What the figures of benchmarks/ are made of: operations counted by hand, the fitted law, rows that survive a stop."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
RATE = 1e12


@pytest.fixture
def module(monkeypatch):
    """Import a benchmark by name; they import each other as scripts do."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    return load


def test_a_prompt_counts_once_and_its_answers_see_it_and_themselves(module):
    # A prompt of 3: 1 + 2 + 3 pairs. Two answers of 2 tokens: (3 + 1) + (3 + 2) pairs each.
    assert module("step").counts([3], 2, 2) == {"tokens": 7, "answers": 4, "seen": 6 + 18}
    assert module("step").counts([3, 3], 2, 2) == {"tokens": 14, "answers": 8, "seen": 48}


def test_training_all_weights_is_three_forward_passes_and_frozen_ones_are_two(module):
    row = {"prompt_lengths": [3], "decoder_weights": 10, "head_weights": 5, "attention_width": 1, "trains_all": True}
    forward = 2 * 10 * 7 + 2 * 5 * 4 + 4 * 24
    assert module("step").operations(row, 2, 2) == {"reference": forward, "training": 3 * forward}
    assert module("step").operations({**row, "trains_all": False}, 2, 2)["training"] == 2 * forward


def law_rows() -> list[dict[str, float]]:
    """Amounts of five terms, no two rows alike."""
    return [
        {
            "matrix": 1e12 * (1 + n),
            "attention": 1e10 * (1 + n * n % 7),
            "logits": 1e7 * (1 + 3 * n % 5),
            "activations": 1e7 * (1 + n % 3),
            "weights": 1e8 * (1 + n % 4),
        }
        for n in range(12)
    ]


@pytest.mark.parametrize("attention", [2.0, 9.0])
def test_the_fit_finds_the_prices_that_made_the_seconds(module, attention):
    law = module("scaling_law")
    prices = {
        "matrix": 1.5 / RATE,
        "attention": attention / RATE,
        "logits": 2e-9,
        "activations": 3e-9,
        "weights": 1e-9,
    }
    seconds = [sum(prices[term] * row[term] for term in row) for row in law_rows()]
    assert law.fit(law_rows(), seconds, RATE) == pytest.approx(prices, rel=1e-6)


def test_no_price_is_fitted_below_what_the_matrix_rate_allows(module):
    law = module("scaling_law")
    seconds = [0.5 / RATE * row["matrix"] + 5e-9 * row["weights"] for row in law_rows()]
    prices = law.fit(law_rows(), seconds, RATE)
    assert prices["matrix"] == 1 / RATE
    assert min(prices.values()) >= 0


def test_a_row_is_in_the_file_at_once_and_a_line_that_was_cut_off_is_left_out(module, tmp_path, capsys):
    path = tmp_path / "rows.jsonl"
    rows = module("sweep").Rows(str(path))
    rows.add({"new_tokens": 64, "compared": ["native"]})
    assert json.loads(path.read_text()) == {"new_tokens": 64, "compared": ["native"]}
    with path.open("a") as file:
        file.write('{"new_tokens": 25')
    again = module("sweep").Rows(str(path))
    assert "left out" in capsys.readouterr().err
    assert again.count(new_tokens=64, compared=["native"]) == 1
    assert again.count(new_tokens=64, compared=["native", "vllm"]) == 0
    again.add({"new_tokens": 8})
    assert module("sweep").Rows(str(path)).count(new_tokens=8) == 1


def test_the_time_left_goes_by_the_pace_of_each_kind_and_a_new_kind_is_taken_for_the_slowest(module):
    progress = module("sweep").Progress({"fast": 10.0, "slow": 10.0, "new": 10.0})
    progress.done |= {"fast": 5.0, "slow": 4.0}
    progress.seconds |= {"fast": 5.0, "slow": 40.0}
    assert progress.seconds_left() == 5 * 1.0 + 6 * 10.0 + 10 * 10.0


def test_an_engine_that_failed_is_reported_beside_the_one_that_did_not(module):
    row = {
        "engine": "peerwise",
        "setting": {"group_size": 4},
        "own": {"moments": "8-bit"},
        "seconds": dict.fromkeys(module("step").PHASES, 2.0),
        "peak_bytes": 3,
        "rate_share": {"training": 0.5},
        "rates": {"bfloat16": 1.0, "float32": 1.0},
        "others": 0.0,
        "prompt_lengths": [7],
    }
    failed = {"engine": "trl", "setting": {"group_size": 4}, "own": {}, "failed": "no memory"}
    (summary,) = module("step").merged([row, failed])
    assert summary["failed"] == {"trl": "no memory"}
    assert summary["engines"]["peerwise"]["seconds"]["whole"] == 2.0
    (both,) = module("step").merged([row, failed, {**row, "engine": "trl", "own": {}, "peak_bytes": 6}])
    assert (both["failed"], both["memory_share"]) == ({}, 0.5)
    # Another way of ours is another comparison.
    ways = module("step").merged([row, {**row, "own": {"moments": "float32"}, "peak_bytes": 2}, failed])
    assert [way["engines"]["peerwise"]["peak_bytes"] for way in ways] == [3, 2]
    assert [way["own"]["moments"] for way in ways] == ["8-bit", "float32"]
