"""One evaluation: answers to held-out problems, judged, and summed up in a record that stands by itself.

The record is what evals.jsonl holds and what people quote, so it carries all that is needed to get it again:
task, split, number of problems, samples, temperature, template, limits, seed, version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from peerwise import __version__
from peerwise.evaluate.estimate import maj_at_k, mean_interval, pass_at_k, wilson
from peerwise.metrics.console import Console
from peerwise.models.load import Policy
from peerwise.recipe.schema import Evaluation, Rollout, Task
from peerwise.records import Completion, Group, Message, Problem
from peerwise.rewards.equal import equal
from peerwise.rewards.rubric import Scorer, score_groups
from peerwise.rollout.base import Generator, Progress, Request, SamplingParams, sample_key
from peerwise.rollout.native.engine import NativeEngine
from peerwise.rollout.transformers import TransformersGenerator

EXAMPLES = 3
"""Problems whose first answers a record keeps, the first ones."""


def answer(
    generator: Generator,
    problems: Sequence[Problem],
    scorer_for: Mapping[str, Scorer],
    prompt_ids: Callable[[Sequence[Message]], tuple[int, ...]],
    params: SamplingParams,
    *,
    samples: int = 1,
    seed: int = 0,
    progress: Progress | None = None,
) -> list[Group]:
    """Draw `samples` answers to each problem and score them. The same seed draws the same answers."""
    requests = [
        Request(
            prompt_ids=prompt_ids(problem.messages),
            keys=tuple(sample_key(seed, -1, problem.id, index) for index in range(samples)),
        )
        for problem in problems
    ]
    answers: list[tuple[Completion, ...]] = generator.generate(requests, params, progress)
    scores = score_groups(scorer_for, problems, answers)
    return [
        Group(problem=problem, prompt_ids=request.prompt_ids, completions=completions, scores=of_group)
        for problem, request, completions, of_group in zip(problems, requests, answers, scores, strict=True)
    ]


def summarise(groups: Sequence[Group]) -> dict[str, Any]:
    """What was measured over the groups, all of the same size K.

    accuracy: share of right answers, with a 95 % interval: Wilson for one answer a problem, bootstrap over problems
    for several. pass@k and maj@k for K > 1. `right` holds the number of right answers by problem, in order, so that
    two evaluations of the same problems can be compared in pairs.
    """
    samples = len(groups[0].completions)
    right = [sum(score.correct for score in group.scores) for group in groups]
    completions = [completion for group in groups for completion in group.completions]
    scores = [score for group in groups for score in group.scores]
    judged = [score for score in scores if score.failed is None]
    record: dict[str, Any] = {"n": len(groups), "samples": samples}
    if samples == 1:
        record["accuracy"], record["interval"] = sum(right) / len(groups), list(wilson(sum(right), len(groups)))
    else:
        record["accuracy"], *record["interval"] = mean_interval([count / samples for count in right])
        record["pass_at_k"] = {k: _with_interval([pass_at_k(samples, c, k) for c in right]) for k in _ks(samples)}
        record["maj_at_k"] = {samples: _with_interval([_majority(group) for group in groups])}
    return record | {
        "mean_tokens": sum(len(c.token_ids) for c in completions) / len(completions),
        "reward": sum(score.total for score in judged) / max(1, len(judged)),
        "failed": (len(scores) - len(judged)) / len(scores),
        "truncated": sum(c.finish == "length" for c in completions) / len(completions),
        "unread": sum(score.extracted is None for score in scores) / len(scores),
        "right": right,
        "examples": [example(group) for group in groups[:EXAMPLES]],
    }


def measure(
    policy: Policy,
    problems: Sequence[Problem],
    scorer_for: Mapping[str, Scorer],
    task: Task,
    settings: Evaluation,
    rollout: Rollout,
    *,
    generator: Generator,
    split: str,
    seed: int,
    console: Console,
) -> dict[str, Any]:
    """`answer` and `summarise` as the settings say, and the record's own description of what was measured."""
    params = SamplingParams(
        max_new_tokens=settings.max_new_tokens or rollout.max_new_tokens,
        temperature=settings.temperature,
        top_p=settings.top_p,
        top_k=settings.top_k,
        min_p=settings.min_p,
        stop=tuple(rollout.stop),
    )
    groups = answer(
        generator,
        problems,
        scorer_for,
        policy.prompt_ids,
        params,
        samples=settings.samples,
        seed=seed,
        progress=lambda done, total: console.progress("evaluating", done, total),
    )
    return summarise(groups) | {
        "split": split,
        "settings": task.model_dump(exclude_defaults=True) | {"name": task.name, "template": task.template},
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k,
        "min_p": params.min_p,
        "max_new_tokens": params.max_new_tokens,
        "stop": list(params.stop),
        "engine": rollout.engine,
        "dtype": str(policy.model.dtype).removeprefix("torch."),
        "seed": seed,
        "version": __version__,
    }


def make_generator(policy: Policy, rollout: Rollout) -> Generator:
    """The engine that the settings name, on this policy's own model."""
    engines: dict[str, type[NativeEngine] | type[TransformersGenerator]] = {
        "native": NativeEngine,
        "transformers": TransformersGenerator,
    }
    engine = engines[rollout.engine]
    return engine(policy.model, decode=policy.decode, end_ids=policy.end_ids, max_branches=rollout.max_branches)


def example(group: Group) -> dict[str, Any]:
    """The first answer of a group as plain data, for showing."""
    completion, score = group.completions[0], group.scores[0]
    return {
        "problem": group.problem.id,
        "question": group.problem.messages[-1]["content"],
        "gold": group.problem.answer,
        "text": completion.text,
        "correct": score.correct,
        "reward": score.total,
        "extracted": score.extracted,
    }


def _majority(group: Group) -> float:
    """Share of the vote's winners that are right; answers that are equal (1,000 and 1000) vote as one."""
    candidates: list[str] = []
    votes: list[str | None] = []
    for score in group.scores:
        answer = score.extracted
        same = next((seen for seen in candidates if equal(answer, seen)), None)
        if same is None and answer is not None:
            candidates.append(answer)
        votes.append(same or answer)
    return maj_at_k(votes, [score.correct for score in group.scores])


def _with_interval(values: Sequence[float]) -> dict[str, Any]:
    mean, low, high = mean_interval(values)
    return {"value": mean, "interval": [low, high]}


def _ks(samples: int) -> list[int]:
    """1, 2, 4, .. and the number of samples itself."""
    ks = [1 << power for power in range(samples.bit_length()) if 1 << power < samples]
    return [*ks, samples]
