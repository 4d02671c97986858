"""Problems made by reasoning-gym: any of its data sets by name, with that data set's own parameters.

Sizes and seeds are ours. Answers are taken as text; `meta["entry"]` keeps what a data set's own scorer would need.
"""

from __future__ import annotations

import random
from dataclasses import fields
from typing import Any

from peerwise.errors import RequestError, nearest
from peerwise.records import Problem
from peerwise.tasks.source import Pool, ProblemSet, Request
from peerwise.tasks.splits import MOST_HELD_OUT

DEFAULT_SIZE = 1000
NO_TEXT = "answer is not text"


def load(request: Request) -> Pool:
    """`params.size` (1000) training problems and the wanted number of held-out ones, from different seeds.

    Raises RequestError for an unknown data set or parameter, or a value the data set refuses.
    """
    from reasoning_gym.factory import DATASETS

    params = dict(request.params)
    name, size = params.pop("dataset", None), params.pop("size", DEFAULT_SIZE)
    if not isinstance(name, str) or name not in DATASETS:
        raise RequestError(f"reasoning-gym: params.dataset = {name!r} is unknown; {nearest(str(name), DATASETS)}")
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise RequestError(f"reasoning-gym: params.size = {size!r} is not a whole number of 1 or more")
    known = {field.name for field in fields(DATASETS[name][1])} - {"seed", "size"}
    for key in params:
        if key not in known:
            raise RequestError(f"reasoning-gym {name}: unknown parameter {key!r}; {nearest(key, known)}")
    wanted = MOST_HELD_OUT if request.held_out is None else request.held_out
    return Pool(
        train=_make(request, name, params, request.split, size),
        test=_make(request, name, params, _evaluation(request), wanted),
    )


def _evaluation(request: Request) -> str:
    """The split the held-out problems are seeded by, another one than what is trained on."""
    asked = request.eval_split or "test"
    return asked if asked != request.split else f"{asked} held out"


def _make(request: Request, name: str, params: dict[str, Any], split: str, size: int) -> ProblemSet:
    import reasoning_gym

    seed = random.Random(f"{request.seed}/{split}").getrandbits(31)
    if not size:
        return ProblemSet(problems=())
    try:
        dataset = reasoning_gym.create_dataset(name, seed=seed, size=size, **params)
        entries = [dataset[i] for i in range(size)]
    except (AssertionError, TypeError, ValueError) as error:
        raise RequestError(f"reasoning-gym {name}: {params} was refused: {error}") from error
    tag = ",".join(f"{key}={params[key]}" for key in sorted(params))
    named = f"reasoning-gym/{name}[{tag}]/{split}" if tag else f"reasoning-gym/{name}/{split}"
    problems = tuple(
        _problem(request, name, entry, f"{named}/{i}")
        for i, entry in enumerate(entries)
        if isinstance(entry["answer"], str) and entry["answer"].strip()
    )
    lost = len(entries) - len(problems)
    return ProblemSet(problems=problems, dropped={NO_TEXT: lost} if lost else {})


def _problem(request: Request, name: str, entry: dict[str, Any], problem_id: str) -> Problem:
    return Problem(
        id=problem_id,
        task="reasoning-gym",
        messages=request.template.ask(entry["question"].strip()),
        answer=entry["answer"].strip(),
        meta={"dataset": name, "entry": entry},
    )
