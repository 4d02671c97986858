"""Seconds and peak memory of whole GRPO steps: ours beside TRL's, on the same model, prompts, lengths and rewards.

    python benchmarks/step.py --against trl --json
    python benchmarks/step.py --against trl --group-size 16 --prompt-tokens 512 --problems 4
    python benchmarks/step.py --engine peerwise --json >> rows.jsonl; python benchmarks/step.py --merge rows.jsonl

Each engine runs in a process of its own, so that peak memory (`ru_maxrss`) is its own; repeats take turns, and medians
are reported. Where TRL lives in another environment, name its interpreter with --trl-python. A long comparison can be
made of single rows (--engine), which --merge puts together.

The rate of the machine is that of a [2048, 2048] by [2048, 2048] product, the best of ten in the same process before
the steps. Operations of training are counted as the model needs them, whatever is computed again or padded: for each
token of the row 2 for each weight of the decoder forward and 4 backward, for each answer token the same for the head,
and for attention 4 * width * (keys seen) forward and twice that backward. Prompts count once for their group. The share
of the rate is those operations, over the seconds of training, over the rate. `others` is the share of the
processors that other processes used meanwhile: above a few per cent a row is not worth keeping.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

PHASES = ("sampling", "reference", "training", "optimizer", "whole")


def operations(row: dict[str, Any], group_size: int, new_tokens: int) -> dict[str, float]:
    """Floating-point operations of one step by phase; a multiplication and an addition are two."""
    tokens = answers = seen = 0
    for prompt in row["prompt_lengths"]:
        tokens += prompt + group_size * new_tokens
        answers += group_size * new_tokens
        seen += prompt * (prompt + 1) // 2 + group_size * (prompt * new_tokens + new_tokens * (new_tokens + 1) // 2)
    forward = 2 * row["decoder_weights"] * tokens + 2 * row["head_weights"] * answers
    forward += 4 * row["attention_width"] * seen
    # Frozen weights need no gradient of their own.
    return {"reference": forward, "training": forward * (3 if row["trains_all"] else 2)}


def matrix_rates() -> dict[str, float]:
    """Operations a second of a large product, by dtype."""
    import torch

    rates = {}
    for dtype in (torch.bfloat16, torch.float32):
        a, b = torch.randn(2048, 2048, dtype=dtype), torch.randn(2048, 2048, dtype=dtype)
        times = []
        for _ in range(11):
            started = time.perf_counter()
            torch.nn.functional.linear(a, b)
            times.append(time.perf_counter() - started)
        rates[str(dtype).removeprefix("torch.")] = 2 * 2048**3 / min(times[1:])
    return rates


def busy_seconds() -> tuple[float, float]:
    """Processor seconds used so far by the whole machine and by this process."""
    import psutil

    machine, own = psutil.cpu_times(), psutil.Process().cpu_times()
    return sum(machine) - machine.idle - machine.iowait, own.user + own.system


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """One row: some steps of one engine in this process. The first step warms up where there are several."""
    import torch

    from step_engines import ENGINES

    rates = matrix_rates()
    machine, own = busy_seconds()
    started = time.perf_counter()
    seconds, facts = ENGINES[options.engine](options, options.steps)
    elapsed = time.perf_counter() - started
    machine_after, own_after = busy_seconds()
    others = (machine_after - machine) - (own_after - own)
    kept = seconds[1:] or seconds
    row: dict[str, Any] = {
        "engine": options.engine,
        "setting": setting(options),
        "seconds": {phase: statistics.median(s[phase] for s in kept) for phase in PHASES},
        "steps": [s["whole"] for s in seconds],
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "rates": rates,
        "others": others / elapsed / (os.cpu_count() or 1),
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}",
        **facts,
    }
    count = operations(row, options.group_size, options.new_tokens)
    rate = rates["float32" if options.dtype == "float32" else "bfloat16"]
    row["rate_share"] = {
        phase: count[phase] / row["seconds"][phase] / rate for phase in count if row["seconds"][phase] > 0
    }
    return row


def setting(options: argparse.Namespace) -> dict[str, Any]:
    """What makes two rows comparable."""
    names = ("model", "dtype", "problems", "group_size", "prompt_tokens", "new_tokens", "beta", "checkpointing")
    return {name: getattr(options, name) for name in names}


def run_apart(options: argparse.Namespace, engine: str) -> dict[str, Any]:
    """`measure` in a process of its own."""
    python = options.trl_python if engine == "trl" else sys.executable
    command = [python, __file__, "--engine", engine, "--json"]
    for name in (*setting(options), "micro_batch_tokens", "micro_batch", "steps", "lora_rank"):
        flag = f"--{name.replace('_', '-')}"
        value = getattr(options, name)
        command += ([flag] if value else []) if isinstance(value, bool) else [flag, str(value)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{engine} failed:\n{done.stderr[-3000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def merged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Medians over the rows of each setting, and how the engines compare where both are there."""
    by_setting: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        by_setting[json.dumps(row["setting"], sort_keys=True)][row["engine"]].append(row)
    found = []
    for key, engines in by_setting.items():
        summary: dict[str, Any] = {"setting": json.loads(key), "engines": {n: _medians(r) for n, r in engines.items()}}
        if len(engines) == 2:
            ours, theirs = summary["engines"]["peerwise"], summary["engines"]["trl"]
            summary["times_faster"] = theirs["seconds"]["whole"] / ours["seconds"]["whole"]
            summary["memory_share"] = ours["peak_bytes"] / theirs["peak_bytes"]
        found.append(summary)
    return found


def _medians(rows: list[dict[str, Any]]) -> dict[str, Any]:
    def median(*path: str) -> float:
        values = []
        for row in rows:
            value: Any = row
            for name in path:
                value = value.get(name, 0.0)
            values.append(value)
        return statistics.median(values)

    return {
        "repeats": len(rows),
        "seconds": {phase: median("seconds", phase) for phase in PHASES},
        "peak_bytes": median("peak_bytes"),
        "rate_share": {phase: median("rate_share", phase) for phase in ("reference", "training")},
        "rates": {dtype: median("rates", dtype) for dtype in ("bfloat16", "float32")},
        "others": max(row["others"] for row in rows),
        "prompt_lengths": rows[0]["prompt_lengths"],
    }


def table(summaries: list[dict[str, Any]]) -> str:
    """The comparison for people."""
    head = f"{'engine':9} {'G':>3} {'prompt':>6} {'new':>4} {'problems':>8}"
    lines = [head + "".join(f"{p:>11}" for p in PHASES) + f"{'memory':>9} {'rate':>6} {'others':>7}"]
    for summary in summaries:
        s = summary["setting"]
        for name, engine in summary["engines"].items():
            start = f"{name:9} {s['group_size']:3} {statistics.mean(engine['prompt_lengths']):6.0f}"
            times = "".join(f"{engine['seconds'][p]:10.1f}s" for p in PHASES)
            tail = f"{engine['peak_bytes'] / 2**30:6.2f}GiB {engine['rate_share']['training']:6.0%}"
            lines.append(f"{start} {s['new_tokens']:4} {s['problems']:8}{times}{tail} {engine['others']:7.0%}")
        if "times_faster" in summary:
            lines.append(f"  {summary['times_faster']:.1f} times faster, {summary['memory_share']:.0%} of the memory")
    return "\n".join(lines)


def main() -> None:
    """Measure, or merge; print a table, or JSON."""
    options = _parser().parse_args()
    if options.engine:
        print(json.dumps(measure(options)))
        return
    if options.merge:
        rows = [json.loads(line) for path in options.merge for line in Path(path).read_text().splitlines()]
    else:
        engines = ["peerwise", *([options.against] if options.against else [])]
        rows = [run_apart(options, engine) for _ in range(options.repeats) for engine in engines]
    summaries = merged(rows)
    print(json.dumps({"rows": rows, "summaries": summaries}) if options.json else table(summaries))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", choices=("trl",))
    parser.add_argument("--engine", choices=("peerwise", "trl"), help="one row, in this process")
    parser.add_argument("--merge", nargs="+", help="files of rows")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"), help="TRL: autocast or not")
    parser.add_argument("--problems", type=int, default=8)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=0, help="at least so many; 0: as the problems are")
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--beta", type=float, default=0.04)
    parser.add_argument("--micro-batch", type=int, default=8, help="TRL: answers of one forward")
    parser.add_argument("--micro-batch-tokens", type=int, default=4096, help="ours: tokens of one forward")
    parser.add_argument("--checkpointing", action="store_true", help="compute blocks again in the backward, both")
    parser.add_argument("--lora-rank", type=int, default=0, help="ours alone")
    parser.add_argument("--steps", type=int, default=2, help="of each process; the first of several warms up")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--trl-python", default=sys.executable)
    parser.add_argument("--json", action="store_true", help="one line, rows included")
    return parser


if __name__ == "__main__":
    main()
