"""What a recipe will cost, before anything is loaded: updates, epochs, tokens, memory, time.

Pure arithmetic on a resolved recipe and a model's shape. It opens no file and knows no device; memory is an estimate
of the tensors the run holds itself: the process, its libraries and the allocator's gaps come on top.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from peerwise.recipe.check import uniform_share
from peerwise.recipe.memory import ASSUMED_TOKENS, Term, memory
from peerwise.recipe.method import largest_group, problems_per_step, samples, with_steps
from peerwise.recipe.schema import Recipe, Stage
from peerwise.recipe.shape import SHAPES, ModelShape

__all__ = ["SHAPES", "ModelShape", "Plan", "StagePlan", "Term", "plan", "render", "to_json"]

SUCCESS_RATES = (0.1, 0.3, 0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """What one stage does and needs. None: not known from what was given."""

    name: str
    method: str
    steps: int
    prompts_per_update: int
    """Problems in one update; for sft the examples."""
    completions_per_update: int
    """Answers in one update: prompts times the largest group size of the stage; 0 where nothing is sampled."""
    optimizer_updates: int
    updates_per_epoch: int | None
    epochs: float | None
    """How often the stage goes through the training problems."""
    tokens_per_update: int
    """Tokens sampled for one batch if every answer ran to its limit."""
    informative_share: dict[str, float]
    """Share of groups with right and wrong answers, by the probability that an answer is right."""
    memory: tuple[Term, ...]
    """Empty when the model's shape is not known."""
    seconds: float | None
    """Time of the stage's steps, evaluations not counted."""

    @property
    def peak_bytes(self) -> int | None:
        """What is always held, plus the largest of the phases."""
        phases = ("sampling", "evaluation", "training")
        held = {phase: sum(term.bytes for term in self.memory if term.phase == phase) for phase in ("always", *phases)}
        return held["always"] + max(held[phase] for phase in phases) if self.memory else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A recipe's cost."""

    model: str
    shape: ModelShape | None
    dtype: str
    num_problems: int | None
    stages: tuple[StagePlan, ...]
    notes: tuple[str, ...]


def plan(
    recipe: Recipe,
    *,
    shape: ModelShape | None = None,
    num_problems: int | None = None,
    seconds_per_step: Mapping[str, float] | None = None,
) -> Plan:
    """Cost of every stage.

    Args:
        shape: None leaves memory out.
        num_problems: training problems of all tasks together; None takes the sum of their limits if all have one.
        seconds_per_step: measured time of one step, by stage name.
    """
    limits = [task.limit for task in recipe.tasks]
    if num_problems is None and None not in limits:
        num_problems = sum(limit for limit in limits if limit is not None)
    unknown = [name for name, stage in recipe.stage.items() if stage.epochs is not None and num_problems is None]
    if num_problems is not None:
        recipe = with_steps(recipe, num_problems)
    dtype = "bfloat16" if recipe.model.dtype == "auto" else recipe.model.dtype
    notes = ["bfloat16 is assumed for model.dtype = 'auto'"] if recipe.model.dtype == "auto" else []
    notes += [
        f"stage {name}: {ASSUMED_TOKENS} tokens are assumed for optimizer.micro_batch_tokens = 'auto'"
        for name, stage in recipe.stage.items()
        if stage.optimizer.micro_batch_tokens == "auto"
    ]
    notes += [f"stage {name}: its epochs become steps once the number of problems is known" for name in unknown]
    for name, stage in recipe.stage.items():
        longest = stage.rollout.max_prompt_tokens + stage.rollout.max_new_tokens
        if shape is not None and longest > shape.context:
            notes.append(
                f"stage {name}: prompt plus answer may reach {longest} tokens, the model takes {shape.context}"
            )
    timed = seconds_per_step or {}
    stages = tuple(
        _stage(recipe, name, stage, shape, dtype, num_problems, timed.get(name)) for name, stage in recipe.stage.items()
    )
    return Plan(
        model=recipe.model.path,
        shape=shape,
        dtype=dtype,
        num_problems=num_problems,
        stages=stages,
        notes=tuple(notes),
    )


def _stage(
    recipe: Recipe,
    name: str,
    stage: Stage,
    shape: ModelShape | None,
    dtype: str,
    num_problems: int | None,
    seconds: float | None,
) -> StagePlan:
    sampled, rollout = samples(stage), stage.rollout
    prompts = problems_per_step(stage)
    passes = stage.algorithm.updates_per_batch * stage.algorithm.mini_batches if stage.method == "grpo" else 1
    if stage.method == "dpo" and not sampled:
        num_problems = None  # its pairs are not the task's problems
    elif not sampled and stage.sft.examples is not None:
        num_problems = min(stage.sft.examples, num_problems or stage.sft.examples)
    size = largest_group(rollout)
    completions = prompts * size if sampled else 0
    shares = {str(p): 1 - uniform_share(p, size) for p in SUCCESS_RATES}
    return StagePlan(
        name=name,
        method=stage.method,
        steps=stage.steps,
        prompts_per_update=prompts,
        completions_per_update=completions,
        optimizer_updates=stage.steps * passes,
        updates_per_epoch=math.ceil(num_problems / prompts) * passes if num_problems else None,
        epochs=stage.steps * prompts / num_problems if num_problems else None,
        tokens_per_update=completions * rollout.max_new_tokens,
        informative_share=shares if sampled else {},
        memory=memory(recipe, stage, shape, 2 if dtype == "bfloat16" else 4) if shape else (),
        seconds=stage.steps * seconds if seconds is not None else None,
    )


def to_json(plan: Plan) -> dict[str, Any]:
    """The plan as plain values; every stage carries `peak_bytes`."""
    out = asdict(plan)
    for stage, values in zip(plan.stages, out["stages"], strict=True):
        values["peak_bytes"] = stage.peak_bytes
    return out


def render(plan: Plan) -> str:
    """The plan for people."""
    size = f"{plan.shape.parameters / 1e6:,.0f} million weights, {plan.dtype}" if plan.shape else "shape not known"
    problems = "not known; give --problems N" if plan.num_problems is None else f"{plan.num_problems:,}"
    lines = [f"model              {plan.model}: {size}", f"training problems  {problems}", *plan.notes]
    for stage in plan.stages:
        lines += ["", *_stage_lines(stage)]
    return "\n".join(lines)


def _stage_lines(stage: StagePlan) -> list[str]:
    epoch = f"; {stage.updates_per_epoch:,} updates/epoch, {stage.epochs:.3g} epochs" if stage.updates_per_epoch else ""
    lines = [f"stage {stage.name}: {stage.method}, {stage.steps:,} steps"]
    if stage.completions_per_update:
        shares = ", ".join(f"{share:.0%} at p = {p}" for p, share in stage.informative_share.items())
        lines += [
            f"  each update      {stage.prompts_per_update} prompts/update, {stage.completions_per_update} completions",
            f"  sampled          at most {stage.tokens_per_update:,} tokens for each batch",
            f"  informative      {shares} (p: how often an answer is right)",
        ]
    else:
        lines.append(f"  each update      {stage.prompts_per_update} examples/update")
    lines.append(f"  updates          {stage.optimizer_updates:,}{epoch}")
    if stage.peak_bytes is None:
        lines.append("  memory           not known without the model's shape")
    else:
        lines.append(f"  memory           about {_gib(stage.peak_bytes)} at the peak (estimate)")
        lines += [f"    {_gib(term.bytes):>10}  {term.name} ({term.phase})" for term in stage.memory]
    unknown = (
        f"unknown; run `peerwise train RECIPE --run.out TIMING --stage.{stage.name}.steps 2`, "
        "then plan with --timed TIMING"
    )
    known = "" if stage.seconds is None else f"about {_duration(stage.seconds)}, evaluations not counted"
    return [*lines, f"  time             {known or unknown}"]


def _gib(count: int) -> str:
    return f"{count / 2**30:.2f} GiB"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
