"""What a run says while it works: steps, evaluations, samples, tables, warnings. Everything on stderr.

On a terminal rich colours it and the current step is one line that is overwritten; elsewhere it is plain lines, not
too many. Answers, questions and golds are hostile text: control characters are shown, markup is not interpreted, and
continuation lines are indented so that no text can pass for a line of ours. It computes no metric; the one file
it writes is the log it is told to keep.
"""

from __future__ import annotations

import os
import sys
import time
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from rich import box
from rich.console import Console as RichConsole
from rich.control import Control
from rich.segment import ControlType
from rich.table import Table
from rich.text import Text

from peerwise.records import Completion, Group, Score

SECONDS_BETWEEN_LINES = 10.0
"""Where lines cannot be overwritten, steps and progress are shown at most this often."""
SAMPLES_SHOWN = 3
"""Groups or comparisons shown at once."""
PLAIN_WIDTH = 120
"""Columns of a table where there is no terminal to ask."""
LINES_BEFORE_GAP, LINES_AFTER_GAP = 4, 2
CHARACTERS_BEFORE_GAP, CHARACTERS_AFTER_GAP = 160, 60

_STEP_TIME_DECAY = 0.9
_HIDDEN_CATEGORIES = {"Cc", "Cf", "Cs", "Zl", "Zp"}
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
        self._step_time = _StepTime()
        self._accuracy: float | None = None
        self._warned: Counter[str] = Counter()
        self._log: Path | None = None
        self._unlogged: list[str] = []

    def log_to(self, path: Path) -> None:
        """Append every line that is said, also under `quiet`, to this file with its time; earlier lines come first."""
        self._log = path
        for text in self._unlogged:
            self._write_log(text)
        self._unlogged.clear()

    def stage(self, name: str, method: str, steps: int) -> None:
        """A stage begins; the estimate of time left starts afresh."""
        self._step_time = _StepTime()
        self._say(f"stage {name} ({method}), {steps} steps", style="bold")

    def step(self, stage: str, step: int, steps: int, values: Mapping[str, float]) -> None:
        """One line on a step (1 to steps), of those metrics in `values` that a person watches."""
        self._step_time.add(values.get("time/step"))
        parts = [f"{stage} {step}/{steps}", *_step_fields(values)]
        self._write_log("  ".join(parts))
        left = self._step_time.left(steps - step)
        if left is not None:
            parts.append(f"left {duration(left)}")
        if self._accuracy is not None:
            parts.append(f"accuracy {_percent(self._accuracy)}")
        self._show("  ".join(parts), last=step >= steps)

    def progress(self, label: str, done: int, total: int) -> None:
        """How far a long piece of work inside a step is."""
        self._show(f"{label} {done}/{total}", last=done >= total)

    def evaluation(self, record: Mapping[str, Any]) -> None:
        """One line on a record of evals.jsonl; its accuracy stays in the step lines until the next one."""
        self._accuracy = record.get("accuracy")
        parts = [
            f"evaluation {record.get('stage', '')} {record.get('step', '')}".rstrip(),
            "/".join(str(record[key]) for key in ("task", "split") if record.get(key)),
            f"accuracy {_accuracy(record)}",
            f"n {_number(record.get('n'), '{:d}')}",
            f"length {_number(record.get('mean_tokens'), '{:.1f}')}",
        ]
        self._say("  ".join(part for part in parts if part), style="cyan")

    def samples(self, groups: Sequence[Group]) -> None:
        """The first few groups: question, gold, and the answers with the highest and the lowest reward."""
        for group in groups[:SAMPLES_SHOWN]:
            self._heading(group.problem.id, _question(group), group.problem.answer)
            for completion, score in _best_and_worst(group):
                self._labelled(
                    f"answer, reward {score.total:.3g}, {_verdict(score.correct, score.extracted)}", completion.text
                )

    def table(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Records of evals.jsonl side by side: accuracy with 95 % interval, mean response length, reward."""
        table = Table(box=box.SIMPLE_HEAD)
        for heading in ("when", "task", "problems", "accuracy [95 % interval]", "length (tokens)", "cut off", "reward"):
            table.add_column(heading, justify="left" if heading in ("when", "task") else "right")
        for row in rows:
            cells = (
                f"{row.get('at', '')} {row.get('stage', '')}".strip(),
                str(row.get("task", "")),
                _number(row.get("n"), "{:d}"),
                _accuracy(row),
                _number(row.get("mean_tokens"), "{:.1f}"),
                "-" if row.get("truncated") is None else _percent(row["truncated"]),
                _number(row.get("reward"), "{:.3f}"),
            )
            table.add_row(*(Text(printable(cell)) for cell in cells))
        if not self.quiet:
            self._clear()
            self._rich.print(table)

    def comparison(self, before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> None:
        """The `examples` of two evaluation records side by side: the same problems, then and now.

        The first and not the best, so that nobody chooses. Raises KeyError for a problem that `after` lacks.
        """
        now = {example["problem"]: example for example in after}
        for example in before[:SAMPLES_SHOWN]:
            self._heading(example["problem"], example["question"], example["gold"])
            for label, answered in (("before", example), ("after", now[example["problem"]])):
                verdict = _verdict(answered["correct"], answered["extracted"])
                self._labelled(f"{label}, {verdict}", answered["text"])

    def note(self, text: str, *, always: bool = False) -> None:
        """A line for whoever watches; `always` also under `quiet`."""
        self._say(text, always=always)

    def warn(self, text: str) -> None:
        """A warning, shown the first time and counted from then on; `close` tells the counts."""
        self._warned[text] += 1
        if self._warned[text] == 1:
            self._say(f"warning: {text}", style="yellow", always=True)

    def close(self) -> None:
        """Leave the live line and say how often each repeated warning came up since."""
        self._clear()
        for text, times in self._warned.items():
            if times > 1:
                self._say(f"warning, {times} times: {text}", style="yellow", always=True)
        self._warned.clear()

    def _heading(self, problem: str, question: str, gold: str) -> None:
        self._say(f"problem {problem}", style="bold")
        self._labelled("question", question)
        self._labelled("gold", gold)

    def _labelled(self, label: str, text: str) -> None:
        self._say(f"  {label}: {clip(text)}", indent="    ")

    def _show(self, line: str, *, last: bool) -> None:
        """A line that the next one replaces on a terminal, and that is mostly left out elsewhere. Not logged."""
        if self.quiet:
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

    def _say(self, text: str, *, style: str = "", indent: str = "  ", always: bool = False) -> None:
        self._write_log(text)
        if always or not self.quiet:
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


class _StepTime:
    """Exponential mean of step times, without the pull of its start (as Adam corrects its moments)."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._weight = 0.0

    def add(self, seconds: float | None) -> None:
        if seconds is not None:
            self._sum = _STEP_TIME_DECAY * self._sum + (1 - _STEP_TIME_DECAY) * seconds
            self._weight = _STEP_TIME_DECAY * self._weight + (1 - _STEP_TIME_DECAY)

    def left(self, steps: int) -> float | None:
        """Seconds for so many more steps; None before the first was timed."""
        return steps * self._sum / self._weight if self._weight else None


def printable(text: str) -> str:
    """`text` with every character that a terminal would obey or hide spelled out, newlines kept.

    >>> printable("\\x1b[31mred")
    '\\\\x1b[31mred'
    """
    return "".join(_spelled(character) for character in text.expandtabs(4))


def clip(text: str) -> str:
    """The first and the last lines of a text, each shortened in its middle: the final answer is at the end."""
    lines = text.strip().split("\n")
    hidden = len(lines) - LINES_BEFORE_GAP - LINES_AFTER_GAP
    if hidden > 0:
        lines[LINES_BEFORE_GAP : LINES_BEFORE_GAP + hidden] = [f"… ({hidden} more lines)"]
    return "\n".join(_clip_line(line) for line in lines)


def duration(seconds: float) -> str:
    """Seconds in the two units a person reads.

    >>> duration(3725)
    '1 h 02 min'
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _spelled(character: str) -> str:
    if character == "\n" or unicodedata.category(character) not in _HIDDEN_CATEGORIES:
        return character
    return character.encode("unicode_escape").decode("ascii")


def _clip_line(line: str) -> str:
    if len(line) <= CHARACTERS_BEFORE_GAP + CHARACTERS_AFTER_GAP:
        return line
    return f"{line[:CHARACTERS_BEFORE_GAP]} … {line[-CHARACTERS_AFTER_GAP:]}"


def _step_fields(values: Mapping[str, float]) -> list[str]:
    # Under GRPO the loss is near 0 whatever happens, and would only mislead beside the reward.
    hidden = "loss" if "reward/mean" in values else None
    return [form.format(values[key]) for key, form in _STEP_FIELDS if key in values and key != hidden]


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _accuracy(record: Mapping[str, Any]) -> str:
    accuracy, interval = record.get("accuracy"), record.get("interval")
    if accuracy is None:
        return "-"
    return _percent(accuracy) + (f" [{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]" if interval else "")


def _number(value: Any, form: str) -> str:
    return "-" if value is None else form.format(value)


def _verdict(correct: bool, extracted: str | None) -> str:
    read = "no answer read" if extracted is None else f"read {_clip_line(extracted)}"
    return f"{'right' if correct else 'wrong'}, {read}"


def _question(group: Group) -> str:
    asked = [message["content"] for message in group.problem.messages if message["role"] == "user"]
    return asked[-1] if asked else ""


def _best_and_worst(group: Group) -> list[tuple[Completion, Score]]:
    ordered = sorted(zip(group.completions, group.scores, strict=True), key=lambda pair: -pair[1].total)
    return ordered[:1] if ordered[0][1].total == ordered[-1][1].total else [ordered[0], ordered[-1]]
