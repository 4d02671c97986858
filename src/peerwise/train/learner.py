"""What a stage's method promises to the run around it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from peerwise.metrics.value import Metrics
from peerwise.recipe.schema import Stage
from peerwise.records import Group


class Learner(Protocol):
    """One stage of learning. The run hands it steps in order, and keeps between processes what `carried` says."""

    stage: Stage
    position: int
    """Problems taken from the stage's stream."""
    groups: list[Group]
    """What the last step sampled; empty where nothing is sampled."""
    advantages: Tensor
    """[P, G] how each of these answers counted."""

    def step(self, step: int) -> Metrics:
        """Step `step` of the stage, from 0: one batch, one or more optimizer updates."""
        ...

    def carried(self) -> dict[str, float]:
        """What the next step needs to know of the last one, besides weights and position."""
        ...

    def carry(self, values: Mapping[str, float]) -> None:
        """Go on from `carried` of a checkpoint."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """What the method trains beside the policy, moments included; empty for most."""
        ...

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Go on from `tensors` of a checkpoint.

        Raises:
            KeyError: they are of another method.
        """
        ...

    def save_batch(self, name: str) -> None:
        """Keep the last batch for going through it by hand."""
        ...
