"""`peerwise eval MODEL --task NAME`: accuracy on held-out problems, with pass@k and maj@k for several samples."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from peerwise.cli.model import model_of
from peerwise.cli.process import keep_freed_memory
from peerwise.cli.words import Parser, from_0_to_1, not_negative, pair, positive, share, whole
from peerwise.errors import DataError, RequestError

if TYPE_CHECKING:
    from peerwise.metrics.console import Console
    from peerwise.recipe.schema import Task
    from peerwise.records import Problem

SUMMARY = "measure a model on a task's held-out problems"


def run(argv: Sequence[str]) -> int:
    """Print one evaluation: a line or two for people, or the whole record with --json.

    Raises:
        RequestError: wrong words, unknown task or model, data that cannot be used.
    """
    options = _parser().parse_args(argv)
    keep_freed_memory()
    from peerwise.evaluate.run import make_generator, measure
    from peerwise.evaluate.task import scorer_of
    from peerwise.metrics.console import Console
    from peerwise.models.load import load
    from peerwise.recipe.check import check
    from peerwise.recipe.schema import Evaluation, Recipe, Rollout

    task = _task(options)
    temperature = options.temperature if options.temperature is not None else float(options.samples > 1)
    settings = Evaluation(
        problems=options.problems,
        samples=options.samples,
        temperature=temperature,
        top_p=options.top_p,
        top_k=options.top_k,
        min_p=options.min_p,
    )
    rollout = Rollout(engine=options.engine, max_new_tokens=options.max_new_tokens, max_branches=options.max_branches)
    check(Recipe(task=task, evaluation=settings, rollout=rollout))
    console = Console(quiet=options.json)
    problems = _problems(task, options, console)
    policy = load(model_of(options.model), dtype=options.dtype)
    try:
        record = {"model": options.model, "task": task.name} | measure(
            policy,
            problems,
            {task.name: scorer_of(task, longest=options.max_new_tokens, warn=console.warn)},
            task,
            settings,
            rollout,
            generator=make_generator(policy, rollout),
            split=options.split or "test",
            seed=options.seed,
            console=console,
        )
    finally:
        console.close()
    print(json.dumps(record, ensure_ascii=False) if options.json else _text(record))
    return 0


def _task(options: argparse.Namespace) -> Task:
    from peerwise.recipe.check import PROGRAM_TASKS
    from peerwise.recipe.schema import Task

    return Task(
        name=options.task,
        path=options.path,
        template=options.template or ("code" if options.task in PROGRAM_TASKS else "boxed"),
        last_number=not options.stated_only,
        columns=dict(options.columns),
        params=_params(options.params) if options.params else {},
        encoding=options.encoding,
        reward=options.reward or ("programs" if options.task in PROGRAM_TASKS else "correctness"),
    )


def _problems(task: Task, options: argparse.Namespace, console: Console) -> Sequence[Problem]:
    """The problems to measure on, with what was left out said."""
    from peerwise.evaluate.task import checked
    from peerwise.tasks.base import load_evaluation

    found = load_evaluation(
        task.name,
        path=task.path,
        split=options.split,
        template=task.template,
        columns=task.columns,
        params=task.params,
        encoding=task.encoding,
        held_out=options.problems,
        seed=options.seed,
    )
    kept = checked(task.name, found, task, solutions=False)
    if not kept.problems:
        raise DataError(f"task {task.name!r} has no problems to measure on; check --path and --split")
    if kept.dropped:
        console.warn("left out: " + ", ".join(f"{count} {reason}" for reason, count in kept.dropped.items()))
    return kept.problems


def _params(text: str) -> dict[str, Any]:
    try:
        params = json.loads(text)
    except ValueError as error:
        raise RequestError(f"--params {text!r} is not JSON ({error})") from None
    if not isinstance(params, dict):
        raise RequestError(f"--params {text!r} is a JSON {type(params).__name__}, expected an object")
    return params


def _text(record: dict[str, Any]) -> str:
    low, high = record["interval"]
    kind = "greedy accuracy" if record["samples"] == 1 else f"mean accuracy of {record['samples']} samples"
    lines = [
        f"{record['task']}, {record['n']} problems: {kind} {100 * record['accuracy']:.1f} % "
        f"[{100 * low:.1f}, {100 * high:.1f}], mean length {record['mean_tokens']:.1f} tokens, "
        f"cut off {100 * record['truncated']:.1f} %, unread {100 * record['unread']:.1f} %"
    ]
    for name in ("pass_at_k", "maj_at_k"):
        for k, found in record.get(name, {}).items():
            low, high = found["interval"]
            lines.append(
                f"{name.replace('_at_k', '@')}{k} {100 * found['value']:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"
            )
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="peerwise eval", description=SUMMARY, allow_abbrev=False)
    parser.add_argument("model", metavar="MODEL", help="a folder, a run, a hub name, or smollm2-135m-instruct")
    parser.add_argument("--task", default="arithmetic", help="arithmetic, gsm8k, math, files, reasoning-gym, ...")
    parser.add_argument("--path", help="local file (taken whole) or folder; without it, generated or from the hub")
    parser.add_argument("--split", help="split to measure on (default: test)")
    parser.add_argument("--template", help="how a problem is asked (default: code for programs, else boxed)")
    parser.add_argument(
        "--columns", nargs="+", type=pair, default=[], metavar="NAME=COLUMN", help="for files: prompt=question ..."
    )
    parser.add_argument("--encoding", default="utf-8", help="of jsonl and csv files (default %(default)s)")
    parser.add_argument("--reward", help="how answers are judged (default: programs for programs, else correctness)")
    parser.add_argument(
        "--stated-only", action="store_true", help="do not take the last number where no answer is stated"
    )
    parser.add_argument("--params", metavar="JSON", help="parameters of a generated task, as a JSON object")
    parser.add_argument("--problems", type=positive, help="how many problems (default: the whole split)")
    parser.add_argument("--samples", type=positive, default=1, help="answers per problem (default %(default)s: greedy)")
    parser.add_argument("--temperature", type=not_negative, help="default 0 for one sample, 1 for several")
    parser.add_argument("--top-p", type=share, default=1.0, help="nucleus (default %(default)s: all)")
    parser.add_argument("--top-k", type=whole, default=0, help="likeliest tokens (default %(default)s: all)")
    parser.add_argument("--min-p", type=from_0_to_1, default=0.0, help="no token below this share of the likeliest")
    parser.add_argument("--max-new-tokens", type=positive, default=256, help="longest answer (default %(default)s)")
    parser.add_argument("--max-branches", type=positive, default=64, help="answers decoded side by side")
    parser.add_argument("--engine", choices=("native", "transformers"), default="native")
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16"), default="auto")
    parser.add_argument("--seed", type=int, default=0, help="which problems and which samples (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    return parser
