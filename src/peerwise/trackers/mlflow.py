"""MLflow, at MLFLOW_TRACKING_URI; without one in a file store, the folder mlruns beside the run's."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from peerwise.trackers.base import Row, Run, as_text, flat

LONGEST_VALUE = 6000
"""Characters of a setting that MLflow takes."""
MOST_AT_ONCE = 100
_NOT_A_NAME = re.compile(r"[^\w\-./ :]")


class MLflow:
    """See `base.Tracker`."""

    def __init__(self, run: Run) -> None:
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if not uri:
            # A data base needs all of mlflow, a file store only its small client; the store must be asked for.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            uri = (Path(run.folder).parent / "mlruns").as_uri()
        self._client = MlflowClient(tracking_uri=uri)
        self.known_as = run.known_as or self._begin(run)
        if run.known_as:
            self._client.update_run(run.known_as, status="RUNNING")

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        metrics = [Metric(_NOT_A_NAME.sub("_", name), value, now, step) for name, value in values.items()]
        self._client.log_batch(self.known_as, metrics=metrics)

    def table(self, step: int, name: str, rows: Sequence[Row]) -> None:
        self._client.log_text(self.known_as, as_text(rows), f"{_NOT_A_NAME.sub('_', name)}/step-{step:06d}.txt")

    def mark(self, step: int, name: str, text: str) -> None:
        self._client.set_tag(self.known_as, f"{name}.{text}", str(step))

    def close(self, done: bool) -> None:
        self._client.set_terminated(self.known_as, "FINISHED" if done else "KILLED")

    def _begin(self, run: Run) -> str:
        found = self._client.get_experiment_by_name(run.project)
        experiment = found.experiment_id if found else self._client.create_experiment(run.project)
        known_as = str(self._client.create_run(experiment, run_name=run.name).info.run_id)
        settings = [Param(_NOT_A_NAME.sub("_", k), v[:LONGEST_VALUE]) for k, v in flat(run.settings).items()]
        for start in range(0, len(settings), MOST_AT_ONCE):
            self._client.log_batch(known_as, params=settings[start : start + MOST_AT_ONCE])
        return known_as
