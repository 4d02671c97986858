"""A user's own reward: a Python function, or path/to/file.py:function, for one sample or a whole batch, sync or async.

The file is the user's and is run as such; nothing a model wrote is ever run here. How often it may fail is decided in
`failures`.
"""

from __future__ import annotations

import copy
import importlib.util
import inspect
import math
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from peerwise.errors import RequestError, nearest
from peerwise.records import Completion, Problem, Score
from peerwise.rewards.calls import Calls, Failed
from peerwise.rewards.failures import Failures
from peerwise.rewards.math import Judgement, grade


@dataclass(frozen=True, slots=True)
class _Given:
    """One sample and what is known of it before the function is called."""

    problem: Problem
    completion: Completion
    judgement: Judgement


Parts = dict[str, float | None]

_ONE: dict[str, Callable[[_Given], object]] = {
    "problem": lambda given: copy.deepcopy(given.problem),
    "completion": lambda given: given.completion,
    "question": lambda given: given.problem.messages[-1]["content"] if given.problem.messages else "",
    "text": lambda given: given.completion.text,
    "answer": lambda given: given.problem.answer,
    "meta": lambda given: copy.deepcopy(given.problem.meta),
}
"""Name of a parameter -> what it is given, in a function of one sample; with an s, in a function of a batch.

What could be changed is a copy: the other samples and the records of the run are none of the function's business.
"""
_EITHER: dict[str, Callable[[_Given], object]] = {
    "tokens": lambda given: given.completion.token_ids,
    "correct": lambda given: given.judgement.right,
}
"""Parameters that are called the same in both: one value, or a list of them."""
_MANY = {f"{name}s": value for name, value in _ONE.items()}
STEP = "step"
HOW = (
    f"a function of one sample takes any of {', '.join(_ONE)}; one of a batch any of {', '.join(_MANY)} and returns a "
    f"list; both may take {', '.join(_EITHER)} and {STEP}"
)


def load(
    reward: str | Callable[..., Any],
    *,
    last_number: bool,
    timeout_s: float,
    most_failures: float,
    warn: Callable[[str], object],
) -> Own:
    """The scorer around a user's function; the arguments are those of `Own`.

    Raises RequestError when the file or function cannot be loaded or its parameters are not known.
    """
    function = _import(reward) if isinstance(reward, str) else reward
    name = reward if isinstance(reward, str) else getattr(reward, "__name__", type(reward).__name__)
    return Own(
        function, name=name, last_number=last_number, timeout_s=timeout_s, most_failures=most_failures, warn=warn
    )


class Own:
    """The scorer around a user's function.

    For each sample the function returns a number, a dict of parts or None; a function of a batch returns a list of
    these. A number is the total; of a dict the total is the sum of its parts without those that are None; None
    abstains, which is a total of 0. `correct` is the ordinary judge's, or whether the part "correct" is at least 1.

    An exception, an overrun, a list of another length, something that is not a number and a number that is not finite
    are one thing: the sample (with a batch, each of its samples) is marked failed and counted.

    Args:
        timeout_s: seconds that one call may take.
        most_failures: share of the latest samples that may fail before RewardError is raised.
        warn: is given the first failure's traceback.
    """

    best: Mapping[str, float] = {}
    paid: frozenset[str] | None = None

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str,
        last_number: bool,
        timeout_s: float,
        most_failures: float,
        warn: Callable[[str], object],
    ) -> None:
        self.name = name
        self.failures = Failures(name, most=most_failures, warn=warn)
        self._last_number = last_number
        self._part = name.rpartition(":")[2]
        self._wanted, self._takes_batch = _parameters(function, name)
        self._calls = Calls(function, timeout_s)

    def __call__(self, samples: Sequence[tuple[Problem, Completion]], *, step: int = 0) -> list[Score]:
        """One score for each sample, in their order. Raises RewardError when too many failed."""
        givens = [_Given(p, c, grade(c.text, p.answer, last_number=self._last_number)) for p, c in samples]
        self.failures.begin(len(givens))
        returned = self._returned(givens, step) if givens else []
        return [self._score(given, value) for given, value in zip(givens, returned, strict=True)]

    def _returned(self, givens: Sequence[_Given], step: int) -> Iterable[Parts | Failed]:
        """What the function says of each sample, or Failed."""
        read = partial(_parts, name=self._part)
        if not self._takes_batch:
            return self._calls.results([self._arguments(_ONE | _EITHER, given, step) for given in givens], read)
        columns = _MANY | _EITHER
        batch = {name: [columns[name](given) for given in givens] for name in self._wanted if name != STEP}
        batch |= {STEP: step} if STEP in self._wanted else {}  # type: ignore[dict-item]
        (found,) = self._calls.results([batch], partial(_one_each, count=len(givens), read=read))
        return [found] * len(givens) if isinstance(found, Failed) else found  # nothing is repeated or shifted

    def _arguments(
        self, values: Mapping[str, Callable[[_Given], object]], given: _Given, step: int
    ) -> dict[str, object]:
        return {name: step if name == STEP else values[name](given) for name in self._wanted}

    def _score(self, given: _Given, parts: Parts | Failed) -> Score:
        judged, answer = given.judgement, given.judgement.extraction.answer
        if isinstance(parts, Failed):
            self.failures.add(given.problem.id, parts)
            return Score(total=0.0, correct=judged.right, extracted=answer, rule=judged.rule, failed=parts.reason)
        own = "correct" in parts
        right = (parts["correct"] or 0.0) >= 1.0 if own else judged.right
        rule = f"{judged.extraction.rule}, own function" if own else judged.rule
        total = sum(number for number in parts.values() if number is not None)
        return Score(total=float(total), correct=right, parts=parts, extracted=answer, rule=rule)


def _one_each(value: object, *, count: int, read: Callable[[object], Parts | Failed]) -> list[Parts | Failed] | Failed:
    """The parts of each sample of a batch; Failed when it is no list of `count` values."""
    value = value.tolist() if hasattr(value, "tolist") else value  # numpy's and torch's arrays
    if not isinstance(value, list | tuple):
        return Failed("no list", f"TypeError: returned {_shown(value)}, expected a list of {count} values")
    values = list(value)
    if len(values) != count:
        detail = f"ValueError: returned {len(values)} values for {count} samples; expected one for each, in their order"
        return Failed("wrong length", detail)
    return [read(each) for each in values]


def _parts(value: object, *, name: str) -> Parts | Failed:
    parts: Parts = {}
    for part, number in (value if isinstance(value, Mapping) else {name: value}).items():
        parts[str(part)] = found = _number(number)
        if found is not None and not math.isfinite(found):
            return Failed("not finite", f"ValueError: returned {_shown(number)} for {part!r}, expected a finite number")
        if found is None and number is not None:
            hint = "; define the function itself with `async def`" if inspect.iscoroutine(number) else ""
            detail = f"TypeError: returned {_shown(number)} for {part!r}, expected a number or None{hint}"
            return Failed("no number", detail)
    if not math.isfinite(sum(number for number in parts.values() if number is not None)):
        return Failed("not finite", f"ValueError: the parts {_shown(value)} have no finite sum")
    return parts


def _number(value: Any) -> float | None:
    """`value` as a float where it is a number, numpy's and torch's scalars included; text is none."""
    try:
        return None if value is None or isinstance(value, str | bytes | bytearray) else float(value)
    except Exception:  # whatever a user's object raises, it is no number
        return None


def _shown(value: object) -> str:
    try:
        shown = repr(value)
    except Exception:
        shown = f"a {type(value).__name__}"
    return shown if len(shown) <= 80 else shown[:77] + "..."


def _parameters(function: Callable[..., Any], name: str) -> tuple[tuple[str, ...], bool]:
    """The parameters to be given by name, and whether the function takes a batch.

    A parameter with a default and an unknown name keeps its default; **kwargs gets all there is.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise RequestError(f"reward {name!r} is not a function whose parameters can be read; {HOW}") from None
    wanted = [p.name for p in parameters if p.name in {STEP, *_ONE, *_MANY, *_EITHER}]
    for parameter in parameters:
        variable = parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        required = parameter.default is parameter.empty and not variable
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise RequestError(
                f"reward {name!r}: its parameter {parameter.name!r} cannot be given by name; remove the /"
            )
        if parameter.name not in wanted and required:
            hint = nearest(parameter.name, {STEP, *_ONE, *_MANY, *_EITHER})
            hint = f"{hint} " if hint.startswith("did") else ""
            raise RequestError(f"reward {name!r}: no value is known for its parameter {parameter.name!r}; {hint}{HOW}")
    takes_batch = any(p in _MANY for p in wanted)
    if takes_batch and (single := [p for p in wanted if p in _ONE]):
        raise RequestError(f"reward {name!r} takes both one sample ({single[0]}) and a batch; {HOW}")
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        wanted = [*(_MANY if takes_batch else _ONE), *_EITHER, STEP]
    return tuple(wanted), takes_batch


def _import(reward: str) -> Callable[..., Any]:
    path, _, name = reward.rpartition(":")
    try:
        is_file = Path(path).is_file()
    except OSError as error:
        raise RequestError(f"reward {path[:200]!r}: the file cannot be read ({error.strerror or error})") from None
    if not is_file:
        raise RequestError(f"reward {reward!r}: there is no file {path!r}; expected path/to/file.py:function")
    spec = importlib.util.spec_from_file_location(f"peerwise_reward_{Path(path).stem}", path)
    if spec is None or spec.loader is None:
        raise RequestError(f"reward {reward!r}: {path!r} is not a Python file; expected path/to/file.py:function")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their own module up
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        lines = traceback.format_exception(type(error), error, _from_file(error.__traceback__, path))
        raise RequestError(f"reward {reward!r}: {path} failed to import:\n{''.join(lines).rstrip()}") from error
    function: Any = getattr(module, name, None)
    if not callable(function):
        functions = [n for n, value in vars(module).items() if inspect.isfunction(value)]
        raise RequestError(f"reward {reward!r}: {path} has no function {name!r}; {nearest(name, functions)}")
    return function  # type: ignore[no-any-return]


def _from_file(trace: TracebackType | None, path: str) -> TracebackType | None:
    """The part of a traceback that begins in the user's file; None when it never got there, as for a SyntaxError."""
    while trace is not None and trace.tb_frame.f_code.co_filename != path:
        trace = trace.tb_next
    return trace
