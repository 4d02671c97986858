"""Which charts a report has and the numbers they are drawn from: one row of CHARTS a chart.

A metric of the run that no chart names gets a chart of its own, so nothing that was measured is left out. Draws
nothing; `page/charts.js` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from peerwise.evaluate.pairing import number
from peerwise.metrics.names import lookup
from peerwise.report.folder import Row, step_of

_NOT_METRICS = {"stage", "step", "global_step", "line", "non_finite"}


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart: metrics of one unit, and what it also shows of each evaluation."""

    id: str
    title: str
    keys: tuple[str, ...]
    """Keys of metrics.jsonl; one that ends in / stands for all that begin so."""
    held_out: str = ""
    """A field of the evaluation records that belongs into this chart."""


CHARTS = (
    Chart("accuracy", "Accuracy", ("accuracy/sampled",), "accuracy"),
    Chart("reward", "Reward and its parts", ("reward/mean", "reward/std_in_group", "reward/part/"), "reward"),
    Chart(
        "length", "Response length", ("length/mean", "length/right", "length/wrong", "length/longest"), "mean_tokens"
    ),
    Chart("truncation", "Cut-off answers", ("length/truncated",), "truncated"),
    Chart("unread", "Answers that could not be read", ("answers/unread", "reward/failed"), "unread"),
    Chart(
        "groups",
        "Groups of answers",
        ("groups/informative", "groups/all_right", "groups/all_wrong", "groups/equal", "groups/duplicates"),
    ),
    Chart("pass", "Several answers a problem (pass@k, maj@k)", (), "pass_at_k"),
    Chart("loss", "Loss", ("loss",)),
    Chart("gradient", "Gradient norm", ("grad_norm", "value/grad_norm")),
    Chart("entropy", "Entropy", ("entropy/mean",)),
    Chart("kl", "Distance to the reference (KL)", ("kl/mean",)),
    Chart("kl_coefficient", "KL coefficient", ("kl/coefficient",)),
    Chart("kl_clamped", "Tokens whose KL estimate was held", ("kl/clamped",)),
    Chart("clip", "Clipped tokens", ("ratio/clipped_low", "ratio/clipped_high")),
    Chart("ratio", "Extremes of the ratio", ("ratio/min", "ratio/max")),
    Chart("mismatch", "Mismatch of sampler and trainer", ("mismatch/mean", "mismatch/max")),
    Chart("mismatch_outside", "Tokens outside the mismatch bound", ("mismatch/outside",)),
    Chart("advantage", "Size of advantages", ("advantage/abs_mean",)),
    Chart("value", "Critic", ("value/mean", "value/explained", "value/loss")),
    Chart("pairs", "Pairs for DPO", ("pairs/mean",)),
    Chart("pairs_margin", "Margin of DPO", ("pairs/margin",)),
    Chart("pairs_preferred", "Pairs preferred", ("pairs/preferred",)),
    Chart("rate", "Learning rate", ("learning_rate",)),
    Chart("speed", "Tokens per second", ("speed/sampled_tokens_per_s", "speed/trained_tokens_per_s")),
    Chart("time", "Seconds of a step", ("time/step", "time/sampling", "time/reward", "time/training")),
    Chart("tokens", "Tokens sampled", ("tokens/sampled",)),
    Chart("memory", "Memory", ("memory/peak",)),
    Chart("replay", "Groups of earlier steps", ("replay/groups",)),
    Chart("replay_age", "Age of replayed groups", ("replay/age", "replay/oldest")),
    Chart("curriculum", "Problems passed over", ("curriculum/passed_over",)),
    Chart("timeouts", "Comparisons out of time", ("answers/timeouts",)),
    Chart("skipped", "Updates left out", ("skipped/steps", "skipped/empty")),
    Chart("epoch", "Epochs", ("epoch",)),
)


def curves(metrics: Sequence[Row], evals: Sequence[Row]) -> dict[str, Any]:
    """The charts of this run, the steps they lie over, and the values by key [steps], None where there is none.

    Steps have three places on an axis: `global_step`, `tokens` and `seconds`, both added up from the first step;
    tokens are those sampled, or those trained on in a step that sampled none.
    """
    keys = [key for key in dict.fromkeys(key for row in metrics for key in row) if key not in _NOT_METRICS]
    series = {key: [number(row.get(key)) for row in metrics] for key in keys}
    series = {key: values for key, values in series.items() if any(value is not None for value in values)}
    return {
        "charts": [shown for chart in _with_the_rest(series) if (shown := _shown(chart, series, evals))],
        "series": series,
        "steps": {
            "global_step": [step_of(row) for row in metrics],
            "stage": [str(row.get("stage", "")) for row in metrics],
            "step": [number(row.get("step")) for row in metrics],
            "tokens": list(accumulate(_tokens(row) for row in metrics)),
            "seconds": list(accumulate(number(row.get("time/step")) or 0.0 for row in metrics)),
        },
    }


def charts_by_key(keys: Iterable[str]) -> list[dict[str, Any]]:
    """A chart for each metric by itself, in the order of CHARTS: where several runs are drawn, one line a run."""
    charts: list[dict[str, Any]] = []
    series: dict[str, list[float | None]] = {key: [] for key in keys}
    for chart in _with_the_rest(series):
        members = _members(chart, series)
        for key in members:
            unit, meaning = _unit_and_meaning(key)
            title = chart.title if len(members) == 1 else f"{chart.title}: {key}"
            about = [{"key": key, "meaning": meaning}]
            charts.append({"id": f"curve-{len(charts)}", "title": title, "unit": unit, "key": key, "about": about})
    return charts


def gaps(metrics: Sequence[Row]) -> list[str]:
    """A sentence for each metric that was not a finite number at some step."""
    counts: dict[str, int] = {}
    for row in metrics:
        named = row.get("non_finite")
        for key in named if isinstance(named, list) else []:
            counts[str(key)] = counts.get(str(key), 0) + 1
    return [
        f"{key} was not a finite number at {count} steps; its curve has gaps there." for key, count in counts.items()
    ]


def _with_the_rest(series: dict[str, list[float | None]]) -> list[Chart]:
    named = {key for chart in CHARTS for key in _members(chart, series)}
    return [*CHARTS, *(Chart(f"more-{index}", key, (key,)) for index, key in enumerate(sorted(series.keys() - named)))]


def _members(chart: Chart, series: dict[str, list[float | None]]) -> list[str]:
    return [
        key
        for wanted in chart.keys
        for key in series
        if key == wanted or (wanted[-1] == "/" and key.startswith(wanted))
    ]


def _shown(chart: Chart, series: dict[str, list[float | None]], evals: Sequence[Row]) -> dict[str, Any] | None:
    members = _members(chart, series)
    held_out = chart.held_out if any(row.get(chart.held_out) is not None for row in evals) else ""
    if not members and not held_out:
        return None
    about = [(key, *_unit_and_meaning(key)) for key in members]
    return {
        "id": chart.id,
        "title": chart.title,
        "unit": about[0][1] if about else "share",
        "keys": members,
        "held_out": held_out,
        "about": [{"key": key, "meaning": meaning} for key, _, meaning in about],
    }


def _unit_and_meaning(key: str) -> tuple[str, str]:
    try:
        metric = lookup(key)
    except KeyError:
        return "1", "A metric that this version does not know."
    return metric.unit, metric.meaning


def _tokens(row: Row) -> float:
    sampled = number(row.get("tokens/sampled"))
    if sampled is not None:
        return sampled
    return (number(row.get("speed/trained_tokens_per_s")) or 0.0) * (number(row.get("time/training")) or 0.0)
