"""What keeping freed memory saves: supervised steps and sampling with and without `cli.process.keep_freed_memory`.

    python benchmarks/allocator.py

Each variant runs in a process of its own, because the setting cannot be taken back; they take turns, and medians of
the seconds are printed as JSON.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time

ROUNDS = 3


def measure(keep: bool) -> dict[str, float]:
    """Median seconds of one supervised step on 16 examples and of sampling 8 x 8 answers of 32 tokens."""
    from peerwise.cli.process import keep_freed_memory
    from peerwise.models.load import load
    from peerwise.rollout.base import Request, SamplingParams
    from peerwise.rollout.native.engine import NativeEngine
    from peerwise.tasks.base import load_task
    from peerwise.train.likelihood import imitation_step
    from peerwise.train.optimizer import MasterWeights, Optimizer

    if keep:
        keep_freed_memory()
    policy = load("smollm2-135m-instruct")
    problems = load_task("arithmetic", params={"size": 64}, held_out=16).train.problems[:16]
    examples = [(policy.prompt_ids(p.messages), policy.answer_ids(p.solution or "")) for p in problems]
    optimizer = Optimizer(MasterWeights(policy.model), betas=(0.9, 0.99), eps=1e-8, weight_decay=0.0, max_norm=1.0)
    engine = NativeEngine(policy.model, decode=policy.decode, end_ids=frozenset())
    requests = [Request(prompt_ids=prompt, keys=tuple(range(8))) for prompt, _ in examples[:8]]
    seconds: dict[str, list[float]] = {"supervised step": [], "sampling": []}
    for _ in range(6):
        started = time.perf_counter()
        imitation_step(policy, examples, optimizer, learning_rate=1e-6, micro_batch_tokens=8192)
        trained = time.perf_counter()
        engine.generate(requests, SamplingParams(max_new_tokens=32))
        seconds["supervised step"].append(trained - started)
        seconds["sampling"].append(time.perf_counter() - trained)
    return {name: statistics.median(times[2:]) for name, times in seconds.items()}


def main() -> None:
    """Without arguments: both variants in turn. With "keep" or "return": one of them."""
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1] == "keep")))
        return
    found: dict[str, list[dict[str, float]]] = {"keep": [], "return": []}
    for _ in range(ROUNDS):
        for variant, results in found.items():
            out = subprocess.run([sys.executable, __file__, variant], capture_output=True, text=True, check=True)
            results.append(json.loads(out.stdout.splitlines()[-1]))
    medians = {
        variant: {name: statistics.median(result[name] for result in results) for name in results[0]}
        for variant, results in found.items()
    }
    saved = {name: 1 - medians["keep"][name] / medians["return"][name] for name in medians["keep"]}
    print(json.dumps({"seconds": medians, "share saved": saved}, indent=1))


if __name__ == "__main__":
    main()
