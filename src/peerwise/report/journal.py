"""What run.log tells: when the run worked and on what, whether it came to its end, and the warnings it gave.

A line of the log is `YYYY-MM-DD HH:MM:SS text`; what a model wrote is on lines that `metrics.console` indents, so no
answer can pass for a warning. Knows nothing of the numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

_SUBJECTS = (
    ("truncated:", "truncation"),
    ("constant-part:", "reward"),
    ("flat:", "reward"),
    ("form-only:", "accuracy"),
    ("reward-hacking:", "reward"),
    ("entropy-collapse:", "entropy"),
    ("mismatch:", "mismatch"),
    ("memory:", "memory"),
    ("stragglers:", "length"),
    ("length-", "length"),
    ("unread:", "unread"),
    ("uninformative:", "groups"),
    ("duplicates:", "groups"),
    ("divergence:", "kl"),
    ("clipped:", "clip"),
    ("cut off", "truncation"),
    ("sampler and trainer", "mismatch"),
    ("no group of the last", "groups"),
    ("not finite", "gradient"),
    ("reward", "reward"),
    ("memory", "memory"),
    ("entropy", "entropy"),
    ("kl_", "kl"),
)
"""Words of a warning -> the chart that shows what it is about; the first that fits."""


@dataclass(slots=True)
class Warned:
    """One warning, how often it came up and the chart it is about."""

    text: str
    times: int = 1
    chart: str | None = None


@dataclass(slots=True)
class Journal:
    """The log in short; None where it does not say."""

    began: datetime | None = None
    last: datetime | None = None
    machine: str | None = None
    """Device, threads and processor, in the log's words."""
    model: str | None = None
    finished: bool = False
    warnings: list[Warned] = field(default_factory=list)


def read_journal(log: str) -> Journal:
    """The run's own account of itself; lines that are not the log's are passed over."""
    journal = Journal()
    warned: dict[str, Warned] = {}
    for when, text in _entries(log):
        journal.began, journal.last = journal.began or when, when
        if " on " in text and "; run folder " in text:
            # Every process that works on the run begins with this line, so an earlier end was not the last one.
            journal.model, _, journal.machine = text.partition("; run folder ")[0].rpartition(" on ")
            journal.finished = False
        journal.finished = journal.finished or text.startswith("finished;")
        _take_warning(text, warned)
    journal.warnings = list(warned.values())
    return journal


def _take_warning(text: str, warned: dict[str, Warned]) -> None:
    if text.startswith("warning: "):
        words = text.removeprefix("warning: ")
        warned.setdefault(words, Warned(words, chart=_chart_of(words)))
    elif text.startswith("warning, "):
        count, _, words = text.removeprefix("warning, ").partition(" times: ")
        if words in warned and count.isascii() and count.isdigit():
            warned[words].times = int(count)


def _entries(log: str) -> Iterator[tuple[datetime, str]]:
    for line in log.split("\n"):
        try:
            when = datetime.strptime(line[:19], "%Y-%m-%d %H:%M:%S")
        except ValueError:
            continue
        yield when, line[20:]


def _chart_of(warning: str) -> str | None:
    return next((chart for words, chart in _SUBJECTS if words in warning), None)
