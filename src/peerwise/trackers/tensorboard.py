"""TensorBoard: event files in RUN/tensorboard, for `tensorboard --logdir RUNS`. Texts are shown as they are."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from tensorboardX import SummaryWriter

from peerwise.trackers.base import Row, Run, as_text, own_folder


class TensorBoard:
    """See `base.Tracker`."""

    def __init__(self, run: Run) -> None:
        folder = own_folder(run, "tensorboard")
        self.known_as = str(folder)
        # A run that goes on writes another file; TensorBoard leaves out what the earlier ones hold from that step on.
        purge = run.from_step + 1 if run.known_as else None
        self._writer = SummaryWriter(str(folder), purge_step=purge)
        if run.known_as is None:
            self._text("recipe", json.dumps(run.settings, indent=1, ensure_ascii=False), 0)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def table(self, step: int, name: str, rows: Sequence[Row]) -> None:
        self._text(name, as_text(rows), step)

    def mark(self, step: int, name: str, text: str) -> None:
        self._text(name, text, step)

    def close(self, done: bool) -> None:
        self._writer.close()

    def _text(self, name: str, text: str, step: int) -> None:
        # Texts are rendered as Markdown, in which an indented line is shown as it is.
        self._writer.add_text(name, "\n".join("    " + line for line in text.split("\n")), step)
