"""`peerwise plan RECIPE`: what a recipe will cost, before anything is loaded.

Looks up the model's shape and the times of an earlier run; the arithmetic is `recipe.plan`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from peerwise.cli.words import Parser, positive
from peerwise.errors import RunFolderError
from peerwise.metrics.write import METRICS_FILE, read_rows
from peerwise.recipe.check import check
from peerwise.recipe.load import load, loads
from peerwise.recipe.plan import SHAPES, ModelShape, plan, render, to_json
from peerwise.recipe.schema import Recipe

SUMMARY = "what a recipe costs: updates, tokens, memory, time"


def run(argv: Sequence[str]) -> int:
    """Print the plan of a recipe: text, or one JSON object with --json.

    Raises:
        RequestError: wrong words, a recipe that cannot run, or a --timed folder without step times.
    """
    parser = _parser()
    if not argv or argv[0].startswith("-"):
        if any(word in ("-h", "--help") for word in argv):
            return _help(parser, argv)
        parser.error("give the recipe first: peerwise plan RECIPE [--section.key value ...]")
    options, settings = parser.parse_known_args(argv[1:])
    if any(word in ("-h", "--help") for word in settings):
        return _help(parser, argv)
    recipe = load(argv[0], settings)
    warnings = check(recipe)
    shape, missing = _shape(recipe)
    seconds = _timings(options.timed, recipe) if options.timed else None
    if missing:
        warnings.append(missing)
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    count = options.problems or _count(recipe)
    made = plan(recipe, shape=shape, num_problems=count, seconds_per_step=seconds)
    print(json.dumps({**to_json(made), "warnings": warnings}, ensure_ascii=False) if options.json else render(made))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="peerwise plan",
        usage="peerwise plan RECIPE [--section.key value ...] [--json] [--timed RUN] [--problems N]",
        description=SUMMARY,
        add_help=False,
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--timed", type=Path, metavar="RUN", help="take the time of a step from this run's metrics")
    parser.add_argument("--problems", type=positive, metavar="N", help="how many training problems there are")
    return parser


def _help(parser: argparse.ArgumentParser, argv: Sequence[str]) -> int:
    """Our own options, then every setting of the recipe (of the default recipe when none is given)."""
    print(parser.format_help())
    if argv[0].startswith("-"):
        loads("", ["--help"])
    else:
        load(argv[0], ["--help"])
    return 0


def _count(recipe: Recipe) -> int | None:
    """Training problems of all tasks, where they are generated or on disk; None when a hub would have to be asked."""
    from peerwise.tasks.base import GENERATED, load_task

    if any(task.path is None and task.name not in GENERATED for task in recipe.tasks):
        return None
    found = [
        load_task(**task.source, held_out=recipe.evaluation.problems, seed=recipe.run.seed) for task in recipe.tasks
    ]
    return sum(len(data.train.problems) for data in found)


def _timings(run: Path, recipe: Recipe) -> dict[str, float]:
    """Median seconds of a step by stage of an earlier run; stages it has not timed are named on stderr."""
    path = run / METRICS_FILE
    if not path.is_file():
        raise RunFolderError(
            f"{run} is not a run: it has no {METRICS_FILE}; give the folder that `peerwise train` wrote"
        )
    times: dict[str, list[float]] = defaultdict(list)
    for row in read_rows(path):
        seconds = row.get("time/step")
        if isinstance(seconds, int | float) and not isinstance(seconds, bool):
            times[str(row.get("stage"))].append(seconds)
    known = {stage: statistics.median(values) for stage, values in times.items() if stage in recipe.stage}
    if not known:
        found = ", ".join(times) or "none"
        raise RunFolderError(f"{path} has no time/step for the stages {', '.join(recipe.stage)}; stages timed: {found}")
    for stage in recipe.stage:
        if stage not in known:
            print(f"warning: {path} has no time/step for stage {stage!r}", file=sys.stderr)
    return known


def _shape(recipe: Recipe) -> tuple[ModelShape | None, str | None]:
    """The model's shape, or why it is not known."""
    model = recipe.model
    if model.path in SHAPES:
        return SHAPES[model.path], None
    # A plan opens a connection only for a hub name; the counts need a configuration, never the weights.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(
            model.path, revision=model.revision, trust_remote_code=model.trust_remote_code
        )
        with torch.device("meta"):
            empty = AutoModelForCausalLM.from_config(config, trust_remote_code=model.trust_remote_code)
    except Exception as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        return None, f"model {model.path!r}: its configuration cannot be read, so memory is left out ({reason})"
    text = config.get_text_config()
    try:
        shape = ModelShape.of(text, parameters=sum(parameter.numel() for parameter in empty.parameters()))
    except AttributeError as error:
        return None, f"model {model.path!r}: its configuration lacks a size, so memory is left out ({error})"
    return shape, None
