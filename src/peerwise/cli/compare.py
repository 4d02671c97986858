"""`peerwise compare RUN RUN ...`: what runs reached and cost, how far apart they are, where their recipes differ."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peerwise.cli.words import Parser, share
from peerwise.errors import RecipeError, RequestError

if TYPE_CHECKING:
    from peerwise.recipe.schema import Recipe
    from peerwise.report.folder import RunFolder

SUMMARY = "put runs side by side"
APART = frozenset(("run.seed", "run.out"))
"""Settings in which runs may differ and still be runs of one recipe."""


def run(argv: Sequence[str]) -> int:
    """Print the runs, each against the first: lines for people, or one JSON object with --json; a page with --out.

    Raises:
        RunFolderError: a folder holds nothing of a run.
        RequestError: wrong words, an --out that is not a page.
    """
    from peerwise.report.inert import harmless

    options = _parser().parse_args(argv)
    if options.out is not None and options.out.suffix not in (".html", ".htm"):
        raise RequestError(f"--out {options.out} should end in .html; its numbers go beside it, in a .json")
    folders = [_read(Path(folder)) for folder in options.runs]
    recipes = [_recipe(folder) for folder in folders]
    apart = APART | set(options.apart)
    groups = _alike(recipes, apart)
    record = _record(folders, recipes, groups, options.goal)
    for key in sorted(set(options.apart) - record["recipe"].keys()):
        print(f"warning: --apart {key}: the runs do not differ in it", file=sys.stderr)
    print(json.dumps(record, ensure_ascii=False) if options.json else harmless(_text(record)))
    if options.out is not None:
        from peerwise.report.comparison import build_comparison

        report = build_comparison(folders, groups, record, options.out)
        print(f"the page is {report.html}", file=sys.stderr)
    return 0


def _read(folder: Path) -> RunFolder:
    from peerwise.metrics.write import EVALS_FILE, METRICS_FILE, RECIPE_FILE
    from peerwise.report.folder import LOG_FILE, read_folder

    return read_folder(folder, (RECIPE_FILE, METRICS_FILE, EVALS_FILE, LOG_FILE))


def _recipe(folder: RunFolder) -> Recipe | None:
    """The run's recipe; None, said among what is missing, when there is none that this version can read."""
    from peerwise.recipe.load import loads

    if not folder.recipe:
        return None
    try:
        return loads(folder.recipe)
    except RecipeError as error:
        first = str(error).splitlines()[0]
        folder.missing.append(f"recipe.toml cannot be read by this version ({first}), so it is compared with none.")
        return None


def _record(
    folders: Sequence[RunFolder], recipes: Sequence[Recipe | None], groups: Sequence[Sequence[int]], goal: float | None
) -> dict[str, Any]:
    """All that is said of the runs, as --json prints it."""
    from peerwise.evaluate.compare import RunRows, between, common_goals, difference, summary, together
    from peerwise.report.journal import read_journal

    runs = [RunRows(name=str(f.path), steps=f.metrics, evaluations=f.evals) for f in folders]
    goals = common_goals(runs) if goal is None else {task: goal for found in runs for task in found.tasks()}
    return {
        "runs": [
            {**summary(found, goals), "finished": read_journal(folder.log).finished}
            for found, folder in zip(runs, folders, strict=True)
        ],
        "against_first": [
            {"run": found.name, "tasks": difference(runs[0], found), "recipe": _settings(recipes[0], recipe)}
            for found, recipe in zip(runs[1:], recipes[1:], strict=True)
        ],
        "seeds": [
            {"runs": [runs[place].name for place in group], "tasks": together([runs[place] for place in group])}
            for group in groups
            if len(group) > 1
        ],
        "recipes_against_first": [
            {
                "runs": [runs[place].name for place in group],
                "tasks": between([runs[place] for place in groups[0]], [runs[place] for place in group]),
            }
            for group in groups[1:]
            if max(len(group), len(groups[0])) > 1
        ],
        "recipe": _differing(recipes),
        "goals": goals,
        "missing": [f"{folder.path}: {sentence}" for folder in folders for sentence in _lacks(folder)],
    }


def _lacks(folder: RunFolder) -> list[str]:
    none = [] if folder.evals else ["it has no evaluation yet, so only its curves are compared."]
    return [*folder.missing, *none]


def _settings(one: Recipe | None, other: Recipe | None) -> dict[str, list[Any]] | None:
    """Dotted key -> [what the first has, what the other has]; None where one of the recipes is not known."""
    from peerwise.recipe.dump import diff

    if one is None or other is None:
        return None
    return {key: list(pair) for key, pair in diff(other, one).items() if key != "run.out"}


def _differing(recipes: Sequence[Recipe | None]) -> dict[str, list[Any]]:
    """Dotted key -> the value of each run, for settings in which not all are alike; None where a recipe has it not."""
    known = [recipe for recipe in recipes if recipe is not None]
    against = [None if recipe is None else _settings(known[0], recipe) for recipe in recipes]
    keys = {key: pair[0] for found in against if found for key, pair in found.items()}
    return {
        key: [None if found is None else found[key][1] if key in found else first for found in against]
        for key, first in keys.items()
    }


def _alike(recipes: Sequence[Recipe | None], apart: Set[str]) -> list[list[int]]:
    """Places of runs of one recipe, which differ in nothing but `apart`; a run without a recipe is alone."""
    groups: list[list[int]] = []
    for place, recipe in enumerate(recipes):
        for group in groups:
            differing = _settings(recipes[group[0]], recipe)
            if differing is not None and differing.keys() <= apart:
                group.append(place)
                break
        else:
            groups.append([place])
    return groups


def _text(record: Mapping[str, Any]) -> str:
    lines: list[str] = []
    for found in record["runs"]:
        minutes, peak = found["seconds"] / 60, found["peak_bytes"]
        lines.append(
            f"{found['run']}: {found['steps']} steps in {minutes:.1f} min, {found['sampled_tokens']:,} tokens sampled"
            + ("" if peak is None else f", peak {peak / 2**30:.1f} GiB")
            + ("" if found["finished"] else ", not finished")
        )
        lines += [_task_line(task, of, record["goals"][task]) for task, of in found["tasks"].items()]
    for other in record["against_first"]:
        lines += ["", f"{other['run']} against {record['runs'][0]['run']}"]
        lines += [_difference_line(found) for found in other["tasks"]] or ["  no task that both measured"]
        lines += [f"  {key}: {there!r} -> {here!r}" for key, (there, here) in (other["recipe"] or {}).items()]
    for group in record["seeds"]:
        lines += ["", f"{len(group['runs'])} seeds of one recipe: {', '.join(group['runs'])}"]
        lines += [
            f"  {task}: mean {of['mean']:.1%}, {of['lowest']:.1%} to {of['highest']:.1%}"
            for task, of in group["tasks"].items()
        ]
    for other in record["recipes_against_first"]:
        lines += ["", f"{', '.join(other['runs'])} against the first recipe, over runs on the same problems"]
        lines += [
            f"  {task}: mean {100 * of['mean']:+.1f} points, {100 * of['lowest']:+.1f} to {100 * of['highest']:+.1f}, "
            f"{of['pairs']} pairs"
            for task, of in other["tasks"].items()
        ] or ["  no two runs on the same problems"]
    return "\n".join([*lines, *(["", *record["missing"]] if record["missing"] else [])])


def _task_line(task: str, of: Mapping[str, Any], goal: float) -> str:
    before, last, reached = of["before"], of["last"], of["goal"]
    bounds = last["interval"] if isinstance(last["interval"], list) and len(last["interval"]) == 2 else None
    around = "" if bounds is None else f" [{bounds[0]:.1%}, {bounds[1]:.1%}]"
    line = (
        f"  {task}: {before['accuracy']:.1%} before, {last['accuracy']:.1%}{around} last "
        f"(stage {last['stage']}, step {last['step']}, {last['n']} problems)"
    )
    if reached is None:
        return f"{line}; {goal:.1%} not reached"
    tokens = f"{reached['sampled_tokens']:,} tokens"
    return f"{line}; {goal:.1%} after {reached['steps']} steps, {reached['seconds'] / 60:.1f} min, {tokens}"


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
    parser.add_argument(
        "--goal",
        type=share,
        help="an accuracy, such as 0.5: what it took to reach it; by default the highest that all runs reached",
    )
    parser.add_argument(
        "--apart",
        action="append",
        default=[],
        metavar="KEY",
        help="a setting, such as model.path, in which runs of one recipe may differ as in their seed",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write a page, and its numbers in a .json beside")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    return parser
