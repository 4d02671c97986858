"""Tokens per second of the native engine beside transformers' and vLLM: same model, prompts, lengths, dtype.

    python benchmarks/rollout.py --engines native,transformers --problems 8 --group-size 8 --new-tokens 64
    python benchmarks/rollout.py --dtype bfloat16,float32 --group-size 4,8,16,32 --new-tokens 64,256,512 \
        --top-p 1.0,0.95 --engines native,transformers,transformers-continuous,vllm --out rows.jsonl
    python benchmarks/rollout.py --engines native,torch --profile              # milliseconds of a step by part

Every option that takes a list is swept, top-p fastest and dtype slowest. With --out a setting is written as soon as it
is measured, and one that is in the file already is not measured again, so a sweep that was stopped goes on.

Each engine lives in a process of its own (benchmarks/rollout_engines.py) and runs while the others sleep; after its
turn it gives back the memory that it has freed, and the next one waits until it is still. Repeats are interleaved and
medians reported: a slow minute of the machine falls on all. `prefill_s` is the time to the first token of every answer
(a run of one new token); `decode_tokens_per_s` leaves that time and those tokens out. The ceiling is the rate of a
square matrix product in the dtype of the engines, measured after each setting, over the FLOPs of a token: two for each
weight of the layers and the head, attention not counted. Peak memory is that of the engine's process and its children
within the setting (Linux).
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch

from peerwise.models.load import Policy, compute_dtype, load
from peerwise.tasks.base import load_task
from rollout_process import Engine, running
from sweep import Progress, Row, Rows, numbers, whole_numbers, words

Setting = dict[str, Any]


def work(job: dict[str, Any], repeats: int) -> float:
    """What a setting costs an engine, as tokens drawn: every repeat, and a warm-up of eight for each answer."""
    return float(len(job["prompts"]) * job["group_size"] * (8 + repeats * (1 + job["new_tokens"])))


def measured(
    engines: list[Engine], job: dict[str, Any], repeats: int, flops: float, progress: Progress, what: str
) -> dict[str, Any]:
    """One setting on every engine, after a few tokens of each to warm up."""
    whole: dict[str, list[float]] = defaultdict(list)
    prefill: dict[str, list[float]] = defaultdict(list)
    rows = len(job["prompts"]) * job["group_size"]
    tokens = rows * job["new_tokens"]
    for engine in engines:
        engine.rest()
        engine.forget_peak()
        engine.ask({**job, "new_tokens": min(8, job["new_tokens"])})
        engine.rest()
    for repeat, engine in itertools.product(range(repeats), engines):
        kind = f"{engine.name} {job['dtype']}"
        with progress.of(kind, work(job, repeats) / repeats, f"{what}, {engine.name}, repeat {repeat + 1}"):
            # One group for its first token: memory that was given back is taken again outside of what is timed.
            engine.ask({**job, "prompts": job["prompts"][:1], "new_tokens": 1})
            prefill[engine.name].append(engine.ask({**job, "new_tokens": 1})["seconds"])
            run = engine.ask(job)
            whole[engine.name].append(run["seconds"])
            engine.rest()
        if run["tokens"] != tokens:
            raise SystemExit(f"{engine.name} drew {run['tokens']} tokens, expected {tokens}")
    rate = engines[0].ask({"rate": True})["rate"]
    figures: dict[str, Any] = {}
    for engine in engines:
        seconds, first = statistics.median(whole[engine.name]), statistics.median(prefill[engine.name])
        figures[engine.name] = {
            "tokens_per_s": tokens / seconds,
            "decode_tokens_per_s": (tokens - rows) / (seconds - first) if job["new_tokens"] > 1 else None,
            "prefill_s": first,
            "prefills": prefill[engine.name],
            "share_of_ceiling": tokens / seconds * flops / rate,
            "peak_memory_bytes": engine.peak_bytes(),
            "seconds": whole[engine.name],
        }
    lead, *others = figures
    return {
        "prompt_lengths": [len(prompt) for prompt in job["prompts"]],
        "matrix_gflops": rate / 1e9,
        "ceiling_tokens_per_s": rate / flops,
        "engines": figures,
        f"{lead}_over": {name: figures[lead]["tokens_per_s"] / figures[name]["tokens_per_s"] for name in others},
    }


def profiled(engines: list[Engine], job: dict[str, Any]) -> dict[str, Any]:
    """Milliseconds of a decode step by part: those of a whole draw less those of its first token, over the steps."""
    found: dict[str, Any] = {}
    for engine in engines:
        engine.ask({**job, "new_tokens": 8})
        first, whole = (engine.ask({**job, "new_tokens": n, "profile": True}) for n in (1, job["new_tokens"]))
        steps = job["new_tokens"] - 1
        parts = {part: 1000 * (whole[part] - first[part]) / steps for part in whole}
        parts["everything else"] = parts["all"] - sum(value for part, value in parts.items() if part != "all")
        found[engine.name] = parts
    return found


def prompts_of(policy: Policy, problems: int, length: int | None) -> list[list[int]]:
    """Arithmetic problems as asked in training; with a length, each repeated or cut to so many tokens."""
    data = load_task("arithmetic", params={"size": 1, "max_ops": 8}, held_out=problems)
    prompts = [list(policy.prompt_ids(problem.messages)) for problem in data.held_out.problems]
    return [(prompt * (-(-length // len(prompt))))[-length:] for prompt in prompts] if length else prompts


def settings_of(options: argparse.Namespace) -> list[Setting]:
    """All settings of the sweep; these values make two rows comparable."""
    device = torch.device("cpu")
    dtypes = dict.fromkeys(str(compute_dtype(name, device)).removeprefix("torch.") for name in options.dtype)
    swept = itertools.product(dtypes, options.problems, options.group_size, options.new_tokens, options.top_p)
    return [
        {
            "model": options.model,
            "dtype": dtype,
            "problems": problems,
            "group_size": group_size,
            "new_tokens": new_tokens,
            "top_p": top_p,
            "prompt_tokens": options.prompt_tokens,
            "repeats": options.repeats,
            "compared": options.engines,
            "profile": options.profile,
        }
        for dtype, problems, group_size, new_tokens, top_p in swept
    ]


def words_of(setting: Setting) -> str:
    """A setting in a line."""
    answers = setting["problems"] * setting["group_size"]
    return f"{setting['dtype']}, {answers} answers of {setting['new_tokens']}, top-p {setting['top_p']}"


def table(row: Row) -> str:
    """A row for people; a profile as it is."""
    if "engines" not in row:
        return json.dumps(row, indent=1)
    prompts = f"{min(row['prompt_lengths'])}-{max(row['prompt_lengths'])}"
    lines = [
        f"{words_of(row)}, groups of {row['group_size']}, prompts {prompts}; ceiling {row['ceiling_tokens_per_s']:,.0f}"
        f" tokens/s ({row['matrix_gflops']:,.0f} GFLOP/s)",
        f"  {'engine':24}{'tokens/s':>10}{'decode':>10}{'prefill':>10}{'ceiling':>9}{'memory':>11}",
    ]
    for name, engine in row["engines"].items():
        decode = engine["decode_tokens_per_s"]
        lines.append(
            f"  {name:24}{engine['tokens_per_s']:10,.0f}{'' if decode is None else format(decode, ',.0f'):>10}"
            f"{engine['prefill_s']:9.2f}s{engine['share_of_ceiling']:9.0%}"
            f"{engine['peak_memory_bytes'] / 2**30:8.2f}GiB"
        )
    return "\n".join(lines)


def swept(options: argparse.Namespace, rows: Rows) -> Iterator[Row]:
    """The settings that are not there yet, one after the other."""
    settings = [setting for setting in settings_of(options) if not rows.count(**setting)]
    jobs = defaultdict[str, list[dict[str, Any]]](list)
    prompts = prompts_by_number(options) if settings else {}
    for setting in settings:
        jobs[setting["dtype"]].append({**setting, "prompts": prompts[setting["problems"]]})
    ahead: dict[str, float] = defaultdict(float)
    for name, job in itertools.product(options.engines, itertools.chain.from_iterable(jobs.values())):
        ahead[f"{name} {job['dtype']}"] += work(job, options.repeats)
    progress = Progress(ahead)
    pythons = {name: options.vllm_python if name == "vllm" else sys.executable for name in options.engines}
    for dtype, of_dtype in jobs.items():
        with tempfile.TemporaryDirectory() as folder:
            flops = save(options.model, dtype, folder)
            with running(pythons, folder, dtype) as engines:
                for job in of_dtype:
                    setting = {key: value for key, value in job.items() if key != "prompts"}
                    if options.profile:
                        found = profiled(engines, job)
                    else:
                        found = measured(engines, job, options.repeats, flops, progress, words_of(setting))
                    yield {**setting, "machine": machine(), **found}


def prompts_by_number(options: argparse.Namespace) -> dict[int, list[list[int]]]:
    """The prompts for each number of problems."""
    policy = load(options.model, dtype="bfloat16", device="cpu")
    return {problems: prompts_of(policy, problems, options.prompt_tokens) for problems in options.problems}


def save(model: str, dtype: str, folder: str) -> float:
    """Put the model where all engines load it from; returns the FLOPs of a token."""
    policy = load(model, dtype=dtype, device="cpu")
    policy.model.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    head = policy.model.get_output_embeddings().weight
    return 2.0 * sum(p.numel() for p in {*policy.model.base_model.layers.parameters(), head})


def machine() -> str:
    """What the figures belong to."""
    return f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}"


def main() -> None:
    """Run the settings one after the other and print each as soon as it is measured."""
    options = _parser().parse_args()
    rows = Rows(options.out)
    try:
        for row in swept(options, rows):
            rows.add(row)
            print(json.dumps(row) if options.json else table(row), flush=True)
    except KeyboardInterrupt:
        sys.exit("stopped; what is printed above was measured" + (f" and is in {options.out}" if options.out else ""))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    engines = "native, torch, transformers, transformers-continuous, vllm; the first is compared with the others"
    parser.add_argument("--engines", type=words, default=["native", "transformers"], help=engines)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--dtype", type=words, default=["auto"], help="a list of auto, float32, bfloat16")
    parser.add_argument("--problems", type=whole_numbers, default=[8])
    parser.add_argument("--group-size", type=whole_numbers, default=[8])
    parser.add_argument("--new-tokens", type=whole_numbers, default=[64])
    parser.add_argument("--top-p", type=numbers, default=[1.0])
    parser.add_argument("--prompt-tokens", type=int, help="length of every prompt; without it, as the problems are")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--vllm-python", default=".venv-vllm/bin/python", help="interpreter of the environment with vLLM"
    )
    parser.add_argument("--profile", action="store_true", help="where a step of native and torch goes, and no rates")
    parser.add_argument("--out", help="file of JSON lines, one for each setting; those in it are not measured again")
    parser.add_argument("--json", action="store_true", help="one line for each setting")
    return parser


if __name__ == "__main__":
    main()
