"""What a run says while it works: steps, evaluations, samples, tables, warnings. Everything on stderr.

On a terminal a run that has told its plan is drawn by `board` below what is said; without a plan the current step is
one line that is overwritten. Elsewhere it is plain lines, not too many. Answers, questions and golds are hostile text:
control characters are shown, markup is not interpreted, and continuation lines are indented so that no text can pass
for a line of ours. It computes no metric; the one file it writes is the log it is told to keep.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import IO, Any, NamedTuple

from rich import box
from rich.console import Console as RichConsole
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType
from rich.table import Table
from rich.text import Text

from peerwise.metrics.board import Board, Planned
from peerwise.metrics.sample import Sample
from peerwise.metrics.text import accuracy, clip, duration, number, percent, printable, verdict

SECONDS_BETWEEN_LINES = 10.0
"""Where lines cannot be overwritten, steps and progress are shown at most this often."""
SAMPLES_SHOWN = 3
"""Groups or comparisons shown at once."""
PLAIN_WIDTH = 120
"""Columns of a table where there is no terminal to ask."""
WIDE = 90
"""Columns of a terminal from which on a table of evaluations is shown whole."""
DRAWN_PER_SECOND = 1
"""How often the board is drawn: a person reads no faster, and drawing takes time from the run."""

_STEP_FIELDS = (
    ("reward/mean", "reward {:.3f}"),
    ("grad_norm", "grad {:.2f}"),
    ("loss", "loss {:.4f}"),
    ("groups/informative", "informative {:.0%}"),
    ("speed/sampled_tokens_per_s", "sampling {:.0f} tok/s"),
    ("speed/trained_tokens_per_s", "training {:.0f} tok/s"),
    ("length/mean", "length {:.0f}"),
    ("time/step", "{:.2f} s/step"),
)


class Console:
    """The run's voice. Give `file` and `clock` (seconds) in tests; by default stderr and the monotonic clock.

    `quiet` leaves only warnings.
    """

    def __init__(
        self, *, quiet: bool = False, file: IO[str] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.quiet = quiet
        terminal = (file or sys.stderr).isatty() and os.environ.get("TERM") != "dumb"
        self._rich = RichConsole(
            file=file,
            stderr=True,
            force_terminal=terminal,
            width=None if terminal else PLAIN_WIDTH,
            highlight=False,
            markup=False,
            emoji=False,
        )
        self._clock = clock
        self._overwritable = False
        self._last_line = -SECONDS_BETWEEN_LINES
        self._board = Board(clock)
        self._live: Live | None = None
        self._log: Path | None = None
        self._unlogged: list[str] = []

    def log_to(self, path: Path) -> None:
        """Append every line that is said, also under `quiet`, to this file with its time; earlier lines come first."""
        self._log = path
        for text in self._unlogged:
            self._write_log(text)
        self._unlogged.clear()

    def plan(self, title: str, stages: Sequence[Planned]) -> None:
        """What the run will go through. On a terminal its board appears, and stays until `end_view` or `close`."""
        self._board.plan(title, stages)
        if self.quiet or not self._rich.is_terminal or self._live is not None:
            return
        self._clear()
        # What others print while the board is there is put above it, but never from one stream into another.
        self._live = Live(
            console=self._rich,
            get_renderable=lambda: self._board,
            refresh_per_second=DRAWN_PER_SECOND,
            redirect_stdout=sys.stdout.isatty(),
        )
        self._live.start(refresh=True)

    def end_view(self) -> None:
        """Leave the board as it is now; what is said from here on stands below it."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def stage(self, name: str, method: str, steps: int) -> None:
        """A stage begins; the estimate of time left starts afresh."""
        self._board.stage(name)
        self._say(f"stage {name} ({method}), {steps} steps", style="bold")

    def step(self, stage: str, step: int, steps: int, values: Mapping[str, float]) -> None:
        """One line on a step (1 to steps), of those metrics in `values` that a person watches."""
        self._board.step(stage, step, values)
        parts = [f"{stage} {step}/{steps}", *_step_fields(values)]
        self._write_log("  ".join(parts))
        left = self._board.left(steps - step)
        if left is not None:
            parts.append(f"left {duration(left)}")
        if self._board.accuracy is not None:
            parts.append(f"accuracy {percent(self._board.accuracy)}")
        self._show("  ".join(parts), last=step >= steps)

    def progress(self, label: str, done: int, total: int) -> None:
        """How far a long piece of work inside a step is."""
        self._board.work(label, done, total)
        self._show(f"{label} {done}/{total}", last=done >= total)

    def evaluation(self, record: Mapping[str, Any]) -> None:
        """One line on a record of evals.jsonl; its accuracy stays in the step lines until the next one."""
        self._board.evaluation(str(record.get("task", "")), record.get("accuracy"), record.get("global_step"))
        parts = [
            f"evaluation {record.get('stage', '')} {record.get('step', '')}".rstrip(),
            "/".join(str(record[key]) for key in ("task", "split") if record.get(key)),
            f"accuracy {accuracy(record)}",
            f"n {number(record.get('n'), '{:d}')}",
            f"length {number(record.get('mean_tokens'), '{:.1f}')}",
        ]
        self._say("  ".join(part for part in parts if part), style="cyan")

    def samples(self, samples: Sequence[Sample]) -> None:
        """The first few groups: question, gold, and the answers with the highest and the lowest reward."""
        shown = samples[:SAMPLES_SHOWN]
        self._board.show(shown)
        for sample in shown:
            self._tell(sample.problem, sample.labelled(), drawn=True)

    def table(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Records of evals.jsonl side by side: accuracy with 95 % interval, mean response length, reward."""
        columns = [column for column in _COLUMNS if column.always or self._rich.width >= WIDE]
        table = Table(box=box.SIMPLE_HEAD)
        for column in columns:
            table.add_column(column.heading, justify="left" if column.heading in ("when", "task") else "right")
        for row in rows:
            table.add_row(*(Text(printable(column.cell(row))) for column in columns))
        if not self.quiet:
            self._clear()
            self._rich.print(table)

    def comparison(self, before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> None:
        """The `examples` of two evaluation records side by side: the same problems, then and now.

        The first and not the best, so that nobody chooses. Raises KeyError for a problem that `after` lacks.
        """
        now = {example["problem"]: example for example in after}
        for example in before[:SAMPLES_SHOWN]:
            lines = [("question", example["question"]), ("gold", example["gold"])]
            for label, answered in (("before", example), ("after", now[example["problem"]])):
                lines.append((f"{label}, {verdict(answered['correct'], answered['extracted'])}", answered["text"]))
            self._tell(example["problem"], lines)

    def note(self, text: str, *, always: bool = False) -> None:
        """A line for whoever watches; `always` also under `quiet`."""
        self._say(text, always=always)

    def warn(self, text: str) -> None:
        """A warning, shown the first time and counted from then on; `close` tells the counts."""
        self._board.warn(text)
        if self._board.warnings[text] == 1:
            self._say(f"warning: {text}", style="yellow", always=True)

    def close(self) -> None:
        """Leave the board or the live line and say how often each repeated warning came up since."""
        self.end_view()
        self._clear()
        for text, times in self._board.warnings.items():
            if times > 1:
                self._say(f"warning, {times} times: {text}", style="yellow", always=True)
        self._board.warnings = {}

    def _tell(self, problem: str, lines: Iterable[tuple[str, str]], *, drawn: bool = False) -> None:
        """A problem with labelled texts; what the board has `drawn` is only logged while it is there."""
        silent = drawn and self._live is not None
        self._say(f"problem {problem}", style="bold", silent=silent)
        for label, text in lines:
            self._say(f"  {label}: {clip(text)}", indent="    ", silent=silent)

    def _show(self, line: str, *, last: bool) -> None:
        """A line that the next one replaces on a terminal, and that is mostly left out elsewhere. Not logged."""
        if self.quiet or self._live is not None:
            return
        if self._rich.is_terminal and not last:
            self._clear()
            text = Text(printable(line).replace("\n", " "))
            # One column stays free: a full line would wrap and could not be taken back.
            text.truncate(self._rich.width - 1, overflow="ellipsis")
            self._rich.print(text, end="", soft_wrap=True)
            self._overwritable = True
            self._rich.file.flush()
        elif last or self._clock() - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = self._clock()
            self._print(line)

    def _say(
        self, text: str, *, style: str = "", indent: str = "  ", always: bool = False, silent: bool = False
    ) -> None:
        self._write_log(text)
        if always or not (self.quiet or silent):
            self._print(text, style=style, indent=indent)

    def _print(self, text: str, *, style: str = "", indent: str = "  ") -> None:
        self._clear()
        self._rich.print(Text(printable(text).replace("\n", "\n" + indent), style=style), soft_wrap=True)

    def _write_log(self, text: str) -> None:
        if self._log is None:
            self._unlogged.append(text)
            return
        try:
            with self._log.open("a", encoding="utf-8", errors="replace") as file:
                file.write(f"{datetime.now():%Y-%m-%d %H:%M:%S} {printable(text).replace(chr(10), chr(10) + '    ')}\n")
        except OSError as error:
            self._print(f"warning: {self._log} cannot be written, no more is logged: {error.strerror}")
            self._log = None

    def _clear(self) -> None:
        if self._overwritable:
            self._rich.control(Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2)))
            self._overwritable = False


class _Column(NamedTuple):
    heading: str
    cell: Callable[[Mapping[str, Any]], str]
    always: bool
    """Whether it is shown on a narrow terminal too."""


_COLUMNS = (
    _Column("when", lambda row: f"{row.get('at', '')} {row.get('stage', '')}".strip(), True),
    _Column("task", lambda row: str(row.get("task", "")), True),
    _Column("problems", lambda row: number(row.get("n"), "{:d}"), False),
    _Column("accuracy [95 % interval]", accuracy, True),
    _Column("length (tokens)", lambda row: number(row.get("mean_tokens"), "{:.1f}"), False),
    _Column("cut off", lambda row: "-" if row.get("truncated") is None else percent(row["truncated"]), False),
    _Column("reward", lambda row: number(row.get("reward"), "{:.3f}"), False),
)


def _step_fields(values: Mapping[str, float]) -> list[str]:
    # Under GRPO the loss is near 0 whatever happens, and would only mislead beside the reward.
    hidden = "loss" if "reward/mean" in values else None
    return [form.format(values[key]) for key, form in _STEP_FIELDS if key in values and key != hidden]
