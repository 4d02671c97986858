"""Tokens per second of the native engine beside transformers' own `generate`: same model, prompts, lengths, dtype.

    python benchmarks/rollout.py --engines native,transformers --problems 8 --group-size 8 --new-tokens 64 --json

Both sample at temperature 1 and never stop early, so both draw problems * group_size * new_tokens tokens. Repeats
are interleaved, and the medians reported: a slow minute of the machine falls on both.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable

import torch

from peerwise.cli.process import keep_freed_memory
from peerwise.models.attention import use_attention
from peerwise.models.load import Policy, load
from peerwise.rollout.base import Request, SamplingParams, sample_key
from peerwise.rollout.native.engine import NativeEngine
from peerwise.tasks.base import load_task

Runner = Callable[[], int]


def native(policy: Policy, prompts: list[tuple[int, ...]], options: argparse.Namespace) -> Runner:
    """Our engine; no end id, so that every answer has its full length."""
    engine = NativeEngine(
        policy.model, decode=policy.decode, end_ids=frozenset(), max_branches=options.problems * options.group_size
    )
    requests = [
        Request(prompt_ids=prompt, keys=tuple(sample_key(0, p, "", i) for i in range(options.group_size)))
        for p, prompt in enumerate(prompts)
    ]
    params = SamplingParams(max_new_tokens=options.new_tokens)
    return lambda: sum(len(c.token_ids) for group in engine.generate(requests, params) for c in group)


def transformers(policy: Policy, prompts: list[tuple[int, ...]], options: argparse.Namespace) -> Runner:
    """`model.generate` as its users call it: prompts repeated for each answer, padded on the left, sampling on."""
    rows = [prompt for prompt in prompts for _ in range(options.group_size)]
    longest = max(map(len, rows))
    ids = torch.tensor([[0] * (longest - len(row)) + list(row) for row in rows])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])

    def run() -> int:
        with torch.inference_mode(), use_attention(policy.model, "sdpa"):
            out = policy.model.generate(
                input_ids=ids.to(policy.model.device),
                attention_mask=mask.to(policy.model.device),
                do_sample=True,
                top_k=0,
                max_new_tokens=options.new_tokens,
                min_new_tokens=options.new_tokens,
                pad_token_id=0,
            )
        return (out.shape[1] - longest) * len(rows)

    return run


ENGINES = {"native": native, "transformers": transformers}


def main() -> None:
    """Run, print a table or JSON."""
    options = _parser().parse_args()
    keep_freed_memory()
    policy = load(options.model, dtype=options.dtype)
    data = load_task("arithmetic", params={"size": 1, "max_ops": 8}, held_out=options.problems)
    prompts = [policy.prompt_ids(problem.messages) for problem in data.held_out.problems]
    runners = {name: ENGINES[name](policy, prompts, options) for name in options.engines.split(",")}
    seconds: dict[str, list[float]] = {name: [] for name in runners}
    tokens = 0
    for repeat in range(options.repeats + 1):
        for name, run in runners.items():
            started = time.perf_counter()
            tokens = run()
            if repeat:  # the first round warms up
                seconds[name].append(time.perf_counter() - started)
    result = {
        "model": options.model,
        "dtype": str(policy.model.dtype).removeprefix("torch."),
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}",
        "problems": options.problems,
        "group_size": options.group_size,
        "new_tokens": options.new_tokens,
        "prompt_tokens": [len(prompt) for prompt in prompts],
        "repeats": options.repeats,
        "tokens_per_s": {name: tokens / statistics.median(times) for name, times in seconds.items()},
        "seconds": seconds,
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    rates = result["tokens_per_s"]
    if "transformers" in rates:
        result["ratio_to_transformers"] = {name: rate / rates["transformers"] for name, rate in rates.items()}
    json.dump(result, sys.stdout, indent=None if options.json else 1)
    print()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", default="native,transformers")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16"))
    parser.add_argument("--problems", type=int, default=8)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="one line")
    return parser


if __name__ == "__main__":
    main()
