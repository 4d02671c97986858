"""`peerwise compare RUN RUN ...`: what runs reached and cost, how far apart they are, where their recipes differ."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peerwise.cli.words import Parser, share
from peerwise.errors import RunFolderError

if TYPE_CHECKING:
    from peerwise.evaluate.compare import RunRows
    from peerwise.recipe.schema import Recipe

SUMMARY = "put runs side by side"
APART = frozenset(("run.seed", "run.out"))
"""Settings in which runs may differ and still be runs of one recipe."""


def run(argv: Sequence[str]) -> int:
    """Print the runs, each against the first: lines for people, or one JSON object with --json.

    Raises:
        RunFolderError: a folder is not a run, or has no evaluation yet.
    """
    options = _parser().parse_args(argv)
    from peerwise.evaluate.compare import difference, summary

    runs, recipes = zip(*(_read(Path(folder)) for folder in options.runs), strict=True)
    first, *others = runs
    record: dict[str, Any] = {
        "runs": [summary(found, options.goal) for found in runs],
        "against_first": [
            {"run": found.name, "tasks": difference(first, found), "recipe": _settings(recipes[0], recipe)}
            for found, recipe in zip(others, recipes[1:], strict=True)
        ],
        "seeds": _seeds(runs, recipes),
        "goal": options.goal,
    }
    print(json.dumps(record, ensure_ascii=False) if options.json else _text(record))
    return 0


def _read(folder: Path) -> tuple[RunRows, Recipe]:
    from peerwise.evaluate.compare import RunRows
    from peerwise.metrics.write import EVALS_FILE, METRICS_FILE, RECIPE_FILE, read_rows
    from peerwise.recipe.load import load

    file = folder / RECIPE_FILE
    if not file.is_file():
        raise RunFolderError(f"{folder} is not a run: it has no recipe.toml; give folders that runs were written to")
    rows = {
        name: list(read_rows(folder / name)) if (folder / name).exists() else [] for name in (METRICS_FILE, EVALS_FILE)
    }
    if not rows[EVALS_FILE]:
        raise RunFolderError(f"{folder} has no evaluation yet; wait for its first one")
    return RunRows(name=str(folder), steps=rows[METRICS_FILE], evaluations=rows[EVALS_FILE]), load(file)


def _settings(one: Recipe, other: Recipe) -> dict[str, list[Any]]:
    """Dotted key -> [what the first has, what the other has]."""
    from peerwise.recipe.dump import diff

    return {key: list(pair) for key, pair in diff(other, one).items() if key != "run.out"}


def _seeds(runs: Sequence[RunRows], recipes: Sequence[Recipe]) -> list[dict[str, Any]]:
    """Runs of one recipe that differ in their seed, two or more: the accuracies that they ended with, by task."""
    groups: list[tuple[Recipe, list[RunRows]]] = []
    for found, recipe in zip(runs, recipes, strict=True):
        for known, members in groups:
            if set(_settings(known, recipe)) <= APART:
                members.append(found)
                break
        else:
            groups.append((recipe, [found]))
    return [_together(members) for _, members in groups if len(members) > 1]


def _together(members: Sequence[RunRows]) -> dict[str, Any]:
    last: dict[str, list[float]] = {}
    for member in members:
        for task, accuracy in {row["task"]: row["accuracy"] for row in member.evaluations}.items():
            last.setdefault(task, []).append(accuracy)
    return {
        "runs": [member.name for member in members],
        "tasks": {
            task: {"mean": statistics.fmean(found), "lowest": min(found), "highest": max(found), "runs": len(found)}
            for task, found in last.items()
        },
    }


def _text(record: Mapping[str, Any]) -> str:
    lines: list[str] = []
    for found in record["runs"]:
        minutes, peak = found["seconds"] / 60, found["peak_bytes"]
        lines.append(
            f"{found['run']}: {found['steps']} steps in {minutes:.1f} min, {found['sampled_tokens']:,} tokens sampled"
            + ("" if peak is None else f", peak {peak / 2**30:.1f} GiB")
        )
        lines += [_task_line(task, of, record["goal"]) for task, of in found["tasks"].items()]
    for other in record["against_first"]:
        lines += ["", f"{other['run']} against {record['runs'][0]['run']}"]
        lines += [_difference_line(found) for found in other["tasks"]] or ["  no task that both measured"]
        lines += [f"  {key}: {there!r} -> {here!r}" for key, (there, here) in other["recipe"].items()]
    for group in record["seeds"]:
        lines += ["", f"{len(group['runs'])} seeds of one recipe: {', '.join(group['runs'])}"]
        lines += [
            f"  {task}: mean {of['mean']:.1%}, {of['lowest']:.1%} to {of['highest']:.1%}"
            for task, of in group["tasks"].items()
        ]
    return "\n".join(lines)


def _task_line(task: str, of: Mapping[str, Any], goal: float | None) -> str:
    before, last = of["before"], of["last"]
    low, high = last["interval"]
    line = (
        f"  {task}: {before['accuracy']:.1%} before, {last['accuracy']:.1%} [{low:.1%}, {high:.1%}] last "
        f"(stage {last['stage']}, step {last['step']}, {last['n']} problems)"
    )
    if goal is None:
        return line
    reached = of["goal"]
    if reached is None:
        return f"{line}; {goal:.0%} not reached"
    return f"{line}; {goal:.0%} after {reached['steps']} steps, {reached['seconds'] / 60:.1f} min"


def _difference_line(found: Mapping[str, Any]) -> str:
    low, high = found["interval"]
    line = f"  {found['task']}: {100 * found['difference']:+.1f} points [{100 * low:+.1f}, {100 * high:+.1f}]"
    if not found["paired"]:
        return f"{line}, not paired: other problems or another way of measuring"
    return f"{line}, paired; {found['gained']} gained, {found['lost']} lost, sign test p = {found['sign_test']:.2g}"


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="peerwise compare", description=SUMMARY, allow_abbrev=False)
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help="folders that runs were written to; the first is compared with"
    )
    parser.add_argument("--goal", type=share, help="an accuracy, such as 0.5: what it took to reach it")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    return parser
