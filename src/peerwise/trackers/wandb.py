"""Weights & Biases, also offline (WANDB_MODE=offline); its files are in RUN/wandb, its environment variables hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import wandb

from peerwise.trackers.base import Row, Run


class Wandb:
    """See `base.Tracker`."""

    def __init__(self, run: Run) -> None:
        # The run's own output is not the tracker's to capture, and there is nobody to answer a question.
        settings = wandb.Settings(console="off", disable_git=True, disable_code=True)
        self._run = wandb.init(
            project=run.project,
            name=run.name,
            dir=run.folder,
            config=run.settings,
            id=run.known_as,
            resume="allow" if run.known_as else None,
            settings=settings,
        )
        self.known_as = str(self._run.id)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def table(self, step: int, name: str, rows: Sequence[Row]) -> None:
        columns = list(rows[0])
        data = [[row[column] for column in columns] for row in rows]
        self._run.log({name: wandb.Table(columns=columns, data=data, allow_mixed_types=True)}, step=step)

    def mark(self, step: int, name: str, text: str) -> None:
        self._run.summary[f"{name}/{text}"] = step

    def close(self, done: bool) -> None:
        self._run.finish(exit_code=0 if done else 1)
