"""The picture of a run on a terminal: stages with bars and time left, headline figures, the last samples, warnings.

It is told what happens and draws what it was told, in the width and height there are. Another thread may draw while it
is told, so every change puts a new value in the place of an old one and nothing is changed in place; there is no lock
that an interrupt could find taken. Knows nothing of files, and everything it shows is made harmless first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from rich.console import Console, ConsoleOptions
from rich.text import Text

from peerwise.metrics.draw import arrow, bar, sparkline, trend
from peerwise.metrics.sample import Sample
from peerwise.metrics.text import clip, duration, percent, printable

HELD_OUT = "held-out"
"""The key of held-out accuracy beside those of `names`."""
FIGURES_SHOWN = 6
STEPS_KEPT = 400
STAGES_AROUND = 1
"""Stages shown before and after the one that runs."""
QUIET_SECONDS = 30.0
"""Silence after which it is said how long nothing was heard."""
WARNINGS_SHOWN = 2
ROWS_OF_A_TEXT = 4
WIDEST_BAR, WIDEST_CURVE = 40, 60
NARROWEST_CURVE = 8

_STEP_TIME_DECAY = 0.9
_LABEL, _FIGURE = 18, 12


class Planned(NamedTuple):
    """A stage that a run will go through.

    Example:
        Planned("grpo", "grpo", 300)
    """

    name: str
    method: str
    steps: int


class Headline(NamedTuple):
    """A figure that a person follows: its key, how it is called and written, and which way is good (0: neither)."""

    key: str
    label: str
    form: Callable[[float], str]
    good: int


HEADLINES = (
    Headline(HELD_OUT, "held-out accuracy", percent, 1),
    Headline("reward/mean", "reward", "{:.3f}".format, 1),
    Headline("accuracy/sampled", "sampled accuracy", percent, 1),
    Headline("length/mean", "answer length", "{:.0f} tokens".format, 0),
    Headline("groups/informative", "informative groups", "{:.0%}".format, 0),
    Headline("entropy/mean", "entropy", "{:.3f} nats".format, 0),
    Headline("kl/mean", "divergence", "{:.4f} nats".format, 0),
    Headline("loss", "loss", "{:.4f}".format, -1),
    Headline("grad_norm", "gradient norm", "{:.2f}".format, 0),
    Headline("speed/trained_tokens_per_s", "training speed", "{:.0f} tok/s".format, 0),
    Headline("learning_rate", "learning rate", "{:.1e}".format, 0),
)
"""In order of rank; the first six that a stage has are shown."""


class Board:
    """What is known of a run, and its picture (a rich renderable). `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.title = ""
        self.planned: tuple[Planned, ...] = ()
        self.stage_name = ""
        self.step_now = 0
        self.pace = _Pace()
        self.values: Mapping[str, float] = {}
        self.history: Mapping[str, tuple[float, ...]] = {}
        self.accuracies: Mapping[str, float] = {}
        """The latest held-out accuracy of each task."""
        self.measured_at: object = None
        self.progress: tuple[str, int, int] | None = None
        self.samples: tuple[str, tuple[Sample, ...]] = ("", ())
        self.warnings: Mapping[str, int] = {}
        self.heard = clock()

    @property
    def accuracy(self) -> float | None:
        """Mean over tasks of the latest held-out accuracies; None before the first."""
        return sum(self.accuracies.values()) / len(self.accuracies) if self.accuracies else None

    def plan(self, title: str, stages: Sequence[Planned]) -> None:
        """What the run will go through."""
        self.title, self.planned = title, tuple(stages)

    def stage(self, name: str) -> None:
        """A stage begins; the estimate of time left and all curves but that of held-out accuracy start afresh."""
        self.stage_name, self.step_now, self.pace, self.values = name, 0, _Pace(), {}
        self.history = {HELD_OUT: self.history[HELD_OUT]} if HELD_OUT in self.history else {}
        self.heard = self._clock()

    def step(self, stage: str, step: int, values: Mapping[str, float]) -> None:
        """A step of a stage is done."""
        if stage != self.stage_name:
            self.stage(stage)
        self.pace = self.pace.with_step(values.get("time/step"))
        self.history = {**self.history, **{key: self._longer(key, value) for key, value in values.items()}}
        self.values, self.step_now, self.progress, self.heard = dict(values), step, None, self._clock()

    def evaluation(self, task: str, accuracy: float | None, at: object) -> None:
        """One task's accuracy; those of one moment `at` are one point of the curve."""
        if accuracy is None:
            return
        self.accuracies = {**self.accuracies, task: accuracy}
        past = self.history.get(HELD_OUT, ())
        past = past[:-1] if past and at == self.measured_at else past
        self.history = {**self.history, HELD_OUT: (*past[1 - STEPS_KEPT :], self.accuracy or 0.0)}
        self.measured_at, self.progress, self.heard = at, None, self._clock()

    def work(self, label: str, done: int, total: int) -> None:
        """How far a long piece of work inside a step is."""
        self.progress, self.heard = (None if done >= total else (label, done, total)), self._clock()

    def show(self, samples: Sequence[Sample]) -> None:
        """The answers to look at until the next ones."""
        self.samples = (f"{self.stage_name} {self.step_now}", tuple(samples))

    def warn(self, text: str) -> None:
        """A warning, once more."""
        self.warnings = {**self.warnings, text: self.warnings.get(text, 0) + 1}

    def left(self, steps: int) -> float | None:
        """Seconds for so many more steps of the stage; None before the first was timed."""
        return self.pace.left(steps)

    def headlines(self) -> list[Headline]:
        """The figures of the stage that rank first; one that has only repeated another is left out, and so is the loss
        where there is a reward, since under GRPO it is near 0 whatever happens."""
        hidden = set()
        if "reward/mean" in self.values:
            hidden.add("loss")
            if self.history["reward/mean"] == self.history.get("accuracy/sampled"):
                hidden.add("accuracy/sampled")
        known = {HELD_OUT, *self.values} if self.accuracies else {*self.values}
        return list(islice((h for h in HEADLINES if h.key in known - hidden), FIGURES_SHOWN))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        # A full line may wrap and a full screen scrolls: what was drawn could not be taken back.
        width, height = options.max_width - 1, options.size.height - 2
        fixed = [*self._head(), *self._stages(width, options.ascii_only), *self._figures(width, options.ascii_only)]
        warnings = list(self._warnings())
        room = height - len(fixed) - len(warnings)
        for line in [*fixed, *self._samples(room), *warnings][: max(1, height)]:
            line.rstrip()
            if options.ascii_only:
                # What the terminal cannot show is escaped before it is measured, since that makes it longer.
                line.plain = line.plain.encode("ascii", "backslashreplace").decode()
            line.truncate(width, overflow="crop" if options.ascii_only else "ellipsis")
            line.no_wrap = True
            yield line

    def _longer(self, key: str, value: float) -> tuple[float, ...]:
        return (*self.history.get(key, ())[1 - STEPS_KEPT :], value)

    def _head(self) -> Iterator[Text]:
        yield Text("")
        silence = self._clock() - self.heard
        words = [f"{self.values['time/step']:.2f} s/step"] if "time/step" in self.values else []
        if silence > QUIET_SECONDS:
            words.append(f"nothing new for {duration(silence)}")
        yield Text.assemble((_one_line(self.title), "bold"), "  " if words else "", (", ".join(words), "dim"))

    def _stages(self, width: int, ascii_only: bool) -> Iterator[Text]:
        names = [stage.name for stage in self.planned]
        here = names.index(self.stage_name) if self.stage_name in names else -1
        shown = range(max(0, here - STAGES_AROUND), min(len(names), max(here, 0) + STAGES_AROUND + 1))
        for index in shown:
            yield self._stage(self.planned[index], index - here, width, ascii_only)
        if len(shown) < len(names):
            yield Text(f"  stage {here + 1} of {len(names)}", "dim")
        if self.progress is not None:
            yield _bar_line(*self.progress, "", width, ascii_only, "cyan")

    def _stage(self, stage: Planned, after: int, width: int, ascii_only: bool) -> Text:
        """One stage: over, running or to come, as `after` is below, at or above 0."""
        if after:
            state = ("done", "dim") if after < 0 else ("to come", "dim")
            done = stage.steps if after < 0 else 0
            return _bar_line(stage.name, done, stage.steps, state[0], width, ascii_only, state[1])
        left = self.left(stage.steps - self.step_now)
        remark = "" if left is None else "done" if self.step_now >= stage.steps else f"left {duration(left)}"
        return _bar_line(stage.name, self.step_now, stage.steps, remark, width, ascii_only, "green")

    def _figures(self, width: int, ascii_only: bool) -> Iterator[Text]:
        room = min(WIDEST_CURVE, width - _LABEL - _FIGURE - 8)
        for key, label, form, good in self.headlines():
            past = self.history[key]
            direction = trend(past)
            style = {1: "green", -1: "red"}.get(direction * good, "")
            curve = sparkline(past, room, ascii_only=ascii_only) if room >= NARROWEST_CURVE else ""
            yield Text.assemble(
                f"  {label:<{_LABEL}} ",
                (f"{form(past[-1]):>{_FIGURE}}", "bold"),
                "  ",
                (arrow(direction, ascii_only=ascii_only), style),
                "  ",
                (curve, "cyan"),
            )

    def _samples(self, room: int) -> Iterator[Text]:
        when, samples = self.samples
        lines = [Text(f"samples of {when}", "bold")] if samples else []
        for sample in samples:
            lines.append(Text(f"  {_one_line(sample.problem)}", "dim"))
            for label, text in sample.labelled():
                lines += _few_rows(f"  {_one_line(label)}: ", text)
        # A head without a text under it says nothing.
        yield from lines[:room] if room > 3 else ()

    def _warnings(self) -> Iterator[Text]:
        latest = list(self.warnings.items())[-WARNINGS_SHOWN:]
        if latest:
            yield Text(f"warnings: {len(self.warnings)}", "bold yellow")
        for text, times in latest:
            yield Text(f"  {f'{times} times: ' if times > 1 else ''}{_one_line(text)}", "yellow")


class _Pace(NamedTuple):
    """Exponential mean of step times, without the pull of its start (as Adam corrects its moments)."""

    total: float = 0.0
    weight: float = 0.0

    def with_step(self, seconds: float | None) -> _Pace:
        if seconds is None:
            return self
        new = 1 - _STEP_TIME_DECAY
        return _Pace(_STEP_TIME_DECAY * self.total + new * seconds, _STEP_TIME_DECAY * self.weight + new)

    def left(self, steps: int) -> float | None:
        return steps * self.total / self.weight if self.weight else None


def _bar_line(name: str, done: int, total: int, remark: str, width: int, ascii_only: bool, style: str) -> Text:
    counts = f"{done}/{total}"
    room = min(WIDEST_BAR, width - _LABEL - len(counts) - len(remark) - 8)
    drawn = bar(done, total, room, ascii_only=ascii_only) + "  " if room >= NARROWEST_CURVE else ""
    label = Text(_one_line(name))
    label.truncate(_LABEL, overflow="ellipsis", pad=True)
    return Text.assemble("  ", label, " ", (drawn, style), counts, ("  " + remark, "dim"))


def _few_rows(label: str, text: str) -> list[Text]:
    rows = printable(clip(text)).split("\n")
    if len(rows) > ROWS_OF_A_TEXT:
        rows = [*rows[: ROWS_OF_A_TEXT - 2], "…", rows[-1]]
    return [Text(label + rows[0]), *(Text("    " + row) for row in rows[1:])]


def _one_line(text: str) -> str:
    return printable(text).replace("\n", " ")
