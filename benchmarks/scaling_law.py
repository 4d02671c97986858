"""The law of a training step's seconds, fitted to rows of benchmarks/scaling.py; knows rows only.

    seconds = a * matrix operations + b * attention operations + c * logits + d * activations + e * weights

by least squares of the relative error. Operations are those done: for a row's token 6 for each weight of the decoder,
for an answer's token 8 for each weight of the head (its product is computed again in the backward pass), and 14 * width
for each key that a token sees (two products forward, five backward). Logits are answer tokens times vocabulary,
activations are row tokens times layers times width, and weights count once a micro-batch, for gradients that are summed
up. From operations alone one expects a = b = 1 / matrix rate of the machine and nothing else; as nothing is faster than
that, no price is fitted below it. Of one model alone the terms can hardly be told apart; two sizes or more can.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from step import counts
from sweep import Row

AXES = ("group_size", "prompt_tokens", "new_tokens")
EXPECTED = {"matrix": 1.0, "attention": 1.0, "logits": 0.0, "activations": 0.0, "weights": 0.0}
"""The price of each term from operations alone, in operations."""

TERMS = tuple(EXPECTED)


def tokens_of(cell: Mapping[str, Any]) -> int:
    """Tokens of a step's rows."""
    tokens: int = cell["problems"] * (cell["prompt_tokens"] + cell["group_size"] * cell["new_tokens"])
    return tokens


def amounts(row: Row, micro_batch_tokens: int) -> dict[str, float]:
    """How much of each term a row has."""
    shape = row["shape"]
    count = counts([row["prompt_tokens"]] * row["problems"], row["group_size"], row["new_tokens"])
    batches = -(-count["tokens"] // micro_batch_tokens)
    return {
        "matrix": 6.0 * shape["decoder_weights"] * count["tokens"] + 8.0 * shape["head_weights"] * count["answers"],
        "attention": 14.0 * shape["attention_width"] * count["seen"],
        "logits": float(shape["vocabulary"] * count["answers"]),
        "activations": float(shape["layers"] * shape["width"] * count["tokens"]),
        "weights": float((shape["decoder_weights"] + shape["head_weights"]) * batches),
    }


def fit(table: Sequence[dict[str, float]], seconds: Sequence[float], rate: float) -> dict[str, float]:
    """The price of each term in seconds, by least squares of the relative error; none below the expected one.

    A term whose price would be is given the expected one, the term that falls short the most first.
    """
    free = [term for term in TERMS if any(row[term] for row in table)]
    least = {term: ops / rate for term, ops in EXPECTED.items()}
    took = np.array(seconds)
    beyond = 1 - np.array([sum(least[term] * row[term] for term in TERMS) for row in table]) / took
    while free:
        columns = np.array([[row[term] for term in free] for row in table]) / took[:, None]
        scale = columns.max(axis=0)
        more = np.linalg.lstsq(columns / scale, beyond, rcond=None)[0]
        if more.min() >= 0:
            return least | {
                term: least[term] + price for term, price in zip(free, (more / scale).tolist(), strict=True)
            }
        del free[int(more.argmin())]
    return least


def summary(rows: list[Row], micro_batch_tokens: int) -> Row:
    """The settings with their costs for 1,000 tokens, the fitted law, and how far each is from it."""
    by_setting: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        by_setting[row["model"], row["problems"], *(row[axis] for axis in AXES)].append(row)
    best = [min(of_one, key=lambda row: row["seconds"]) for of_one in by_setting.values()]
    table = [amounts(row, micro_batch_tokens) for row in best]
    rate = float(np.median([row["matrix_rate"] for row in best]))
    prices = fit(table, [row["seconds"] for row in best], rate)
    law = {}
    for term, price in prices.items():
        shares = [price * amount[term] / row["seconds"] for amount, row in zip(table, best, strict=True)]
        law[term] = {"price": price, "expected": EXPECTED[term] / rate, "share": float(np.mean(shares))}
    settings = [
        _setting(of_one, amount, prices, rate) for of_one, amount in zip(by_setting.values(), table, strict=True)
    ]
    return {"matrix_rate": rate, "law": law, "settings": settings}


def _setting(rows: list[Row], amount: dict[str, float], prices: dict[str, float], rate: float) -> Row:
    """One setting; `rows` are its repeats."""
    row = min(rows, key=lambda row: row["seconds"])
    seconds, tokens = row["seconds"], tokens_of(row)
    expected = sum(EXPECTED[term] * amount[term] for term in TERMS) / rate
    fitted = sum(prices[term] * amount[term] for term in TERMS)
    return {
        **{key: row[key] for key in ("model", "problems", *AXES, "seconds")},
        "repeats": [repeat["seconds"] for repeat in rows],
        "row_tokens": tokens,
        "seconds_per_1000_answer_tokens": 1000 * seconds / (row["problems"] * row["group_size"] * row["new_tokens"]),
        "seconds_per_1000_row_tokens": 1000 * seconds / tokens,
        "expected_seconds": expected,
        "rate_share": expected / seconds,
        "fitted_seconds": fitted,
        "residual": fitted / seconds - 1,
        "peak_bytes": max(repeat["peak_bytes"] for repeat in rows),
        "held_bytes": min(repeat["held_bytes"] for repeat in rows),
    }


def table_of(found: Row) -> str:
    """The summary for people."""
    lines = [
        f"{'model':6}{'G':>4}{'prompt':>7}{'answer':>7}{'tokens':>7}{'seconds':>9}{'s/1000':>8}{'s/1000':>8}"
        f"{'rate':>6}{'by rate':>9}{'by law':>8}{'off':>6}{'peak':>10}{'held':>10}",
        f"{'':6}{'':4}{'':7}{'':7}{'of row':>7}{'':9}{'answer':>8}{'row':>8}",
    ]
    for s in found["settings"]:
        lines.append(
            f"{s['model']:6}{s['group_size']:4}{s['prompt_tokens']:7}{s['new_tokens']:7}{s['row_tokens']:7}"
            f"{s['seconds']:9.2f}{s['seconds_per_1000_answer_tokens']:8.2f}{s['seconds_per_1000_row_tokens']:8.2f}"
            f"{s['rate_share']:6.0%}{s['expected_seconds']:9.2f}{s['fitted_seconds']:8.2f}{s['residual']:+6.0%}"
            f"{s['peak_bytes'] / 2**30:7.2f}GiB{s['held_bytes'] / 2**30:7.2f}GiB"
        )
    rate = found["matrix_rate"]
    lines += [
        "",
        f"the law, at a matrix rate of {rate / 1e9:,.0f} GFLOP/s",
        f"{'term':14}{'ps':>9}{'expected':>10}{'share':>7}",
    ]
    for term, law in found["law"].items():
        lines.append(f"{term:14}{1e12 * law['price']:9.2f}{1e12 * law['expected']:10.2f}{law['share']:7.0%}")
    return "\n".join(lines)
