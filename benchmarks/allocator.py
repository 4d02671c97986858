"""What a command's settings of glibc's allocator save (`cli.process`): seconds and peak memory, sampling and training.

    python benchmarks/allocator.py

Variants: "plain" as the C library comes, "keep" with freed memory kept, "commands" with that and without the thread's
cache, as the commands run. Each works in a process of its own, because the settings cannot be taken back; they take
turns, and medians are printed as JSON.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time

ROUNDS = 2


def measure(variant: str) -> dict[str, float]:
    """Median seconds of one supervised step on 32 examples and of sampling 8 x 8 answers of 32 tokens; peak GiB."""
    from peerwise.cli.process import keep_freed_memory, start_without_thread_cache

    if variant == "commands":
        start_without_thread_cache()
    from peerwise.models.load import load
    from peerwise.rollout.base import Request, SamplingParams
    from peerwise.rollout.native.engine import NativeEngine
    from peerwise.tasks.base import load_task
    from peerwise.train.likelihood import imitation_step
    from peerwise.train.masters import MasterWeights
    from peerwise.train.optimizer import Optimizer

    if variant != "plain":
        keep_freed_memory()
    policy = load("smollm2-135m-instruct")
    problems = load_task("arithmetic", params={"size": 64}, held_out=16).train.problems[:32]
    examples = [(policy.prompt_ids(p.messages), policy.answer_ids(p.solution or "")) for p in problems]
    optimizer = Optimizer(MasterWeights(policy.model), betas=(0.9, 0.99), eps=1e-8, weight_decay=0.0, max_norm=1.0)
    engine = NativeEngine(policy.model, decode=policy.decode, end_ids=frozenset())
    requests = [Request(prompt_ids=prompt, keys=tuple(range(8))) for prompt, _ in examples[:8]]
    seconds: dict[str, list[float]] = {"supervised step": [], "sampling": []}
    for _ in range(4):
        started = time.perf_counter()
        imitation_step(policy, examples, optimizer, learning_rate=1e-6, micro_batch_tokens=2048)
        trained = time.perf_counter()
        engine.generate(requests, SamplingParams(max_new_tokens=32))
        seconds["supervised step"].append(trained - started)
        seconds["sampling"].append(time.perf_counter() - trained)
    medians = {f"{name}, seconds": statistics.median(times[1:]) for name, times in seconds.items()}
    return {**medians, "peak GiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}


def main() -> None:
    """Without arguments: all variants in turn. With the name of one: that one."""
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1])))
        return
    found: dict[str, list[dict[str, float]]] = {"plain": [], "keep": [], "commands": []}
    for _ in range(ROUNDS):
        for variant, results in found.items():
            out = subprocess.run([sys.executable, __file__, variant], capture_output=True, text=True, check=True)
            results.append(json.loads(out.stdout.splitlines()[-1]))
    medians = {
        variant: {name: statistics.median(result[name] for result in results) for name in results[0]}
        for variant, results in found.items()
    }
    print(json.dumps(medians, indent=1))


if __name__ == "__main__":
    main()
