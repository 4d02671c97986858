"""How well `peerwise plan` foresees the memory of training: its estimate beside the measured peak.

    python benchmarks/memory.py --json

Each setting runs two updates on made-up answers in a process of its own. Measured is the highest resident memory less
what the process held before, after the same with a tiny model, so that the libraries' own pages are in memory: the plan
counts the run's tensors only. Loading is left out, and so are the plan's terms of sampling and evaluation, since
nothing is sampled. Every tensor is returned to the system when it is freed; with --keep the allocator holds on to freed
blocks, as it does in the commands, and its gaps are measured too. Needs Linux (/proc/self/status) and glibc.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from typing import Any

from peerwise.recipe.load import loads
from peerwise.recipe.plan import SHAPES, plan
from peerwise.recipe.schema import Recipe
from peerwise.records import Completion, Group, Problem, Score
from sweep import forget_peak, resident

MODEL = "smollm2-135m-instruct"
PROBLEMS, GROUP_SIZE, PROMPT, ANSWER = 4, 8, 128, 64
SETTINGS: dict[str, list[str]] = {
    "bfloat16, divergence": ["--optimizer.micro-batch-tokens", "1024"],
    "bfloat16, divergence, twice the tokens": ["--optimizer.micro-batch-tokens", "2048"],
    "bfloat16, no divergence, one micro-batch": [
        "--optimizer.micro-batch-tokens", "4096", "--algorithm.kl-coefficient", "0",
    ],
    "bfloat16, divergence, checkpointing": [
        "--optimizer.micro-batch-tokens", "2048", "--model.gradient-checkpointing",
    ],
    "float32, no divergence": [
        "--model.dtype", "float32", "--optimizer.micro-batch-tokens", "1024", "--algorithm.kl-coefficient", "0",
    ],
    "bfloat16, adapters, divergence": ["--model.lora-rank", "8", "--optimizer.micro-batch-tokens", "1024"],
    "float32, adapters, divergence": [
        "--model.dtype", "float32", "--model.lora-rank", "8", "--optimizer.micro-batch-tokens", "1024",
    ],
    "bfloat16, adapters, checkpointing": [
        "--model.lora-rank", "8", "--optimizer.micro-batch-tokens", "2048", "--model.gradient-checkpointing",
    ],
    "bfloat16, 4-bit base, adapters, checkpointing": [
        "--model.quantization", "nf4", "--model.lora-rank", "8", "--optimizer.micro-batch-tokens", "2048",
        "--model.gradient-checkpointing",
    ],
    "bfloat16, divergence, 8-bit moments": [
        "--optimizer.moments", "8-bit", "--optimizer.micro-batch-tokens", "1024",
    ],
}  # fmt: skip
COMMON = [
    "--model.dtype", "bfloat16", "--algorithm.kl-coefficient", "0.04",
    "--rollout.problems", str(PROBLEMS), "--rollout.group-size", str(GROUP_SIZE),
    "--rollout.max-prompt-tokens", str(PROMPT), "--rollout.max-new-tokens", str(ANSWER),
]  # fmt: skip


def recipe_of(name: str) -> tuple[Recipe, list[str]]:
    """The recipe of a setting; what it says itself takes the place of what is common."""
    own = SETTINGS[name]
    common: list[str] = []
    for flag, value in zip(COMMON[::2], COMMON[1::2], strict=True):
        common += [] if flag in own else [flag, value]
    return loads("", common + own), common + own


def planned_bytes(name: str) -> int:
    """What is always held and what training adds, by the plan."""
    (stage,) = plan(recipe_of(name)[0], shape=SHAPES[MODEL]).stages
    return sum(term.bytes for term in stage.memory if term.phase in ("always", "training"))


def measure(name: str, *, keep: bool) -> int:
    """Two updates as the setting says; bytes at the peak beyond those before."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from peerwise.cli.process import keep_freed_memory, start_without_thread_cache
    from peerwise.models.load import load

    if keep:
        start_without_thread_cache()
        keep_freed_memory()
    recipe = loads("", recipe_of(name)[1])
    tiny = LlamaConfig(
        vocab_size=50_000, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2
    )
    updates(LlamaForCausalLM(tiny), recipe)
    before = resident("VmRSS")
    settings = recipe.model
    model = load(
        MODEL,
        dtype=settings.dtype,
        quantization=settings.quantization,
        gradient_checkpointing=settings.gradient_checkpointing,
    ).model
    # While it is read, the model is there in the file's dtype too; the peak of interest comes later.
    forget_peak()
    updates(model, recipe)
    return resident("VmHWM") - before


def updates(model: Any, recipe: Recipe) -> None:
    """Two updates of a model on answers of the recipe's lengths."""
    import torch

    from peerwise.models.load import Policy
    from peerwise.models.lora import Reference, add_lora
    from peerwise.recipe.method import method_of
    from peerwise.train.masters import MasterWeights
    from peerwise.train.optimizer import make_optimizer
    from peerwise.train.step import policy_step

    stage = recipe.stage["grpo"]
    if recipe.model.lora_rank:
        add_lora(model, rank=recipe.model.lora_rank, alpha=None, seed=0)
    optimizer = make_optimizer(MasterWeights(model), stage.optimizer)
    method = method_of(stage.algorithm)
    reference = Reference(model) if method.kl_coefficient else None
    advantages = torch.tensor([[1.0 if i % 2 else -1.0 for i in range(GROUP_SIZE)]] * PROBLEMS)
    for _ in range(2):
        policy_step(
            Policy(model, None, frozenset(), ""),  # type: ignore[arg-type]
            made_up(PROBLEMS, GROUP_SIZE, PROMPT, ANSWER),
            advantages,
            optimizer,
            method=method,
            learning_rate=1e-6,
            temperature=1.0,
            max_new_tokens=ANSWER,
            micro_batch_tokens=int(stage.optimizer.micro_batch_tokens),
            reference=reference,
        )


def made_up(problems: int, group_size: int, prompt: int, answer: int) -> list[Group]:
    """Groups of random ids below 32,000, all prompts and all answers of one length."""
    rng = random.Random(0)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(rng.randrange(100, 32_000) for _ in range(count))

    def completion() -> Completion:
        return Completion(token_ids=ids(answer), logprobs=(-5.0,) * answer, finish="length", text="")

    return [
        Group(
            problem=Problem(id=str(p), task="t", messages=(), answer=""),
            prompt_ids=ids(prompt),
            completions=tuple(completion() for _ in range(group_size)),
            scores=tuple(Score(total=float(i % 2), correct=bool(i % 2)) for i in range(group_size)),
        )
        for p in range(problems)
    ]


def main() -> None:
    """All settings, or one in this process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--setting", choices=SETTINGS, help="one, in this process: prints the measured bytes")
    parser.add_argument("--keep", action="store_true", help="the allocator set as the commands set it")
    parser.add_argument("--json", action="store_true", help="one line")
    options = parser.parse_args()
    if options.setting:
        print(measure(options.setting, keep=options.keep))
        return
    rows = []
    for name in SETTINGS:
        command = [sys.executable, __file__, "--setting", name, *(["--keep"] if options.keep else [])]
        allocator = {} if options.keep else {"MALLOC_MMAP_THRESHOLD_": str(2**16)}
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | allocator)
        if done.returncode:
            sys.exit(f"{name} failed:\n{done.stderr[-3000:]}")
        measured, planned = int(done.stdout.split()[-1]), planned_bytes(name)
        rows.append({"setting": name, "planned": planned, "measured": measured, "error": planned / measured - 1})
        if not options.json:
            row = rows[-1]
            print(f"{name:42} {planned / 2**30:6.2f} GiB planned {measured / 2**30:6.2f} measured {row['error']:+.0%}")
    if options.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
