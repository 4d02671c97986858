"""Everything a run works with, put together from its recipe: policy, problems, scorers, generators, run folder.

This is where the rooms meet. It decides nothing about training.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from peerwise import __version__
from peerwise.errors import DataError, RecipeError
from peerwise.evaluate.run import answer, summarise
from peerwise.metrics.console import Console
from peerwise.metrics.write import RunFiles
from peerwise.models.load import Policy, load
from peerwise.models.lora import add_lora
from peerwise.recipe.schema import Evaluation, Recipe, Rollout, Task
from peerwise.records import Problem
from peerwise.rewards.rubric import Scorer, build, verifiable
from peerwise.rollout.base import Generator, SamplingParams
from peerwise.rollout.native.engine import NativeEngine
from peerwise.rollout.transformers import TransformersGenerator
from peerwise.tasks.base import ProblemSet, drop_overlong, load_task
from peerwise.tasks.order import Order

MOST_UNREADABLE = 0.05
"""Share of gold answers that may be unreadable; those problems are left out, above it the run does not start."""


@dataclass(slots=True)
class Problems:
    """The problems of a run, by the label of their task (its name, numbered when a name occurs twice)."""

    train: dict[str, tuple[Problem, ...]] = field(default_factory=dict)
    held_out: dict[str, tuple[Problem, ...]] = field(default_factory=dict)
    scorers: dict[str, Scorer] = field(default_factory=dict)
    tasks: dict[str, Task] = field(default_factory=dict)

    def order(self, seed: int) -> Order:
        """The stream of training problems, tasks mixed by weight."""
        return Order(list(self.train.values()), [task.weight for task in self.tasks.values()], seed=seed)

    def __len__(self) -> int:
        return sum(map(len, self.train.values()))


@dataclass(slots=True)
class Session:
    """What every stage is given."""

    recipe: Recipe
    policy: Policy
    problems: Problems
    files: RunFiles
    console: Console

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self.files.folder

    def stage_seed(self, stage: str) -> int:
        """Seeds order and samples of one stage, so that none meets the problems or draws the answers of another."""
        return random.Random(f"{self.recipe.run.seed}/{stage}").getrandbits(63)

    def generator(self, rollout: Rollout) -> Generator:
        """The engine a stage samples with."""
        return make_generator(self.policy, rollout)

    def evaluate(self, *, stage: str, step: int, global_step: int, at: str) -> list[dict[str, Any]]:
        """Measure on every task's held-out problems; show and return the records, and write them together."""
        records = []
        for label, problems in self.problems.held_out.items():
            record = evaluate(
                self.policy,
                problems,
                {label: self.problems.scorers[label]},
                self.recipe.evaluation,
                self.recipe.rollout,
                seed=self.recipe.run.seed,
                console=self.console,
            )
            task = self.problems.tasks[label]
            record = {"stage": stage, "step": step, "global_step": global_step, "at": at, "task": label} | {
                "split": task.eval_split or "held out",
                "template": task.template,
                **record,
            }
            self.console.evaluation(record)
            records.append(record)
        for record in records:
            self.files.evaluation(record)
        return records

    def save_bad(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Keep everything that is needed to go through a batch by hand: bad/<name>.json."""
        folder = self.folder / "bad"
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.json").write_text(json.dumps(rows, ensure_ascii=False, default=str), encoding="utf-8")


def open_session(recipe: Recipe, folder: Path, console: Console) -> Session:
    """Load what the recipe names, then make the run folder.

    Raises:
        RequestError: data or model that cannot be used as the recipe says.
    """
    if recipe.run.threads:
        torch.set_num_threads(recipe.run.threads)
    # The data first: a wrong path or column shows at once, a model takes a while to load.
    problems = load_problems(recipe, console)
    policy = load_policy(recipe)
    _fit(problems, policy, recipe, console)
    files = RunFiles(folder)
    console.log_to(folder / "run.log")
    return Session(recipe, policy, problems, files, console)


def load_policy(recipe: Recipe) -> Policy:
    """The model with its adapters, as it is before the first stage."""
    settings = recipe.model
    policy = load(
        settings.path,
        revision=settings.revision,
        dtype=settings.dtype,
        device=settings.device,
        trust_remote_code=settings.trust_remote_code,
        gradient_checkpointing=settings.gradient_checkpointing,
    )
    if settings.lora_rank:
        add_lora(policy.model, rank=settings.lora_rank, alpha=settings.lora_alpha, seed=recipe.run.seed)
    return policy


def load_problems(recipe: Recipe, console: Console) -> Problems:
    """Every task of the recipe, cleaned, with what was left out told in one line each."""
    problems = Problems()
    for settings in recipe.tasks:
        label = settings.name
        while label in problems.tasks:
            label = f"{settings.name}-{len(problems.tasks) + 1}"
        data = load_task(
            settings.name,
            path=settings.path,
            split=settings.split,
            eval_split=settings.eval_split,
            template=settings.template,
            columns=settings.columns,
            params=settings.params,
            limit=settings.limit,
            held_out=recipe.evaluation.problems,
            seed=recipe.run.seed,
        )
        problems.tasks[label] = settings
        problems.scorers[label] = build(settings.reward, settings.reward_weights, last_number=settings.last_number)
        problems.train[label] = _readable(label, _labelled(data.train, label), console)
        problems.held_out[label] = _readable(label, _labelled(data.held_out, label), console)
        dropped = ", ".join(f"{count} {reason}" for reason, count in data.train.dropped.items() if count)
        console.note(
            f"task {label}: {len(data.train.problems)} to train on, {len(data.held_out.problems)} held out"
            + (f"; left out: {dropped}" if dropped else "")
        )
        if not data.held_out.problems:
            raise DataError(
                f"task {label!r} has no problem left to be held out for evaluation; give more problems, a test split "
                "(--task.eval-split) or hold out fewer (--evaluation.problems)"
            )
    _check_solutions(problems, recipe)
    return problems


def make_generator(policy: Policy, rollout: Rollout) -> Generator:
    """The engine that the settings name, on this policy."""
    engine = NativeEngine if rollout.engine == "native" else TransformersGenerator
    return engine(policy.model, decode=policy.decode, end_ids=policy.end_ids, max_branches=rollout.max_branches)


def evaluate(
    policy: Policy,
    problems: Sequence[Problem],
    scorers: dict[str, Scorer],
    settings: Evaluation,
    rollout: Rollout,
    *,
    seed: int,
    console: Console,
) -> dict[str, Any]:
    """One evaluation record, without the names of where in a run it was made."""
    params = SamplingParams(
        max_new_tokens=settings.max_new_tokens or rollout.max_new_tokens,
        temperature=settings.temperature,
        stop=tuple(rollout.stop),
    )
    groups = answer(
        make_generator(policy, rollout),
        problems,
        scorers,
        policy.prompt_ids,
        params,
        samples=settings.samples,
        seed=seed,
        progress=lambda done, total: console.progress("evaluating", done, total),
    )
    return summarise(groups) | {
        "temperature": params.temperature,
        "max_new_tokens": params.max_new_tokens,
        "seed": seed,
        "version": __version__,
    }


def _labelled(problems: ProblemSet, label: str) -> tuple[Problem, ...]:
    return tuple(p if p.task == label else replace(p, task=label) for p in problems.problems)


def _readable(label: str, problems: Sequence[Problem], console: Console) -> tuple[Problem, ...]:
    """The problems whose gold answer can be read: every answer to the others would count as wrong.

    Raises:
        DataError: more than one in twenty cannot, so the wrong column or format is likelier than a few bad rows.
    """
    unreadable = [problem for problem in problems if not verifiable(problem)]
    if not unreadable:
        return tuple(problems)
    example = f"for example {unreadable[0].id}: {unreadable[0].answer[:80]!r}"
    if len(unreadable) > len(problems) * MOST_UNREADABLE:
        raise DataError(
            f"task {label!r}: the gold answer of {len(unreadable)} of {len(problems)} problems cannot be read, "
            f"{example}; give short final answers (or map the right column)"
        )
    console.note(f"task {label}: left out {len(unreadable)} problems whose gold answer cannot be read, {example}")
    gone = {problem.id for problem in unreadable}
    return tuple(problem for problem in problems if problem.id not in gone)


def _check_solutions(problems: Problems, recipe: Recipe) -> None:
    """Refuse an sft stage that would have nothing to imitate."""
    stages = [name for name, stage in recipe.stage.items() if stage.method == "sft"]
    if stages and not any(p.solution for members in problems.train.values() for p in members):
        raise DataError(
            f"stage {stages[0]!r} is sft, which needs worked solutions, and no training problem has one; map the "
            "column that holds them (--task.columns solution=NAME) or leave the stage out"
        )


def _fit(problems: Problems, policy: Policy, recipe: Recipe, console: Console) -> None:
    """Leave out over-long prompts, counted, and refuse answers that the model's context cannot hold."""
    rollouts = [recipe.rollout, *(stage.rollout for stage in recipe.stage.values())]
    limit = min(rollout.max_prompt_tokens for rollout in rollouts)
    longest = 0
    for name, split in (("train", problems.train), ("held out", problems.held_out)):
        for label, members in split.items():
            lengths = {problem.id: len(policy.prompt_ids(problem.messages)) for problem in members}
            kept = _without_overlong(ProblemSet(problems=members), lengths, limit)
            for reason, count in kept.dropped.items():
                console.note(f"task {label}, {name}: left out {count} problems: {reason}")
            split[label] = kept.problems
            longest = max([longest, *(lengths[problem.id] for problem in kept.problems)])
    answers = max([rollout.max_new_tokens for rollout in rollouts] + [recipe.evaluation.max_new_tokens or 0])
    if policy.context and longest + answers > policy.context:
        raise RecipeError(
            f"prompts of up to {longest} tokens and answers of up to {answers} exceed the model's context of "
            f"{policy.context}; lower rollout.max_prompt_tokens or rollout.max_new_tokens"
        )


def _without_overlong(problems: ProblemSet, lengths: Mapping[str, int], limit: int) -> ProblemSet:
    return drop_overlong(problems, lambda problem: lengths[problem.id], limit)
