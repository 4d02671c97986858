"""All trackers of one run: what happens in it, told to each as figures, tables and marks.

Made of metrics, evaluation records and samples. Tells each failure once and lets the run go on.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from peerwise.errors import PeerwiseError
from peerwise.metrics.sample import Sample
from peerwise.metrics.text import printable
from peerwise.trackers.base import Row, Run
from peerwise.trackers.child import IDENTITY
from peerwise.trackers.link import Link

FOLDER = "trackers"
"""In the run folder: what each tracker said, and how it calls the run."""
CLOSE_S = 60.0
"""Seconds that trackers have for what they have not sent when the run is over."""
LONGEST_TEXT = 20_000
"""Characters of one cell; trackers cut or refuse longer ones."""
FIGURES_OF_EVALUATIONS = ("accuracy", "mean_tokens", "reward", "truncated", "unread")


class Trackers:
    """What a run tells its trackers; closed as a context, done unless an exception ends it. Empty: nothing happens."""

    def __init__(self, links: Sequence[Link] = (), warn: Callable[[str], None] = print) -> None:
        self._links, self._warn = list(links), warn

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if kind is None:
            self._send({"kind": "done"})
        self.close()

    def stage(self, number: int, name: str, done: int) -> None:
        """Stage `number` (from 1) begins after `done` steps of the run."""
        self._send({"kind": "mark", "step": done, "name": "stage", "text": name})
        self._send({"kind": "scalars", "step": done, "values": {"stage_number": number}})

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """The figures of a step; those that are not finite are left out, since not every tracker takes them."""
        finite = {name: float(value) for name, value in values.items() if math.isfinite(value)}
        self._send({"kind": "scalars", "step": step, "values": finite})

    def evaluation(self, record: Mapping[str, Any]) -> None:
        """A record of evals.jsonl: its figures by task, and the answers it holds."""
        where = f"evaluation/{record['task']}"
        values = {f"{where}/{key}": record[key] for key in FIGURES_OF_EVALUATIONS if record.get(key) is not None}
        low, high = record["interval"]
        values |= {f"{where}/accuracy_low": low, f"{where}/accuracy_high": high}
        for name in ("pass_at_k", "maj_at_k"):
            values |= {f"{where}/{name}/{k}": found["value"] for k, found in record.get(name, {}).items()}
        self.metrics(record["global_step"], values)
        rows = [
            {key: _cell(example[key]) for key in ("problem", "question", "gold", "text", "correct", "extracted")}
            for example in record["examples"]
        ]
        self._table(record["global_step"], f"{where}/answers", rows)

    def samples(self, step: int, samples: Iterable[Sample]) -> None:
        """The answers with the highest and the lowest reward of each group."""
        rows = [
            {
                "problem": _cell(sample.problem),
                "question": _cell(sample.question),
                "gold": _cell(sample.gold),
                "text": _cell(answer.text),
                "reward": answer.reward,
                "correct": answer.correct,
                "extracted": _cell(answer.extracted),
            }
            for sample in samples
            for answer in sample.ends()
        ]
        self._table(step, "samples", rows)

    def close(self) -> None:
        """End every tracker; waits for what is not sent yet, for a bounded time."""
        for link in self._links:
            link.finish()
        deadline = time.monotonic() + CLOSE_S
        for link in self._links:
            if not link.wait(deadline):
                self._warn(f"tracker {link.name} was not done after {CLOSE_S:.0f} s and was ended; see {link.log}")
            elif link.failed:
                self._tell_failure(link)
            elif link.dropped:
                self._warn(f"tracker {link.name} was too slow: {link.dropped} of the things it was told are lost")
        self._links = []

    def _table(self, step: int, name: str, rows: Sequence[Row]) -> None:
        if rows:
            self._send({"kind": "table", "step": step, "name": name, "rows": rows})

    def _send(self, event: Mapping[str, Any]) -> None:
        self._tell_failures()
        for link in self._links:
            link.send(event)

    def _tell_failures(self) -> None:
        for link in [link for link in self._links if link.failed]:
            self._links.remove(link)
            link.kill()
            self._tell_failure(link)

    def _tell_failure(self, link: Link) -> None:
        self._warn(f"tracker {link.name} failed and is off, the run goes on: {link.reason} (more in {link.log})")


def open_trackers(
    names: Sequence[str],
    *,
    folder: Path,
    project: str,
    settings: dict[str, Any],
    from_step: int,
    warn: Callable[[str], None],
) -> Trackers:
    """Start the trackers of a run. One that cannot be started is told by `warn` and left out.

    Args:
        settings: the resolved recipe as nested plain values.
        from_step: steps of the run that are done.
    """
    links = []
    for name in dict.fromkeys(names):
        try:
            (folder / FOLDER).mkdir(exist_ok=True)
            run = Run(
                name=folder.resolve().name,
                folder=str(folder.resolve()),
                project=project,
                settings=settings,
                known_as=_known_as(folder / FOLDER / IDENTITY.format(name=name)),
                from_step=from_step,
            )
            links.append(Link(name, asdict(run), folder / FOLDER / f"{name}.log"))
        except (OSError, PeerwiseError) as error:
            warn(f"tracker {name} could not be started and is off, the run goes on: {error}")
    return Trackers(links, warn)


def _known_as(path: Path) -> str | None:
    """How the tracker calls the run that goes on; None for a new one."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["known_as"]
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise PeerwiseError(f"{path} is not what a tracker has written ({error}); remove it to begin anew") from error
    return str(found)


def _cell(value: object) -> str | bool | None:
    if value is None or isinstance(value, bool):
        return value
    text = printable(str(value))
    more = len(text) - LONGEST_TEXT
    return f"{text[:LONGEST_TEXT]} … ({more} more characters)" if more > 0 else text
