"""Everything a run works with, put together from its recipe: policy, problems, scorers, generators, run folder.

This is where the rooms meet. It decides nothing about training.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from peerwise.errors import DataError, RecipeError
from peerwise.evaluate.run import make_generator, measure
from peerwise.evaluate.task import checked, runs_programs, scorer_of, try_reward
from peerwise.metrics.console import Console
from peerwise.metrics.write import RunFiles
from peerwise.models.load import Policy, load
from peerwise.models.lora import add_lora
from peerwise.models.quantized import bitsandbytes, require_trainable
from peerwise.recipe.method import largest_group, samples, with_steps
from peerwise.recipe.schema import Recipe, Rollout, Stage, Task
from peerwise.records import Problem
from peerwise.rewards.equal import equal
from peerwise.rewards.rubric import Scorer
from peerwise.rollout.base import Generator
from peerwise.rollout.native.engine import NativeEngine
from peerwise.sandbox.walls import walls
from peerwise.tasks import prompts
from peerwise.tasks.base import ProblemSet, TaskData, drop_overlong, load_task, without_questions
from peerwise.tasks.inspect import NEAR, summary, without_near
from peerwise.tasks.order import Order
from peerwise.tasks.pairs import Pair, load_pairs
from peerwise.trackers.known import require
from peerwise.trackers.run import Trackers
from peerwise.train.curriculum import curriculum
from peerwise.train.engines import Beside, open_engines


@dataclass(slots=True)
class Problems:
    """The problems of a run, by the label of their task (its name, numbered when a name occurs twice)."""

    train: dict[str, tuple[Problem, ...]] = field(default_factory=dict)
    held_out: dict[str, tuple[Problem, ...]] = field(default_factory=dict)
    scorers: dict[str, Scorer] = field(default_factory=dict)
    tasks: dict[str, Task] = field(default_factory=dict)
    splits: dict[str, str] = field(default_factory=dict)
    """What the held-out problems of each task are."""
    longest_prompt: int = 0
    """Tokens of the longest prompt of all."""

    def by_id(self) -> dict[tuple[str, str], Problem]:
        """The training problems by task and id."""
        return {(label, problem.id): problem for label, members in self.train.items() for problem in members}

    def order(self, seed: int) -> Order[Problem]:
        """The stream of training problems, tasks mixed by weight."""
        return Order(list(self.train.values()), [task.weight for task in self.tasks.values()], seed=seed)


@dataclass(slots=True)
class Session:
    """What every stage is given."""

    recipe: Recipe
    policy: Policy
    problems: Problems
    files: RunFiles
    console: Console
    pairs: dict[str, tuple[Pair, ...]] = field(default_factory=dict)
    """By stage, for the stages that learn from a file of pairs."""
    trackers: Trackers = field(default_factory=Trackers)
    engines: dict[str, Beside] = field(default_factory=dict)
    """What does not run on the policy's own model, by the name that `rollout.engine` has for it."""
    version: int = 0
    """Steps of the run that made the policy's weights."""

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self.files.folder

    def stage_seed(self, stage: str) -> int:
        """Seeds order and samples of one stage, so that none meets the problems or draws the answers of another."""
        return random.Random(f"{self.recipe.run.seed}/{stage}").getrandbits(63)

    def generator(self, stage: str, rollout: Rollout) -> Generator:
        """The engine a stage samples with; says what its cache may take."""
        engine = self._engine(rollout)
        if isinstance(engine, NativeEngine):
            answers = rollout.problems * largest_group(rollout)
            fitting, most = engine.side_by_side(
                prompts=rollout.problems,
                longest_prompt=self.problems.longest_prompt,
                max_new_tokens=rollout.max_new_tokens,
            )
            self.console.note(
                f"stage {stage}: {min(fitting, answers)} answers side by side, keys and values up to "
                f"{most / 2**30:.2f} GiB"
            )
            if fitting < min(rollout.max_branches, answers):
                self.console.warn(
                    f"stage {stage}: memory holds {fitting} answers at one time, not the {rollout.max_branches} of "
                    "rollout.max_branches; the others wait, so sampling is slower"
                )
        return engine

    def _engine(self, rollout: Rollout) -> Generator:
        return self.engines.get(rollout.engine) or make_generator(self.policy, rollout)

    def weights_moved(self, version: int) -> None:
        """The policy has the weights after `version` steps of the run now."""
        self.version = version
        for engine in self.engines.values():
            engine.weights_moved(version)

    def close(self) -> None:
        """Let go of engines beside the model."""
        for engine in self.engines.values():
            engine.close()

    @property
    def evaluation_rollout(self) -> Rollout:
        """How every evaluation of the run samples: as the stage with the longest answers, so that all are alike."""
        return max((stage.rollout for stage in self.recipe.stage.values()), key=lambda r: r.max_new_tokens)

    def measure(self, *, stage: str, step: int, global_step: int) -> list[dict[str, Any]]:
        """Answer every task's held-out problems with the policy as it is: one record a task, shown but not written."""
        records = []
        for label, problems in self.problems.held_out.items():
            where = {"stage": stage, "step": step, "global_step": global_step, "task": label}
            record = where | measure(
                self.policy,
                problems,
                {label: self.problems.scorers[label]},
                self.problems.tasks[label],
                self.recipe.evaluation,
                self.evaluation_rollout,
                generator=self._engine(self.evaluation_rollout),
                split=self.problems.splits[label],
                seed=self.recipe.run.seed,
                console=self.console,
            )
            self.console.evaluation(record)
            records.append(record)
        return records

    def record(self, records: Sequence[Mapping[str, Any]], at: str) -> None:
        """Write the records of one evaluation together, with what it was for: before, during or after a stage."""
        for record in records:
            self.files.evaluation({**record, "at": at})
            self.trackers.evaluation(record)

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
    require(recipe.run.trackers)
    if any(stage.optimizer.moments == "8-bit" for stage in recipe.stage.values()):
        bitsandbytes("optimizer.moments = '8-bit'")
    # The data first: a wrong path or column shows at once, a model takes a while to load.
    problems = load_problems(recipe, console)
    recipe = with_steps(recipe, sum(map(len, problems.train.values())))
    policy = load_policy(recipe)
    _fit(problems, policy, recipe, console)
    _check_curricula(problems, recipe)
    pairs = {name: _stage_pairs(name, stage, policy, recipe, console) for name, stage in recipe.stage.items()}
    engines = open_engines(recipe, policy, longest_prompt=problems.longest_prompt)
    files = RunFiles(folder)
    console.log_to(folder / "run.log")
    pairs = {name: found for name, found in pairs.items() if found}
    return Session(recipe, policy, problems, files, console, pairs, engines=engines)


def load_policy(recipe: Recipe) -> Policy:
    """The model with its adapters, as it is before the first stage."""
    settings = recipe.model
    policy = load(
        settings.path,
        revision=settings.revision,
        dtype=settings.dtype,
        device=settings.device,
        trust_remote_code=settings.trust_remote_code,
        quantization=settings.quantization,
        gradient_checkpointing=settings.gradient_checkpointing,
        offload_activations=settings.offload_activations,
    )
    require_trainable(policy.model)
    if settings.lora_rank:
        add_lora(policy.model, rank=settings.lora_rank, alpha=settings.lora_alpha, seed=recipe.run.seed)
    return policy


def load_problems(recipe: Recipe, console: Console) -> Problems:
    """Every task of the recipe, cleaned; no task's held-out question is trained on by any task.

    Raises:
        DataError: nothing to train or to evaluate on, golds that cannot be read, an sft stage without solutions.
    """
    longest = max(stage.rollout.max_new_tokens for stage in recipe.stage.values())
    problems = Problems()
    found: dict[str, TaskData] = {}
    for settings in recipe.tasks:
        label = settings.name
        while label in problems.tasks:
            label = f"{settings.name}-{len(problems.tasks) + 1}"
        found[label] = load_task(
            **settings.source, held_out=recipe.evaluation.problems, seed=recipe.run.seed, same=equal
        )
        problems.tasks[label] = settings
        problems.splits[label] = found[label].split
        problems.scorers[label] = scorer_of(settings, longest=longest, warn=console.warn)
    if any(map(runs_programs, recipe.tasks)):
        console.note("answers are run as programs; walls: " + "; ".join(walls().lines()), always=True)
    held_out = [problem for data in found.values() for problem in data.held_out.problems]
    for label, data in found.items():
        if not data.held_out.problems:
            raise DataError(
                f"task {label!r} has no problem left to be held out for evaluation; give more problems, a test split "
                "(--task.eval-split) or hold out fewer (--evaluation.problems)"
            )
        settings = problems.tasks[label]
        train = checked(label, without_questions(data.train, held_out), settings, solutions=True)
        if not train.problems:
            raise DataError(f"task {label!r}: every training problem is held out for evaluation by some task")
        problems.train[label] = _labelled(train, label)
        measured = checked(label, data.held_out, settings, solutions=False)
        problems.held_out[label] = _labelled(measured, label)
        for what, members in (("to train on", train), (f"held out ({data.split})", measured)):
            console.note(f"task {label}, {what}: {summary(members)}")
        near = without_near(train, measured.problems).dropped.get(NEAR, 0) - train.dropped.get(NEAR, 0)
        if near:
            console.warn(
                f"task {label}: {near} training problems share a long run of words with a held-out one; they are kept, "
                "`peerwise data check` lists them"
            )
        try_reward(label, problems.train[label], settings, longest=longest, warn=console.warn)
    _check_solutions(problems, recipe)
    return problems


def _labelled(problems: ProblemSet, label: str) -> tuple[Problem, ...]:
    return tuple(p if p.task == label else replace(p, task=label) for p in problems.problems)


def _check_solutions(problems: Problems, recipe: Recipe) -> None:
    """Refuse an sft stage that would have nothing to imitate."""
    stages = [name for name, s in recipe.stage.items() if s.method == "sft" and s.sft.source == "solutions"]
    if stages and not any(p.solution for members in problems.train.values() for p in members):
        raise DataError(
            f"stage {stages[0]!r} is sft, which needs worked solutions, and no training problem has one; map the "
            "column that holds them (--task.columns solution=NAME) or leave the stage out"
        )


def _check_curricula(problems: Problems, recipe: Recipe) -> None:
    """Refuse a curriculum by something that the data does not say of every problem."""
    members = [problem for of_task in problems.train.values() for problem in of_task]
    for stage in recipe.stage.values():
        if samples(stage):
            curriculum(stage.curriculum, members, steps=stage.steps, seed=0)


def _stage_pairs(name: str, stage: Stage, policy: Policy, recipe: Recipe, console: Console) -> tuple[Pair, ...]:
    """The pairs that a stage learns from, those that do not fit left out and counted; none where it reads no file."""
    if stage.method != "dpo" or stage.dpo.pairs is None:
        return ()
    rollout = stage.rollout
    pairs, dropped = load_pairs(stage.dpo.pairs, prompts.get(recipe.task.template), encoding=recipe.task.encoding)
    kept, longest = [], 0
    for pair in pairs:
        prompt = len(policy.prompt_ids(pair.messages))
        answer = max(len(policy.answer_ids(text)) for text in (pair.chosen, pair.rejected))
        if prompt <= rollout.max_prompt_tokens and answer <= rollout.max_new_tokens:
            kept.append(pair)
            longest = max(longest, prompt + answer)
    limits = f"over {rollout.max_prompt_tokens} tokens of prompt or {rollout.max_new_tokens} of answer"
    counts = {**dropped, limits: len(pairs) - len(kept)}
    left_out = ", ".join(f"{count} {reason}" for reason, count in counts.items() if count)
    if not kept:
        raise DataError(
            f"dpo.pairs: {stage.dpo.pairs} has no pair that fits ({left_out}); raise the limits in [rollout]"
        )
    if policy.context and longest > policy.context:
        raise RecipeError(
            f"dpo.pairs: prompt and answer of up to {longest} tokens exceed the model's context of {policy.context}; "
            "lower rollout.max_prompt_tokens or rollout.max_new_tokens"
        )
    console.note(
        f"stage {name}: {len(kept)} pairs of {stage.dpo.pairs}" + (f"; left out: {left_out}" if left_out else "")
    )
    return tuple(kept)


def _fit(problems: Problems, policy: Policy, recipe: Recipe, console: Console) -> None:
    """Leave out over-long prompts, counted, and refuse answers that the model's context cannot hold."""
    rollouts = [stage.rollout for stage in recipe.stage.values()]
    limit = min(rollout.max_prompt_tokens for rollout in rollouts)
    longest = 0
    for name, split in (("train", problems.train), ("held out", problems.held_out)):
        for label, members in split.items():
            lengths = {problem.id: len(policy.prompt_ids(problem.messages)) for problem in members}
            kept = drop_overlong(ProblemSet(problems=members), _looked_up(lengths), limit)
            for reason, count in kept.dropped.items():
                console.note(f"task {label}, {name}: left out {count} problems: {reason}")
            split[label] = kept.problems
            longest = max([longest, *(lengths[problem.id] for problem in kept.problems)])
    problems.longest_prompt = longest
    answers = max([rollout.max_new_tokens for rollout in rollouts] + [recipe.evaluation.max_new_tokens or 0])
    if policy.context and longest + answers > policy.context:
        raise RecipeError(
            f"prompts of up to {longest} tokens and answers of up to {answers} exceed the model's context of "
            f"{policy.context}; lower rollout.max_prompt_tokens or rollout.max_new_tokens"
        )


def _looked_up(lengths: Mapping[str, int]) -> Callable[[Problem], int]:
    return lambda problem: lengths[problem.id]
