"""The tensors that a stage holds, by name, counted from its settings and the model's shape.

An estimate of what the run allocates itself: the process, its libraries and the allocator's gaps come on top. Opens no
file and knows no device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from peerwise.recipe.method import has_critic, keeps_reference, largest_group, problems_per_step, samples
from peerwise.recipe.schema import Model, Recipe, Stage
from peerwise.recipe.shape import ModelShape

LOGITS = 2**21
"""Logits that exist at one time in training on a CPU: `algo.logprob.TILE`."""
ASSUMED_TOKENS = 4096
"""Of a micro-batch, where the run finds its size."""

BYTES_OF_NF4 = 4 / 8 + 1 / 64 + 4 / (64 * 256)
"""Of a weight held in 4 bits: with the scale of its block of 64 in 8 bits, and the float32 scale of 256 such scales."""
LEAST_IN_8_BITS = 4096
"""Numbers that a weight must have for its moments to be rounded to 8 bits."""

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
    sizes = shape.adapter_sizes(recipe.model.lora_rank) if lora else (shape.parameters,)
    trained = sum(sizes)
    # Adapters are float32 whatever the model computes in, so that they need no masters.
    weights = _weights(recipe.model, shape, width) + (4 * trained if lora else 0)
    # A bfloat16 weight is half of its master.
    masters = 2 * trained if width < 4 and not lora else 0
    moments = sum(_moments(size, stage) for size in sizes)
    critic = has_critic(stage) and stage.critic.trunk == "own"
    terms = [
        Term("value network with masters and moments", weights + masters + moments if critic else 0, "always"),
        Term("weights", weights, "always"),
        Term("other half of the float32 masters", masters, "always"),
        Term("two moments of the optimizer", moments, "always"),
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


def _weights(model: Model, shape: ModelShape, width: int) -> int:
    """As the model is held without adapters: in its dtype, the blocks' linear layers maybe in 4 bits."""
    rounded = shape.linear_parameters() if model.quantization else 0
    return width * (shape.parameters - rounded) + round(BYTES_OF_NF4 * rounded)


def _moments(size: int, stage: Stage) -> int:
    """Both moments of a weight of so many numbers; in 8 bits with a float32 scale for each block of 256."""
    if stage.optimizer.moments == "8-bit" and size >= LEAST_IN_8_BITS:
        return 2 * (size + 4 * math.ceil(size / 256))
    return 8 * size


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
    # A rounded weight becomes plain for the time of a product, one after the other.
    plain = width * max(a * b for a, b in shape.linear_layers()) if recipe.model.quantization else 0
    return (
        Term("float32 gradient sum", 4 * trained, "training"),
        Term("activations of a micro-batch", _activations(recipe, shape, width, tokens), "training"),
        Term("working tensors of a block", tokens * shape.working_bytes(width), "training"),
        Term("largest weight of a block, dequantised", plain, "training"),
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
