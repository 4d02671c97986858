"""Tokens per second of the native engine beside transformers' `generate` and vLLM: same model, prompts, lengths, dtype.

    python benchmarks/rollout.py --engines native,transformers --problems 8 --group-size 8 --new-tokens 64 --json
    python benchmarks/rollout.py --engines native,transformers,vllm --vllm-python .venv-vllm/bin/python --json
    python benchmarks/rollout.py --group-size 4,8,16,32 --new-tokens 64 --json          # one line for each setting
    python benchmarks/rollout.py --engines native,torch --profile                       # milliseconds of a step by part

Each engine lives in a process of its own (benchmarks/rollout_engines.py) and runs while the others sleep. Repeats are
interleaved and medians reported: a slow minute of the machine falls on all. `prefill_s` is the time to the first token
of every answer (a run of one new token); `decode_tokens_per_s` leaves that time and those tokens out. The ceiling is
the rate of a square matrix product, measured in the same run, over the FLOPs of a token: two for each weight of the
layers and the head, attention not counted. Peak memory is that of the engine's process and its children (Linux).
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil
import torch

from peerwise.models.load import Policy, load
from peerwise.tasks.base import load_task

ENGINES_FILE = Path(__file__).with_name("rollout_engines.py")


class Engine:
    """A process that draws when asked."""

    def __init__(self, name: str, python: str, folder: str, dtype: str) -> None:
        command = [python, str(ENGINES_FILE), name, folder, dtype, str(torch.get_num_threads())]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._answer()

    def ask(self, job: dict[str, Any]) -> dict[str, Any]:
        """Send a job and wait for its answer."""
        assert self.process.stdin is not None
        print(json.dumps(job), file=self.process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{' '.join(self.process.args)} ended with {self.process.wait()}")  # type: ignore[arg-type]
        answer: dict[str, Any] = json.loads(line)
        return answer

    def peak_bytes(self) -> int:
        """The most memory that the process and its children have held, added up."""
        root = psutil.Process(self.process.pid)
        pids = [root.pid, *(child.pid for child in root.children(recursive=True))]
        statuses = [Path(f"/proc/{pid}/status").read_text() for pid in pids]
        return sum(int(line.split()[1]) * 1024 for text in statuses for line in text.splitlines() if "VmHWM" in line)

    def end(self) -> None:
        """Let it go."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def measured(engines: dict[str, Engine], job: dict[str, Any], repeats: int, flops: float) -> dict[str, Any]:
    """One setting on every engine, after a few tokens of each to warm up."""
    first = {**job, "new_tokens": 1}
    whole: dict[str, list[float]] = {name: [] for name in engines}
    prefill: dict[str, list[float]] = {name: [] for name in engines}
    rows, tokens = len(job["prompts"]) * job["group_size"], 0
    for engine in engines.values():
        engine.ask({**job, "new_tokens": 8})
    for _, (name, engine) in itertools.product(range(repeats), engines.items()):
        prefill[name].append(engine.ask(first)["seconds"])
        run = engine.ask(job)
        tokens = run["tokens"]
        if tokens != rows * job["new_tokens"]:
            raise SystemExit(f"{name} drew {tokens} tokens, expected {rows * job['new_tokens']}")
        whole[name].append(run["seconds"])
    rate = next(iter(engines.values())).ask({"rate": True})["rate"]
    figures = {}
    for name, engine in engines.items():
        seconds, until_first = statistics.median(whole[name]), statistics.median(prefill[name])
        figures[name] = {
            "tokens_per_s": tokens / seconds,
            "decode_tokens_per_s": (tokens - rows) / (seconds - until_first) if job["new_tokens"] > 1 else None,
            "prefill_s": until_first,
            "share_of_ceiling": tokens / seconds * flops / rate,
            "peak_memory_bytes": engine.peak_bytes(),
            "seconds": whole[name],
        }
    lead, *others = figures
    return {
        "problems": len(job["prompts"]),
        "group_size": job["group_size"],
        "new_tokens": job["new_tokens"],
        "top_p": job["top_p"],
        "prompt_tokens": [len(prompt) for prompt in job["prompts"]],
        "matrix_gflops": rate / 1e9,
        "ceiling_tokens_per_s": rate / flops,
        "engines": figures,
        f"{lead}_over": {name: figures[lead]["tokens_per_s"] / figures[name]["tokens_per_s"] for name in others},
    }


def profiled(engines: dict[str, Engine], job: dict[str, Any]) -> dict[str, Any]:
    """Milliseconds of a decode step by part: those of a whole draw less those of its first token, over the steps."""
    found: dict[str, Any] = {"group_size": job["group_size"], "new_tokens": job["new_tokens"]}
    for name, engine in engines.items():
        engine.ask({**job, "new_tokens": 8})
        first, whole = (engine.ask({**job, "new_tokens": n, "profile": True}) for n in (1, job["new_tokens"]))
        steps = job["new_tokens"] - 1
        parts = {part: 1000 * (whole[part] - first[part]) / steps for part in whole}
        parts["everything else"] = parts["all"] - sum(value for part, value in parts.items() if part != "all")
        found[name] = parts
    return found


def prompts_of(policy: Policy, problems: int, length: int | None) -> list[list[int]]:
    """Arithmetic problems as asked in training; with a length, each repeated or cut to so many tokens."""
    data = load_task("arithmetic", params={"size": 1, "max_ops": 8}, held_out=problems)
    prompts = [list(policy.prompt_ids(problem.messages)) for problem in data.held_out.problems]
    return [(prompt * (-(-length // len(prompt))))[-length:] for prompt in prompts] if length else prompts


def main() -> None:
    """Run the settings one after the other and print a JSON object for each."""
    options = _parser().parse_args()
    policy = load(options.model, dtype=options.dtype)
    dtype = str(policy.model.dtype).removeprefix("torch.")
    head = policy.model.get_output_embeddings().weight
    flops = 2.0 * sum(p.numel() for p in {*policy.model.base_model.layers.parameters(), head})
    settings = list(itertools.product(options.problems, options.group_size, options.new_tokens, options.top_p))
    prompts = {problems: prompts_of(policy, problems, options.prompt_tokens) for problems in options.problems}
    about = {
        "model": options.model,
        "dtype": dtype,
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}",
        "repeats": options.repeats,
    }
    with tempfile.TemporaryDirectory() as folder:
        policy.model.save_pretrained(folder)
        policy.tokenizer.save_pretrained(folder)
        del policy, head
        pythons = {"vllm": options.vllm_python}
        names = options.engines.split(",")
        engines = {name: Engine(name, pythons.get(name, sys.executable), folder, dtype) for name in names}
        for problems, group_size, new_tokens, top_p in settings:
            job = {
                "prompts": prompts[problems],
                "group_size": group_size,
                "new_tokens": new_tokens,
                "top_p": top_p,
            }
            found = profiled(engines, job) if options.profile else measured(engines, job, options.repeats, flops)
            result = {**about, **found}
            print(json.dumps(result, indent=None if options.json else 1), flush=True)
        for engine in engines.values():
            engine.end()


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", default="native,transformers", help="native, torch, transformers, vllm")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16"))
    parser.add_argument("--problems", type=_numbers, default=[8])
    parser.add_argument("--group-size", type=_numbers, default=[8])
    parser.add_argument("--new-tokens", type=_numbers, default=[64])
    parser.add_argument("--top-p", type=lambda text: [float(part) for part in text.split(",")], default=[1.0])
    parser.add_argument("--prompt-tokens", type=int, help="length of every prompt; without it, as the problems are")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--vllm-python", default=".venv-vllm/bin/python", help="interpreter of the environment with vLLM"
    )
    parser.add_argument("--profile", action="store_true", help="where a step of native and torch goes, and no rates")
    parser.add_argument("--json", action="store_true", help="one line for each setting")
    return parser


if __name__ == "__main__":
    main()
