"""The trackers there are: which package each needs, and whether it is installed. Imports none of them."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from importlib.util import find_spec
from typing import NamedTuple

from peerwise.errors import RequestError
from peerwise.trackers.base import Tracker


class Known(NamedTuple):
    """Where a tracker's class is, and the module that its package brings."""

    module: str
    type: str
    package: str


KNOWN = {
    "tensorboard": Known("peerwise.trackers.tensorboard", "TensorBoard", "tensorboardX"),
    "wandb": Known("peerwise.trackers.wandb", "Wandb", "wandb"),
    "trackio": Known("peerwise.trackers.trackio", "Trackio", "trackio"),
    "swanlab": Known("peerwise.trackers.swanlab", "SwanLab", "swanlab"),
    "mlflow": Known("peerwise.trackers.mlflow", "MLflow", "mlflow"),
}
"""By the name that a recipe gives; the extra of pip is called the same."""


def require(names: Iterable[str]) -> None:
    """Refuse a run whose trackers are not installed.

    Raises:
        RequestError: with the command that installs them.
    """
    missing = [name for name in names if not _installed(KNOWN[name].package)]
    if missing:
        raise RequestError(
            f"run.trackers: {', '.join(missing)} not installed; pip install 'peerwise[{','.join(missing)}]' installs "
            "what is missing, or leave it out of run.trackers"
        )


def tracker(name: str) -> type[Tracker]:
    """The class of a tracker, with its package imported."""
    known = KNOWN[name]
    found: type[Tracker] = getattr(importlib.import_module(known.module), known.type)
    return found


def _installed(package: str) -> bool:
    spec = find_spec(package)
    # A folder of that name in the working directory, such as wandb's own, looks like a package without a file.
    return spec is not None and spec.origin is not None
