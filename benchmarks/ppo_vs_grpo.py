"""GRPO, PPO, DPO and supervised fine-tuning from the same start, on the quickstart's task, with one sampling budget.

    python benchmarks/ppo_vs_grpo.py --seeds 0,1,2 --steps 40 --out COMPARISON
    python benchmarks/ppo_vs_grpo.py --seeds 0 --methods grpo,ppo --rates 0.33,1,3 --out COMPARISON

For each seed the quickstart's supervised stage makes the start; every method then takes `--steps` steps from it, each
in a process of its own so that peak memory is its own. Minutes are the median step's times the steps, evaluations not
counted. `--rates` multiplies the learning rates, to see how much a
method depends on them. A run that is there already is not repeated, so an interrupted comparison goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from peerwise.evaluate.estimate import bootstrap_difference
from peerwise.metrics.write import EVALS_FILE, METRICS_FILE, read_rows
from peerwise.recipe.load import dumps, load

RECIPE = Path(__file__).parents[1] / "recipes" / "quickstart.toml"
RATE = 1.5e-5
"""The quickstart's rate, for every method that learns from samples."""
METHODS: dict[str, list[str]] = {
    "grpo": ["--stage.grpo.method", "grpo"],
    "ppo": ["--stage.grpo.method", "grpo", "--algorithm.preset", "ppo", "--algorithm.aggregation", "None"],
    "dpo": ["--stage.grpo.method", "dpo"],
    # Its own right answers, sampled like the others', and the data's worked solutions, without sampling.
    "own": ["--stage.grpo.method", "sft", "--stage.grpo.sft.source", "own"],
    "sft": ["--stage.grpo.method", "sft"],
}


def main() -> None:
    """Run what is missing, print the comparison as JSON and as a table."""
    options = _parser().parse_args()
    seeds = [int(seed) for seed in options.seeds.split(",")]
    rates = [float(rate) for rate in options.rates.split(",")]
    methods = options.methods.split(",")
    out = Path(options.out)
    rows = []
    for seed in seeds:
        start = _start(out, seed)
        for method in methods:
            for rate in rates:
                rows.append(_result(out, start, method, seed, rate, options))
    print(json.dumps({"goal": options.goal, "steps": options.steps, "runs": rows}))
    print(_table(rows, options.goal), file=sys.stderr)


def _start(out: Path, seed: int) -> Path:
    """The checkpoint after the quickstart's supervised stage."""
    folder = out / f"start-{seed}"
    _train(folder, "sft", ["--run.seed", str(seed)])
    return folder / "checkpoints" / f"step-{len(list(read_rows(folder / METRICS_FILE)))}"


def _result(out: Path, start: Path, method: str, seed: int, rate: float, options: argparse.Namespace) -> dict[str, Any]:
    folder = out / f"{method}-{seed}-{rate:g}"
    words = [
        "--model.path", str(start), "--run.seed", str(seed), "--run.checkpoint-every", "0",
        "--evaluation.every", str(options.every), "--stage.grpo.steps", str(options.steps),
        "--stage.grpo.optimizer.learning-rate", str(RATE * rate), *METHODS[method],
    ]  # fmt: skip
    if method == "ppo":
        words += ["--stage.grpo.critic.learning-rate", str(2 * RATE * rate)]
    _train(folder, "grpo", words)
    evals = list(read_rows(folder / EVALS_FILE))
    steps = list(read_rows(folder / METRICS_FILE))
    before, after = evals[0], evals[-1]
    gain = bootstrap_difference([r > 0 for r in before["right"]], [r > 0 for r in after["right"]])
    reached = [row["step"] for row in evals if row["step"] and row["accuracy"] >= options.goal]
    return {
        "method": method,
        "seed": seed,
        "rate": RATE * rate,
        "before": before["accuracy"],
        "after": after["accuracy"],
        "interval": after["interval"],
        "gain": gain[0],
        "gain_interval": list(gain[1:]),
        "best": max(row["accuracy"] for row in evals),
        "steps_to_goal": reached[0] if reached else None,
        # The median step, so that a pause of the machine does not count against the method it fell on.
        "seconds": statistics.median(row["time/step"] for row in steps) * len(steps),
        "sampled_tokens": sum(row.get("tokens/sampled", 0) for row in steps),
        "peak_bytes": max(row["memory/peak"] for row in steps),
    }


def _train(folder: Path, stage: str, words: list[str]) -> None:
    """One stage of the quickstart, in a process of its own; nothing to do when it has finished before."""
    command = [sys.executable, "-m", "peerwise", "train"]
    if folder.exists():
        command += ["--resume", str(folder)]
    else:
        recipe = load(RECIPE, words)
        recipe = recipe.model_copy(update={"stage": {stage: recipe.stage[stage]}})
        file = folder.with_name(f"{folder.name}.toml")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dumps(recipe), encoding="utf-8")
        command += [str(file), "--run.out", str(folder)]
    if subprocess.run(command, stdout=sys.stderr).returncode:
        raise SystemExit(f"the run in {folder} failed; see its run.log")


def _table(rows: list[dict[str, Any]], goal: float) -> str:
    head = (
        f"| method | seed | rate | before | after [95 %] | gain [95 %] | steps to {goal:.0%} | minutes | peak GiB |\n"
    )
    lines = [head, "|---|---|---|---|---|---|---|---|---|\n"]
    for row in rows:
        low, high = row["interval"]
        gain_low, gain_high = row["gain_interval"]
        lines.append(
            f"| {row['method']} | {row['seed']} | {row['rate']:.1e} | {row['before']:.1%} "
            f"| {row['after']:.1%} [{low:.1%}, {high:.1%}] | {row['gain']:+.1%} [{gain_low:+.1%}, {gain_high:+.1%}] "
            f"| {row['steps_to_goal'] or 'not reached'} | {row['seconds'] / 60:.1f} "
            f"| {row['peak_bytes'] / 2**30:.1f} |\n"
        )
    return "".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="folder for the runs")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--rates", default="1", help="factors on the learning rate, such as 0.33,1,3")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--every", type=int, default=10, help="steps between evaluations")
    parser.add_argument("--goal", type=float, default=0.4, help="accuracy whose first evaluation is reported")
    return parser


if __name__ == "__main__":
    main()
