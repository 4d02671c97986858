"""The two trainers that `benchmarks/step.py` compares, each making whole GRPO steps of the same work.

Both sample at temperature 1 to the full length, are given rewards of the same kind, charge the k3 divergence, and move
float32 weights with AdamW. Knows nothing of processes, repeats or tables.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from typing import Any

import torch
from transformers import PreTrainedModel

from peerwise.algo.advantage import group_advantages
from peerwise.algo.presets import PRESETS
from peerwise.cli.process import keep_freed_memory
from peerwise.models.load import Policy, load
from peerwise.models.lora import Reference, add_lora
from peerwise.records import Group, Message, Problem, Score
from peerwise.rollout.base import Request, SamplingParams, sample_key
from peerwise.rollout.native.engine import NativeEngine
from peerwise.tasks.base import load_task
from peerwise.train.masters import MasterWeights
from peerwise.train.optimizer import Optimizer
from peerwise.train.step import policy_step

LEARNING_RATE = 1e-6
FILLER = " and then some more"

Seconds = dict[str, float]


class Clock:
    """Seconds by phase; `of` returns them for one step and starts again."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - started

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, its time added to a phase."""

        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with self.phase(name):
                return function(*args, **kwargs)

        return run

    def take(self, whole: float, within: str) -> Seconds:
        """The phases of one step that took `whole` seconds; what no phase claims is `within`."""
        found = {name: self.seconds.get(name, 0.0) for name in ("sampling", "reference", "optimizer")}
        self.seconds.clear()
        return {**found, within: whole - sum(found.values()), "whole": whole}


def chats(policy: Policy, problems: int, tokens: int) -> list[tuple[Message, ...]]:
    """Arithmetic problems, each lengthened with words until its prompt has `tokens` tokens; 0 leaves them.

    Words are added whole, so a prompt may be some tokens longer; both trainers get the same.
    """
    found = []
    for problem in load_task("arithmetic", params={"size": 1, "max_ops": 8}, held_out=problems).held_out.problems:
        *before, last = problem.messages
        text = last["content"]
        while len(policy.prompt_ids((*before, Message(role=last["role"], content=text)))) < tokens:
            text += FILLER
        found.append((*before, Message(role=last["role"], content=text)))
    return found


def peerwise_steps(options: argparse.Namespace, steps: int) -> tuple[list[Seconds], dict[str, Any]]:
    """Our step: the native engine, then `policy_step`."""
    keep_freed_memory()
    policy = load(
        options.model,
        dtype=options.dtype,
        gradient_checkpointing=options.checkpointing,
        offload_activations=options.offload,
    )
    if options.lora_rank:
        add_lora(policy.model, rank=options.lora_rank, alpha=None, seed=0)
    clock = Clock()
    engine = NativeEngine(
        policy.model, decode=policy.decode, end_ids=frozenset(), max_branches=options.problems * options.group_size
    )
    weights = MasterWeights(policy.model)
    settings = {"betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.0, "max_norm": 1.0, "moments": options.moments}
    optimizer = Optimizer(weights, **settings)
    optimizer.step = clock.timed("optimizer", optimizer.step)  # type: ignore[method-assign]
    method = replace(PRESETS["grpo"], kl_coefficient=options.beta)
    reference = _timed_reference(policy.model, clock) if options.beta else None
    prompts = [policy.prompt_ids(chat) for chat in chats(policy, options.problems, options.prompt_tokens)]
    seconds, losses = [], []
    for step in range(steps):
        started = time.perf_counter()
        with clock.phase("sampling"):
            groups = _sampled(engine, prompts, options, step)
        advantages = group_advantages(torch.tensor([g.rewards for g in groups]), scale="group", baseline="group")
        metrics = policy_step(
            policy,
            groups,
            advantages,
            optimizer,
            method=method,
            learning_rate=LEARNING_RATE,
            temperature=1.0,
            max_new_tokens=options.new_tokens,
            micro_batch_tokens=options.micro_batch_tokens,
            reference=reference,
        ).resolve()
        losses.append({key: metrics[key] for key in ("loss", "grad_norm", "entropy/mean", "mismatch/mean")})
        seconds.append(clock.take(time.perf_counter() - started, "training"))
    return seconds, {"prompt_lengths": [len(p) for p in prompts], "losses": losses, **shape_of(policy.model)}


def _timed_reference(model: PreTrainedModel, clock: Clock) -> Reference:
    reference = Reference(model)
    inner = reference.policy

    @contextmanager
    def policy() -> Iterator[PreTrainedModel]:
        with clock.phase("reference"), inner() as frozen:
            yield frozen

    reference.policy = policy  # type: ignore[method-assign]
    return reference


def _sampled(
    engine: NativeEngine, prompts: list[tuple[int, ...]], options: argparse.Namespace, step: int
) -> list[Group]:
    requests = [
        Request(prompt_ids=prompt, keys=tuple(sample_key(0, step, str(p), i) for i in range(options.group_size)))
        for p, prompt in enumerate(prompts)
    ]
    answers = engine.generate(requests, SamplingParams(max_new_tokens=options.new_tokens))
    return [
        Group(
            problem=Problem(id=str(p), task="t", messages=(), answer=""),
            prompt_ids=prompt,
            completions=tuple(completions),
            scores=tuple(Score(total=reward(c.text), correct=reward(c.text) > 0) for c in completions),
        )
        for p, (prompt, completions) in enumerate(zip(prompts, answers, strict=True))
    ]


def reward(text: str) -> float:
    """A number between 0 and 1 that differs from answer to answer and costs nothing."""
    return text.count("e") % 7 / 6


def shape_of(model: PreTrainedModel) -> dict[str, Any]:
    """What the count of operations needs."""
    config = model.config
    head = model.get_output_embeddings().weight
    decoder = sum(p.numel() for name, p in model.named_parameters() if p.dim() == 2 and "embed" not in name)
    return {
        "decoder_weights": decoder - (0 if config.tie_word_embeddings else head.numel()),
        "head_weights": head.numel(),
        "attention_width": config.num_hidden_layers * model.base_model.layers[0].self_attn.o_proj.in_features,
        "trains_all": not any("lora_" in name for name, _ in model.named_parameters()),
    }


def trl_steps(options: argparse.Namespace, steps: int) -> tuple[list[Seconds], dict[str, Any]]:
    """TRL's GRPOTrainer, on the CPU, as its users set it up; its phases by timing its own functions.

    Sampling is `generate`, the reference is the pass over the reference model; all of the rest is one figure.
    """
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    policy = load(options.model, dtype="float32", device="cpu")
    prompts = chats(policy, options.problems, options.prompt_tokens)
    answers = options.problems * options.group_size
    micro_batch = min(options.micro_batch, answers)
    if answers % micro_batch:
        raise SystemExit(f"TRL cannot cut {answers} answers into micro-batches of {micro_batch}; give another size")
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=policy.source,
            reward_funcs=_trl_reward,
            args=GRPOConfig(
                output_dir=folder,
                use_cpu=True,
                bf16=options.dtype != "float32",
                model_init_kwargs={"dtype": "float32"},
                gradient_checkpointing=options.checkpointing,
                per_device_train_batch_size=micro_batch,
                gradient_accumulation_steps=answers // micro_batch,
                num_generations=options.group_size,
                max_completion_length=options.new_tokens,
                generation_kwargs={"min_new_tokens": options.new_tokens},
                temperature=1.0,
                beta=options.beta,
                learning_rate=LEARNING_RATE,
                max_steps=steps,
                report_to=[],
                save_strategy="no",
                logging_strategy="no",
                disable_tqdm=True,
                seed=0,
            ),
            train_dataset=Dataset.from_list([{"prompt": list(chat)} for chat in prompts]),
            processing_class=policy.tokenizer,
        )
        seconds = _time_trl(trainer, clock)
        trainer.train()
    return seconds, {"prompt_lengths": [len(policy.prompt_ids(chat)) for chat in prompts], **shape_of(policy.model)}


def _time_trl(trainer: Any, clock: Clock) -> list[Seconds]:
    """Have the trainer's own functions keep the time; the list fills as it trains."""
    from transformers import TrainerCallback

    seconds: list[Seconds] = []

    class Steps(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            self.started = time.perf_counter()
            optimizer = kwargs["optimizer"]
            if not hasattr(optimizer, "is_timed"):
                optimizer.step, optimizer.is_timed = clock.timed("optimizer", optimizer.step), True

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            seconds.append(clock.take(time.perf_counter() - self.started, "training"))

    trainer.add_callback(Steps())
    trainer.model.generate = clock.timed("sampling", trainer.model.generate)
    if trainer.ref_model is not None:
        trainer.ref_model.forward = clock.timed("reference", trainer.ref_model.forward)
    return seconds


def _trl_reward(completions: list[Any], **ignored: Any) -> list[float]:
    return [reward(c if isinstance(c, str) else c[0]["content"]) for c in completions]


ENGINES = {"peerwise": peerwise_steps, "trl": trl_steps}
