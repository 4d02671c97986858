"""What another process writes to a run folder, told to a console as the run itself would tell it.

Reads the files that `write` appends to and the warnings in run.log, and nothing else: no model, no recipe. Rows that
are not what they should be are passed over and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from peerwise.metrics.board import Planned
from peerwise.metrics.console import Console
from peerwise.metrics.follow import Follow
from peerwise.metrics.sample import Sample, of_row
from peerwise.metrics.write import EVALS_FILE, METRICS_FILE, ROLLOUTS_FILE

SAMPLES_OF_A_STEP = 2
WARNING = " warning: "

Row = Mapping[str, Any]
Event = tuple[int, int, Callable[[], None]]
"""(global step, place within it, what is told)."""


class Replay:
    """A run's folder as it grows. `samples_every` is the run's own setting."""

    def __init__(self, folder: Path, stages: Mapping[str, Planned], samples_every: int, console: Console) -> None:
        self.stages, self.samples_every, self.console = stages, samples_every, console
        self.steps, self.evaluations = Follow(folder / METRICS_FILE), Follow(folder / EVALS_FILE)
        self.groups, self.log = Follow(folder / ROLLOUTS_FILE), Follow(folder / "run.log")
        self.milestones: list[dict[str, Any]] = []
        """Records of evaluations before the first stage and after each."""
        self.passed_over: Counter[str] = Counter()
        """Rows that could not be used, by file."""
        self.stage = ""

    def tell(self) -> bool:
        """Tell what is new, in the order it happened; whether the run's last stage is over."""
        # Within a step its figures come first, then its answers, then the evaluation after it. They are read the other
        # way round, so that nothing is seen without what was written before it.
        events = [*self._evaluations(), *self._samples(), *self._steps()]
        for _, _, told in sorted(events, key=lambda event: event[:2]):
            told()
        for line in self.log.lines():
            # Only a line of ours has a time at its start; those of an answer are indented.
            _, mark, text = line.partition(WARNING)
            if mark and line[:4].isdigit():
                self.console.warn(text)
        last = list(self.stages)[-1]
        return any(row["at"] == "after" and row["stage"] == last for row in self.milestones)

    def _steps(self) -> Iterator[Event]:
        for row in self._usable(self.steps, METRICS_FILE):
            yield row["global_step"], 0, partial(self._step, row)

    def _samples(self) -> Iterator[Event]:
        shown: dict[int, list[Sample]] = {}
        for row in self._usable(self.groups, ROLLOUTS_FILE):
            found = shown.setdefault(row["global_step"], [])
            if not self.samples_every or row["step"] % self.samples_every or len(found) == SAMPLES_OF_A_STEP:
                continue
            sample = of_row(row)
            if sample is None:
                self.passed_over[ROLLOUTS_FILE] += 1
            else:
                found.append(sample)
        for at, found in shown.items():
            if found:
                yield at, 1, partial(self.console.samples, found)

    def _evaluations(self) -> Iterator[Event]:
        for row in self._usable(self.evaluations, EVALS_FILE):
            if _is_record(row):
                yield row["global_step"], 2, partial(self._evaluation, row)
            else:
                self.passed_over[EVALS_FILE] += 1

    def _usable(self, follow: Follow, name: str) -> Iterator[dict[str, Any]]:
        """New rows that say where they belong."""
        for row in follow.rows():
            if isinstance(row.get("stage"), str) and all(type(row.get(key)) is int for key in ("step", "global_step")):
                yield row
            else:
                self.passed_over[name] += 1

    def _step(self, row: Row) -> None:
        name = row["stage"]
        planned = self.stages.get(name) or Planned(name, "?", row["step"])
        if name != self.stage:
            self.console.stage(*planned)
        self.stage = name
        values = {key: value for key, value in row.items() if isinstance(value, int | float)}
        self.console.step(name, row["step"], planned.steps, values)

    def _evaluation(self, row: dict[str, Any]) -> None:
        self.console.evaluation(row)
        if row["at"] in ("before", "after"):
            self.milestones.append(row)


def _is_record(row: Row) -> bool:
    """Whether a row has the figures of an evaluation, as numbers."""
    interval = row.get("interval")
    return (
        isinstance(row.get("at"), str)
        and _number(row.get("accuracy"))
        and isinstance(interval, list)
        and len(interval) == 2
        and all(map(_number, interval))
        and all(_number(row[key]) for key in ("mean_tokens", "truncated", "reward") if row.get(key) is not None)
        and (row.get("n") is None or type(row["n"]) is int)
    )


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
