"""A user's own reward function, loaded from path/to/file.py:function.

The file is the user's and is run as such; nothing a model wrote is ever run here.
"""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from peerwise.errors import RequestError, RewardError
from peerwise.records import Completion, Problem, Score
from peerwise.rewards.math import judge

HOW = "expected path/to/file.py:function with f(problem, completion) -> float, dict of parts or None"


def load(reward: str, *, last_number: bool = True) -> Callable[[Problem, Completion], Score]:
    """The scorer around the user's function.

    A float is the total; a dict is its parts, the total their sum without those that are None; None abstains, which is
    a total of 0. `correct` is the ordinary judge's, or whether the part "correct" is at least 1 where the dict has one.

    Raises RequestError when the file or function cannot be loaded; the scorer raises RewardError when the function
    raises or returns something else.
    """
    function = _import(reward)

    def own(problem: Problem, completion: Completion) -> Score:
        try:
            value = function(problem, completion)
        except Exception as error:
            raise RewardError(
                f"reward {reward} raised {type(error).__name__} on problem {problem.id}: {error}"
            ) from error
        return _score(reward, value, problem, completion, last_number)

    return own


def _import(reward: str) -> Callable[[Problem, Completion], object]:
    path, _, name = reward.rpartition(":")
    if not Path(path).is_file():
        raise RequestError(f"reward {reward!r}: there is no file {path!r}; {HOW}")
    spec = importlib.util.spec_from_file_location(f"peerwise_reward_{Path(path).stem}", path)
    if spec is None or spec.loader is None:
        raise RequestError(f"reward {reward!r}: {path!r} is not a Python file; {HOW}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their own module up
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise RequestError(f"reward {reward!r}: {path} failed to import: {type(error).__name__}: {error}") from error
    function: Any = getattr(module, name, None)
    if not callable(function):
        raise RequestError(f"reward {reward!r}: {path} has no function {name!r}; {HOW}")
    return function  # type: ignore[no-any-return]


def _score(reward: str, value: object, problem: Problem, completion: Completion, last_number: bool) -> Score:
    correct, extracted = judge(completion.text, problem.answer, last_number=last_number)
    parts = value if isinstance(value, Mapping) else {reward.rpartition(":")[2]: value}
    named = {str(part): _number(reward, problem, str(part), number) for part, number in parts.items()}
    if "correct" in named:
        correct = (named["correct"] or 0.0) >= 1.0
    total = sum(number for number in named.values() if number is not None)
    return Score(total=float(total), correct=correct, parts=named, extracted=extracted)


def _number(reward: str, problem: Problem, part: str, value: Any) -> float | None:
    """`value` as a finite float, None as it is; numpy and torch scalars count as numbers, text does not."""
    if value is None:
        return None
    try:
        number = math.nan if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError, RuntimeError):
        number = math.nan
    if not math.isfinite(number):
        raise RewardError(
            f"reward {reward} returned {value!r} for {part!r} on problem {problem.id}, expected a finite number"
        )
    return number
