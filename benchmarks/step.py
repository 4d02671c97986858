"""Seconds and peak memory of whole GRPO steps: ours beside TRL's, on the same model, prompts, lengths and rewards.

    python benchmarks/step.py --against trl --trl-python PYTHON --json
    python benchmarks/step.py --against trl --group-size 4,8,16,32 --prompt-tokens 64,512 --new-tokens 64,256 \
        --out rows.jsonl
    python benchmarks/step.py --merge rows.jsonl more.jsonl

Group size, prompt tokens and new tokens may be lists: all combinations are measured. Each engine runs in a process of
its own, so that peak memory (`ru_maxrss`) is its own; repeats of the whole grid take turns, and medians are reported.
With --out a row is written as soon as it is measured, and the rows of the file count: a grid that was stopped goes on.
A step that fails (TRL may need more memory than there is) is a row that says so, and the grid goes on; it is tried
again with the next call. Where TRL lives in another environment, name its interpreter with --trl-python. A comparison
can be made of single rows (--engine), which --merge puts together.

The rate of the machine is that of a [2048, 2048] by [2048, 2048] product, the best of ten in the same process before
the steps. Operations of training are counted as the model needs them, whatever is computed again or padded: for each
token of the row 2 for each weight of the decoder forward and 4 backward, for each answer token the same for the head,
and for attention 4 * width * (keys seen) forward and twice that backward. Prompts count once for their group. The share
of the rate is those operations, over the seconds of training, over the rate. `others` is the share of the
processors that other processes used meanwhile: above a few per cent a row is not worth keeping.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import resource
import signal
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sweep import Progress, Row, Rows, read_rows, whole_numbers

PHASES = ("sampling", "reference", "training", "optimizer", "whole")


def counts(prompt_lengths: Sequence[int], group_size: int, new_tokens: int) -> dict[str, int]:
    """What a step goes over: tokens of its rows, tokens of answers, and pairs of a token and a key that it sees."""
    answers = group_size * new_tokens
    of_answers = group_size * new_tokens * (new_tokens + 1) // 2
    return {
        "tokens": sum(prompt + answers for prompt in prompt_lengths),
        "answers": answers * len(prompt_lengths),
        "seen": sum(prompt * (prompt + 1) // 2 + prompt * answers + of_answers for prompt in prompt_lengths),
    }


def operations(row: Row, group_size: int, new_tokens: int) -> dict[str, float]:
    """Floating-point operations of one step by phase; a multiplication and an addition are two."""
    count = counts(row["prompt_lengths"], group_size, new_tokens)
    forward = 2 * row["decoder_weights"] * count["tokens"] + 2 * row["head_weights"] * count["answers"]
    forward += 4 * row["attention_width"] * count["seen"]
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
    if options.engine == "peerwise":
        # As the commands run. TRL's process is left as its users find it.
        from peerwise.cli.process import start_without_thread_cache

        start_without_thread_cache()
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
        "own": own_setting(options, options.engine),
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


def own_setting(options: argparse.Namespace, engine: str) -> dict[str, Any]:
    """What the other engine does not have."""
    names = ("micro_batch",) if engine == "trl" else ("micro_batch_tokens", "lora_rank", "moments", "offload")
    return {name: getattr(options, name) for name in names}


def run_apart(options: argparse.Namespace, engine: str) -> Row:
    """`measure` in a process of its own; where it fails, a row with the reason."""
    python = options.trl_python if engine == "trl" else sys.executable
    command = [python, __file__, "--engine", engine, "--json"]
    own = own_setting(options, engine)
    for name, value in (setting(options) | own | {"steps": options.steps}).items():
        flag = f"--{name.replace('_', '-')}"
        command += ([flag] if value else []) if isinstance(value, bool) else [flag, str(value)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        print(f"{engine} failed:\n{done.stderr[-3000:]}", file=sys.stderr, flush=True)
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        killed = "killed, most likely for its memory: " if done.returncode == -signal.SIGKILL else ""
        return {"engine": engine, "setting": setting(options), "own": own, "failed": killed + reason}
    return dict(json.loads(done.stdout.splitlines()[-1]))


def grid(options: argparse.Namespace) -> list[argparse.Namespace]:
    """The options of every single setting."""
    swept = itertools.product(options.group_size, options.prompt_tokens, options.new_tokens)
    return [
        argparse.Namespace(**vars(options) | {"group_size": group, "prompt_tokens": prompt, "new_tokens": new})
        for group, prompt, new in swept
    ]


def measured(options: argparse.Namespace, rows: Rows) -> Iterator[Row]:
    """The rows that are still missing: first one of every setting, engines by turns, then the next repeat of all."""
    engines = ["peerwise", *([options.against] if options.against else [])]
    missing, ahead = [], defaultdict[str, float](float)
    for repeat, cell, engine in itertools.product(range(options.repeats), grid(options), engines):
        wanted = {"engine": engine, "setting": setting(cell), "own": own_setting(cell, engine)}
        if rows.count(**wanted, failed=None) <= repeat:
            missing.append((cell, engine))
            ahead[engine] += work(cell, engine)
    progress = Progress(ahead)
    failed = set()
    for cell, engine in missing:
        what = f"{engine}, G {cell.group_size}, prompts of {cell.prompt_tokens}, answers of {cell.new_tokens}"
        if (key := (engine, json.dumps(setting(cell)))) in failed:
            continue
        with progress.of(engine, work(cell, engine), what):
            row = run_apart(cell, engine)
        if "failed" in row:
            failed.add(key)
        yield row


def work(cell: argparse.Namespace, engine: str) -> float:
    """About what a row costs its engine: the tokens that go through the model in all of its steps."""
    prompt = cell.prompt_tokens or 64
    shared = 1 if engine == "peerwise" else cell.group_size
    return float(cell.steps * cell.problems * (prompt * shared + cell.group_size * cell.new_tokens))


def merged(rows: list[Row]) -> list[Row]:
    """Medians over the rows of each setting, and how each way of ours compares with TRL where both are there."""
    by_setting: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_setting[json.dumps(row["setting"], sort_keys=True)].append(row)
    found = []
    for of_setting in by_setting.values():
        theirs = [row for row in of_setting if row["engine"] == "trl"]
        ways: dict[str, list[Row]] = defaultdict(list)
        for row in of_setting:
            if row["engine"] == "peerwise":
                ways[json.dumps(row["own"], sort_keys=True)].append(row)
        found += [_compared({"peerwise": ours, "trl": theirs}) for ours in ways.values() or [[]]]
    return found


def _compared(engines: dict[str, list[Row]]) -> Row:
    engines = {name: rows for name, rows in engines.items() if rows}
    first = next(rows[0] for rows in engines.values())
    whole = {name: [row for row in rows if "failed" not in row] for name, rows in engines.items()}
    summary: Row = {
        "setting": first["setting"],
        "own": first["own"],
        "engines": {name: _medians(rows) for name, rows in whole.items() if rows},
        "failed": {name: engines[name][-1]["failed"] for name, rows in whole.items() if not rows},
    }
    if len(summary["engines"]) == 2:
        ours, theirs = summary["engines"]["peerwise"], summary["engines"]["trl"]
        summary["times_faster"] = theirs["seconds"]["whole"] / ours["seconds"]["whole"]
        summary["memory_share"] = ours["peak_bytes"] / theirs["peak_bytes"]
    return summary


def _medians(rows: list[Row]) -> Row:
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


def table(summaries: list[Row]) -> str:
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
        for name, reason in summary["failed"].items():
            lines.append(f"{name:9} {s['group_size']:3} {s['prompt_tokens']:6} {s['new_tokens']:4}  failed: {reason}")
        if "times_faster" in summary:
            how = ", ".join(f"{name} {value}" for name, value in summary["own"].items())
            faster = f"{summary['times_faster']:.1f} times faster, {summary['memory_share']:.0%} of the memory"
            lines.append(f"  with {how}: {faster}")
    return "\n".join(lines)


def main() -> None:
    """Measure, or merge; print a table, or JSON."""
    options = _parser().parse_args()
    if options.engine:
        cell, *others = grid(options)
        if others:
            sys.exit("--engine makes one row: lists are for a whole comparison (--against)")
        print(json.dumps(measure(cell)))
        return
    rows = Rows(options.out)
    for path in options.merge or ():
        rows.rows += [row for row in read_rows(Path(path)) if "setting" in row]
    try:
        for row in () if options.merge else measured(options, rows):
            rows.add(row)
            if options.json:
                print(json.dumps(row), flush=True)
    except KeyboardInterrupt:
        print("stopped; what was measured is below", file=sys.stderr)
    summaries = merged(rows.rows)
    print(json.dumps({"summaries": summaries}) if options.json else table(summaries))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", choices=("trl",))
    parser.add_argument("--engine", choices=("peerwise", "trl"), help="one row, in this process")
    parser.add_argument("--merge", nargs="+", help="files of rows")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"), help="TRL: autocast or not")
    parser.add_argument("--problems", type=int, default=8)
    parser.add_argument("--group-size", type=whole_numbers, default=[8])
    prompts = "at least so many; 0: as the problems are"
    parser.add_argument("--prompt-tokens", type=whole_numbers, default=[0], help=prompts)
    parser.add_argument("--new-tokens", type=whole_numbers, default=[64])
    parser.add_argument("--beta", type=float, default=0.04)
    parser.add_argument("--micro-batch", type=int, default=8, help="TRL: answers of one forward")
    parser.add_argument("--micro-batch-tokens", type=int, default=4096, help="ours: tokens of one forward")
    parser.add_argument("--checkpointing", action="store_true", help="compute blocks again in the backward, both")
    parser.add_argument("--lora-rank", type=int, default=0, help="ours alone")
    parser.add_argument("--moments", choices=("float32", "8-bit"), default="float32", help="of AdamW, ours alone")
    parser.add_argument("--offload", action="store_true", help="of activations to main memory, ours alone")
    parser.add_argument("--steps", type=int, default=2, help="of each process; the first of several warms up")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--trl-python", default=sys.executable)
    parser.add_argument("--out", help="file that rows are added to as they are measured; those in it count")
    parser.add_argument("--json", action="store_true", help="each row as a line, and a last line with the summaries")
    return parser


if __name__ == "__main__":
    main()
