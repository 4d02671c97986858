"""Expressions that need algebra, put to a pool of worker processes under a hard deadline.

Usable from any thread. Counts what ran out of time and what failed; says the first of each kind aloud. Knows nothing
of forms, units or words.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Literal

from peerwise.rewards.policy import Policy
from peerwise.sandbox.pool import DeadlineExceeded, Pool, WorkerFailed

DEADLINE_S = 2.0
"""For one sample, all its parts together. Starting a worker and importing sympy is not counted."""
WORKERS = 2
Trouble = Literal["timeout", "failure"]

_log = logging.getLogger(__name__)
_counts: Counter[Trouble] = Counter()
_counting = threading.Lock()


@dataclass(slots=True)
class Allowance:
    """What one comparison may still spend, under which policy, and whether it ran out."""

    policy: Policy
    end: float = field(default_factory=lambda: time.monotonic() + DEADLINE_S)
    ran_out: bool = False


def timeouts() -> int:
    """Comparisons of this process that ran out of time, their worker killed, and so counted as different."""
    return _counts["timeout"]


def failures() -> int:
    """Comparisons of this process whose worker raised or died, and so counted as different."""
    return _counts["failure"]


def same_expression(one: str, other: str, allowance: Allowance, tolerance: float) -> bool:
    """Whether two plain texts are the same expression; running out of time or failing to compare is "different"."""
    seconds = allowance.end - time.monotonic()
    if allowance.ran_out or seconds <= 0:
        allowance.ran_out = True
        return False
    first, second = sorted((one, other))  # the same question whichever way round it is asked
    policy = allowance.policy
    switches = (tolerance, policy.any_form, policy.log_is_natural, policy.renamed_constants)
    try:
        return _ask((first, second, *switches), _Seconds(seconds))
    except DeadlineExceeded as error:
        allowance.ran_out = True
        _note("timeout", one, other, error)
    except WorkerFailed as error:
        _note("failure", one, other, error)
    return False


class _Seconds(float):
    """A number of seconds that is no part of a cache's key: all are equal."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Seconds)

    def __hash__(self) -> int:
        return 0


@cache
def _workers() -> Pool:
    return Pool(WORKERS)


@lru_cache(maxsize=4096)
def _ask(question: tuple[str, str, float, bool, bool, bool], seconds: _Seconds) -> bool:
    return bool(_workers().run("peerwise.rewards.symbolic:same", question, float(seconds)))


def _note(trouble: Trouble, one: str, other: str, error: Exception) -> None:
    with _counting:
        _counts[trouble] += 1
        level = logging.WARNING if _counts[trouble] == 1 else logging.DEBUG
    _log.log(level, "counted as different: %.80r and %.80r (%s)", one, other, error)
