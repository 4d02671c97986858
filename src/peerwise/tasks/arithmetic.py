"""Step-wise arithmetic with worked solutions, made as needed: chains such as 12 + 7 - 4 + 9, one line a step.

Problem i is a pure function of (seed, split, i), the same in every process. Knows nothing of files.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from itertools import islice

from peerwise.errors import RequestError
from peerwise.records import Problem
from peerwise.tasks.prompts import Template
from peerwise.tasks.source import Pool, ProblemSet, Request
from peerwise.tasks.splits import MOST_HELD_OUT, question_key

LARGEST_FACTOR = 10
LARGEST_PRODUCT = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Chains:
    """What chains are drawn from.

    Example:
        Chains(min_ops=2, max_ops=4, max_number=20, operators="+-")
    """

    min_ops: int = 2
    """Fewest operations of a chain, 1 or more."""
    max_ops: int = 4
    """Most operations of a chain, at most 50; uniform between the two."""
    max_number: int = 20
    """Operands are 1 to this."""
    operators: str = "+-"
    """Which of + - * occur; + always does. Factors stay within 10 and products within 1000."""
    size: int = 20000
    """How many training problems are drawn, before duplicates are dropped."""


@dataclass(frozen=True, slots=True)
class Chain:
    """One chain: its text, its steps "a + b = c" and its value."""

    question: str
    steps: tuple[str, ...]
    value: int


def load(request: Request) -> Pool:
    """Draw `size` training problems and the wanted number of distinct held-out ones.

    Raises RequestError for a parameter that is unknown or out of range.
    """
    chains = _parse(request)
    wanted = MOST_HELD_OUT if request.held_out is None else request.held_out
    train = (problem(chains, request, request.split, i) for i in range(chains.size))
    return Pool(
        train=ProblemSet(problems=tuple(train)),
        test=ProblemSet(problems=tuple(islice(_distinct(chains, request, tries=20 * wanted), wanted))),
    )


def problem(chains: Chains, request: Request, split: str, index: int) -> Problem:
    """Problem `index` of `split`."""
    chain = draw(chains, random.Random(f"{request.seed}/{split}/{index}"))
    template: Template = request.template
    return Problem(
        id=f"arithmetic[{chains.min_ops}-{chains.max_ops} {chains.operators} {chains.max_number}]/{split}/{index}",
        task="arithmetic",
        messages=template.ask(chain.question),
        answer=str(chain.value),
        solution="\n".join((*chain.steps, template.state(str(chain.value)))),
        meta={"operations": len(chain.steps)},
    )


def draw(chains: Chains, rng: random.Random) -> Chain:
    """One chain; read with ordinary precedence its text has the value that its steps reach from left to right."""
    value = rng.randint(1, chains.max_number)
    text, is_sum, steps = str(value), False, []
    for _ in range(rng.randint(chains.min_ops, chains.max_ops)):
        operator, operand = _draw_step(chains, rng, value)
        if operator == "*" and is_sum:
            text = f"({text})"
        is_sum = operator != "*"
        text = f"{text} {operator} {operand}"
        result = {"+": value + operand, "-": value - operand, "*": value * operand}[operator]
        steps.append(f"{value} {operator} {operand} = {result}")
        value = result
    return Chain(text, tuple(steps), value)


def _draw_step(chains: Chains, rng: random.Random, value: int) -> tuple[str, int]:
    """An operator and an operand that keep the running value at 0 or more and products within bounds."""
    largest = {
        "+": chains.max_number,
        "-": min(chains.max_number, value),
        "*": min(chains.max_number, LARGEST_FACTOR, LARGEST_PRODUCT // max(value, 1)),
    }
    operator = rng.choice([op for op in chains.operators if largest[op] >= 1])
    return operator, rng.randint(1, largest[operator])


def _distinct(chains: Chains, request: Request, tries: int) -> Iterator[Problem]:
    seen: set[str] = set()
    for index in range(tries):
        candidate = problem(chains, request, request.eval_split or "test", index)
        if question_key(candidate) not in seen:
            seen.add(question_key(candidate))
            yield candidate


def _parse(request: Request) -> Chains:
    try:
        chains = Chains(**request.params)
    except TypeError:
        unknown = sorted(set(request.params) - {f.name for f in fields(Chains)})
        raise RequestError(f"arithmetic has no parameter {', '.join(map(repr, unknown))}; {_known()}") from None
    for name in ("min_ops", "max_ops", "max_number", "size"):
        value = getattr(chains, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise RequestError(f"arithmetic: {name} = {value!r} is not a whole number of 1 or more; {_known()}")
    if not chains.min_ops <= chains.max_ops <= 50:
        raise RequestError(
            f"arithmetic: min_ops = {chains.min_ops}, max_ops = {chains.max_ops} is no range within 1 to 50; {_known()}"
        )
    _check_operators(chains.operators)
    return chains


def _check_operators(operators: object) -> None:
    if not isinstance(operators, str) or "+" not in operators or len(set(operators) & set("+-*")) != len(operators):
        raise RequestError(f"arithmetic: operators = {operators!r}, expected '+' with '-' and '*' added; {_known()}")


def _known() -> str:
    defaults = ", ".join(f"{name} = {value!r}" for name, value in asdict(Chains()).items())
    return f"parameters and defaults: {defaults}"
