"""trackio: a local data base that `trackio show` opens; its own environment variables (TRACKIO_DIR, ...) hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import trackio

from peerwise.trackers.base import Row, Run


class Trackio:
    """See `base.Tracker`."""

    def __init__(self, run: Run) -> None:
        self.known_as = run.known_as or run.name
        self._run = trackio.init(
            project=run.project,
            name=self.known_as,
            config=run.settings,
            resume="allow" if run.known_as else "never",
            embed=False,
        )

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def table(self, step: int, name: str, rows: Sequence[Row]) -> None:
        columns = list(rows[0])
        table = trackio.Table(columns=columns, data=[[row[column] for column in columns] for row in rows])
        self._run.log({name: table}, step=step)

    def mark(self, step: int, name: str, text: str) -> None:
        self._run.log({f"{name}/{text}": 1}, step=step)

    def close(self, done: bool) -> None:
        self._run.finish()
