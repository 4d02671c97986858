"""The tensors that a stage holds, by name, counted from its settings and the model's shape.

An estimate of what the run allocates itself: the process, its libraries and the allocator's gaps come on top. Opens no
file and knows no device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from peerwise.recipe.method import has_critic, keeps_reference, largest_group, problems_per_step, samples
from peerwise.recipe.schema import Recipe, Stage
from peerwise.recipe.shape import ModelShape

LOGITS = 2**21
"""Logits that exist at one time in training on a CPU: `algo.logprob.TILE`."""
ASSUMED_TOKENS = 4096
"""Of a micro-batch, where the run finds its size."""

Phase = Literal["always", "sampling", "evaluation", "training"]


@dataclass(frozen=True, slots=True)
class Term:
    """One named part of the memory estimate.

    Example:
        Term("weights", 269_030_016, "always")
    """

    name: str
    bytes: int
    phase: Phase
    """When it is held; sampling, evaluation and training never overlap."""


def memory(recipe: Recipe, stage: Stage, shape: ModelShape, width: int) -> tuple[Term, ...]:
    """The tensors of one stage. `width` is the bytes of a number in the compute dtype."""
    lora = recipe.model.lora_rank > 0
    trained = shape.lora_parameters(recipe.model.lora_rank) if lora else shape.parameters
    critic = shape.parameters if has_critic(stage) and stage.critic.trunk == "own" else 0
    terms = [
        Term("value network with masters and moments", (width + 8 + (4 if width < 4 else 0)) * critic, "always"),
        # Adapters are float32 whatever the model computes in, so that they need no masters.
        Term("weights", width * shape.parameters + (4 * trained if lora else 0), "always"),
        Term("float32 master weights", 4 * trained if width < 4 and not lora else 0, "always"),
        Term("two moments of the optimizer", 8 * trained, "always"),
        Term(
            "reference copy of the weights",
            width * shape.parameters if not lora and keeps_reference(stage) else 0,
            "always",
        ),
        Term(
            "keys and values while sampling", _sampling_cache(stage, shape, width) if samples(stage) else 0, "sampling"
        ),
        Term("keys and values while evaluating", _evaluation_cache(recipe, stage, shape, width), "evaluation"),
        *_training(recipe, stage, shape, width, trained),
    ]
    return tuple(term for term in terms if term.bytes)


def _sampling_cache(stage: Stage, shape: ModelShape, width: int) -> int:
    """Each prompt once for its group, each answer being decoded on its own; a group may have one answer left."""
    rollout = stage.rollout
    if rollout.engine.startswith("vllm"):
        return 0  # held by vLLM
    branches = min(rollout.max_branches, rollout.problems * largest_group(rollout))
    tokens = min(rollout.problems, branches) * rollout.max_prompt_tokens + branches * rollout.max_new_tokens
    return width * shape.cached_elements() * tokens


def _evaluation_cache(recipe: Recipe, stage: Stage, shape: ModelShape, width: int) -> int:
    rollout, evaluation = stage.rollout, recipe.evaluation
    if rollout.engine.startswith("vllm"):
        return 0
    branches = rollout.max_branches
    if evaluation.problems is not None:
        branches = min(branches, evaluation.problems * evaluation.samples * len(recipe.tasks))
    longest = rollout.max_prompt_tokens + (evaluation.max_new_tokens or rollout.max_new_tokens)
    return width * shape.cached_elements() * branches * longest


def _training(recipe: Recipe, stage: Stage, shape: ModelShape, width: int, trained: int) -> tuple[Term, ...]:
    """What is held at the worst moment: the last micro-batch's backward pass has just begun."""
    tokens = _micro_batch(stage)
    head = _head(shape, width, trains_head=recipe.model.lora_rank == 0)
    return (
        Term("float32 gradient sum", 4 * trained, "training"),
        Term("activations of a micro-batch", _activations(recipe, shape, width, tokens), "training"),
        Term("working tensors of a block", tokens * shape.working_bytes(width), "training"),
        Term("logits of a tile, gradient of the head", head, "training"),
    )


def _micro_batch(stage: Stage) -> int:
    """Tokens of the largest micro-batch: whole groups, about equally many in each; a larger group is split."""
    prompt, answer = stage.rollout.max_prompt_tokens, stage.rollout.max_new_tokens
    setting = stage.optimizer.micro_batch_tokens
    budget = max(ASSUMED_TOKENS if setting == "auto" else setting, prompt + answer)
    of_group = prompt + answer * (largest_group(stage.rollout) if samples(stage) else 1)
    if of_group > budget:
        return budget
    groups = problems_per_step(stage)
    batches = math.ceil(groups / (budget // of_group))
    return math.ceil(groups / batches) * of_group


def _activations(recipe: Recipe, shape: ModelShape, width: int, tokens: int) -> int:
    block = shape.saved_bytes(width, adapters=recipe.model.lora_rank > 0)
    if recipe.model.gradient_checkpointing:
        return tokens * (width * shape.layers * shape.hidden + block)
    return tokens * shape.layers * block


def _head(shape: ModelShape, width: int, *, trains_head: bool) -> int:
    """Three float32 numbers for each logit of a tile, and the head's gradient in float32 and in the compute dtype.

    A tied head's waits until the embedding's is there, and both are added.
    """
    weights = shape.vocab * shape.hidden
    return 12 * LOGITS + ((4 + (width if width < 4 else 0)) * weights if trains_head else 0)
