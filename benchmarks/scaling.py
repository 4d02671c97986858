"""What a training step costs for each token: against group size, prompt, answer and model size, and the law behind it.

    python benchmarks/scaling.py                                         # about 6 minutes on 2 cores, 14 GiB
    python benchmarks/scaling.py --models 135M --out rows.jsonl --json

The trainer's own step (`train.step.policy_step`, bfloat16 with float32 masters) runs forward and backward on made-up
answers; no sampling, no divergence, and no optimizer step, so no moments either: they would be 8 bytes more for each
weight. One of group size, prompt and answer is changed at a time, the others stay at --base. Larger models are made of
random weights and measured at the smaller settings only (MODELS says up to how many tokens). Each model has a process
of its own. A first round of its settings warms up and tells their memory; in the next ones they take turns, and the
shortest time counts.

benchmarks/scaling_law.py has the law.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from scaling_law import AXES, summary, table_of, tokens_of
from step import matrix_rates
from sweep import Progress, Row, Rows, forget_peak, give_memory_back, resident, whole_numbers, words

Update = Callable[[dict[str, int]], float]
"""Runs a step of a setting and returns its seconds."""

WARM_UP = {"warm_up": True}


@dataclass(frozen=True, kw_only=True)
class Size:
    """A model and how many tokens of a step it is measured with at most; without a shape it has its own weights."""

    tokens: int
    shape: dict[str, int] | None = None


MODELS = {
    "135M": Size(tokens=100_000),
    # SmolLM2-360M's shape.
    "360M": Size(
        tokens=1_200,
        shape={
            "hidden_size": 960,
            "intermediate_size": 2560,
            "num_hidden_layers": 32,
            "num_attention_heads": 15,
            "num_key_value_heads": 5,
            "vocab_size": 49_152,
        },
    ),
    # Llama-3.2-1B's shape with a quarter of its vocabulary.
    "1B": Size(
        tokens=1_100,
        shape={
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 16,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": 32_768,
        },
    ),
}


def cells(options: argparse.Namespace, model: str) -> list[dict[str, int]]:
    """The settings of a model: the base, and each value of an axis with the base's others."""
    base = {"problems": options.problems, **dict(zip(AXES, options.base, strict=True))}
    found = [base, *({**base, axis: value} for axis in AXES for value in getattr(options, axis))]
    found = [cell for number, cell in enumerate(found) if cell not in found[:number]]
    return [cell for cell in found if tokens_of(cell) <= MODELS[model].tokens] or [base]


def load_model(name: str) -> Any:
    """The model of a size, ready for training."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from peerwise.models.load import load

    shape = MODELS[name].shape
    if shape is None:
        return load("smollm2-135m-instruct", dtype="bfloat16", device="cpu").model
    config = LlamaConfig(**shape, tie_word_embeddings=True, max_position_embeddings=8192)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        return LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(before)


def measure(options: argparse.Namespace, name: str) -> Iterator[Row]:
    """Rows of one model in this process: a round of all settings for memory, then one for each repeat, timed.

    Memory is given back to the system before a setting of the first round; in the others it is kept, as in a run.
    """
    from step_engines import shape_of

    model = load_model(name)
    config = model.config
    shape = {
        **shape_of(model),
        "layers": config.num_hidden_layers,
        "width": config.hidden_size,
        "vocabulary": config.vocab_size,
    }
    update = make_update(model, options.micro_batch_tokens)
    rate = matrix_rates()["bfloat16"]
    todo = cells(options, name)
    memory = {}
    for cell in todo:
        give_memory_back()
        forget_peak()
        held = resident("VmRSS")
        update(cell)
        memory[json.dumps(cell)] = {"held_bytes": held, "peak_bytes": resident("VmHWM")}
        yield WARM_UP
    for cell in todo * options.repeats:
        known = memory[json.dumps(cell)]
        yield {"model": name, **cell, "seconds": update(cell), **known, "matrix_rate": rate, "shape": shape}


def make_update(model: Any, micro_batch_tokens: int) -> Update:
    """The trainer's step on made-up answers, half of them right, without the optimizer's."""
    import torch

    from memory import made_up
    from peerwise.algo.presets import PRESETS
    from peerwise.cli.process import keep_freed_memory
    from peerwise.models.load import Policy
    from peerwise.train.masters import MasterWeights
    from peerwise.train.optimizer import Optimizer
    from peerwise.train.step import policy_step

    class Still(Optimizer):
        """Moves nothing, and so has no moments."""

        def step(self, learning_rate: float) -> float:
            self.zero_grad()
            return 0.0

    keep_freed_memory()
    optimizer = Still(MasterWeights(model), betas=(0.9, 0.99), eps=1e-8, weight_decay=0.0, max_norm=1.0)
    method = replace(PRESETS["grpo"], kl_coefficient=0.0)

    def update(cell: dict[str, int]) -> float:
        groups = made_up(cell["problems"], cell["group_size"], cell["prompt_tokens"], cell["new_tokens"])
        advantages = torch.tensor([[1.0 if i % 2 else -1.0 for i in range(cell["group_size"])]] * cell["problems"])
        started = time.perf_counter()
        policy_step(
            Policy(model, None, frozenset(), ""),  # type: ignore[arg-type]
            groups,
            advantages,
            optimizer,
            method=method,
            learning_rate=0.0,
            temperature=1.0,
            max_new_tokens=cell["new_tokens"],
            micro_batch_tokens=micro_batch_tokens,
        )
        return time.perf_counter() - started

    return update


def measured(options: argparse.Namespace, rows: Rows) -> Iterator[Row]:
    """The rows of the models that lack any, each model in a process of its own."""
    todo = {name: cells(options, name) for name in options.models}
    missing = [name for name in todo if any(rows.count(model=name, **cell) < options.repeats for cell in todo[name])]
    runs = {name: todo[name] * (1 + options.repeats) for name in missing}
    progress = Progress({name: sum(map(tokens_of, runs[name])) for name in missing})
    for name in missing:
        command = [sys.executable, __file__, *sys.argv[1:], "--only", name]
        # In a session of its own, so that Ctrl-C reaches this process alone.
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        try:
            yield from answered(process, name, runs[name], progress)
        finally:
            process.terminate()
            process.wait()


def answered(
    process: subprocess.Popen[str], name: str, runs: list[dict[str, int]], progress: Progress
) -> Iterator[Row]:
    """The rows that the process of a model answers with; those it owes when it fails are left out, and it is said."""
    assert process.stdout is not None
    for cell in runs:
        what = ", ".join([name, *(f"{axis.replace('_', ' ')} {cell[axis]}" for axis in AXES)])
        with progress.of(name, tokens_of(cell), what):
            line = process.stdout.readline()
            if not line:
                print(f"{name} ended with {process.wait()}: the rest of it is left out", file=sys.stderr)
                return
        if (row := json.loads(line)) != WARM_UP:
            yield row


def main() -> None:
    """Measure what is missing, then print the table and the law, or JSON."""
    options = _parser().parse_args()
    if options.only:
        for row in measure(options, options.only):
            print(json.dumps(row), flush=True)
        return
    rows = Rows(options.out)
    try:
        for row in measured(options, rows):
            rows.add(row)
    except KeyboardInterrupt:
        print("stopped; what was measured is below", file=sys.stderr)
    found = summary(rows.rows, options.micro_batch_tokens)
    print(json.dumps(found) if options.json else table_of(found))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=words, default=list(MODELS), help=f"of {', '.join(MODELS)}")
    parser.add_argument("--group-size", type=whole_numbers, default=[4, 8, 16, 32])
    parser.add_argument("--prompt-tokens", type=whole_numbers, default=[64, 128, 256, 512])
    parser.add_argument("--new-tokens", type=whole_numbers, default=[64, 128, 256, 512])
    parser.add_argument("--base", type=whole_numbers, default=[8, 128, 64], help="group size, prompt, answer")
    parser.add_argument("--problems", type=int, default=1)
    parser.add_argument("--micro-batch-tokens", type=int, default=8192)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--out", help="file that rows are added to as they are measured; those in it count")
    parser.add_argument("--json", action="store_true", help="one line")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    main()
