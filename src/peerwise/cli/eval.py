"""`peerwise eval MODEL --task NAME`: accuracy on held-out problems, with pass@k and maj@k for several samples."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from peerwise.cli.process import keep_freed_memory
from peerwise.cli.words import Parser, not_negative, pair, positive
from peerwise.errors import DataError, RequestError

SUMMARY = "measure a model on a task's held-out problems"


def run(argv: Sequence[str]) -> int:
    """Print one evaluation: a line or two for people, or the whole record with --json.

    Raises:
        RequestError: wrong words, unknown task or model, data that cannot be used.
    """
    options = _parser().parse_args(argv)
    keep_freed_memory()
    from peerwise.metrics.console import Console
    from peerwise.models.load import load
    from peerwise.recipe.check import check
    from peerwise.recipe.schema import Evaluation, Recipe, Rollout, Task
    from peerwise.rewards.rubric import build
    from peerwise.tasks.base import load_task
    from peerwise.train.session import evaluate

    samples = options.samples
    temperature = options.temperature if options.temperature is not None else (0.0 if samples == 1 else 1.0)
    task = Task(
        name=options.task,
        path=options.path,
        eval_split=options.split,
        template=options.template,
        columns=dict(options.columns),
    )
    if options.params:
        task = task.model_copy(update={"params": _params(options.params)})
    settings = Evaluation(problems=options.problems, samples=samples, temperature=temperature)
    rollout = Rollout(engine=options.engine, max_new_tokens=options.max_new_tokens, max_branches=options.max_branches)
    check(Recipe(task=task, evaluation=settings, rollout=rollout))
    data = load_task(
        task.name,
        path=task.path,
        split=task.split,
        eval_split=task.eval_split,
        template=task.template,
        columns=task.columns,
        params=task.params,
        held_out=options.problems,
        seed=options.seed,
    )
    if not data.held_out.problems:
        raise DataError(f"task {task.name!r} has no held-out problems; check --path and --split")
    policy = load(options.model, dtype=options.dtype)
    console = Console(quiet=options.json)
    try:
        record = evaluate(
            policy,
            data.held_out.problems,
            {task.name: build(task.reward)},
            settings,
            rollout,
            seed=options.seed,
            console=console,
        )
    finally:
        console.close()
    record = {"model": options.model, "task": task.name, "template": task.template} | record
    print(json.dumps(record, ensure_ascii=False) if options.json else _text(record))
    return 0


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
    parser.add_argument("model", metavar="MODEL", help="a folder, a hub name, or smollm2-135m-instruct")
    parser.add_argument("--task", default="arithmetic", help="arithmetic, gsm8k, math, files or reasoning-gym")
    parser.add_argument("--path", help="local file or folder with the data; without it, generated or from the hub")
    parser.add_argument("--split", help="split to measure on; without it, the task's own test split")
    parser.add_argument("--template", default="boxed", help="how a problem is asked (default %(default)s)")
    parser.add_argument(
        "--columns", nargs="+", type=pair, default=[], metavar="NAME=COLUMN", help="for files: prompt=question ..."
    )
    parser.add_argument("--params", metavar="JSON", help="parameters of a generated task, as a JSON object")
    parser.add_argument("--problems", type=positive, help="how many problems (default: the whole split)")
    parser.add_argument("--samples", type=positive, default=1, help="answers per problem (default %(default)s: greedy)")
    parser.add_argument("--temperature", type=not_negative, help="default 0 for one sample, 1 for several")
    parser.add_argument("--max-new-tokens", type=positive, default=256, help="longest answer (default %(default)s)")
    parser.add_argument("--max-branches", type=positive, default=64, help="answers decoded side by side")
    parser.add_argument("--engine", choices=("native", "transformers"), default="native")
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16"), default="auto")
    parser.add_argument("--seed", type=int, default=0, help="which problems and which samples (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    return parser
