"""SwanLab; offline with SWANLAB_MODE=offline or local. Its files are in RUN/swanlab, its environment variables hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import swanlab

from peerwise.trackers.base import Row, Run, as_text, own_folder


class SwanLab:
    """See `base.Tracker`."""

    def __init__(self, run: Run) -> None:
        self._run = swanlab.init(
            project=run.project,
            name=run.name,
            config=run.settings,
            log_dir=str(own_folder(run, "swanlab")),
            id=run.known_as,
            resume="allow" if run.known_as else None,
        )
        self.known_as = str(self._run.id)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def table(self, step: int, name: str, rows: Sequence[Row]) -> None:
        self._run.log({name: [swanlab.Text(as_text([row])) for row in rows]}, step=step)

    def mark(self, step: int, name: str, text: str) -> None:
        self._run.log({name: swanlab.Text(text)}, step=step)

    def close(self, done: bool) -> None:
        self._run.finish(state="success" if done else "aborted")
