"""What a stage's method promises to the run around it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from peerwise.metrics.value import Metrics
from peerwise.recipe.schema import Stage
from peerwise.records import Group
from peerwise.train.sampling import Sampling
from peerwise.train.trace import Seen


class Learner(ABC):
    """One stage of learning. The run hands it steps in order, and keeps between processes what it says here."""

    stage: Stage
    sampling: Sampling | None
    """Where its groups come from; None where nothing is sampled."""
    groups: list[Group]
    """What the last step sampled; empty where nothing is sampled."""
    advantages: Tensor
    """[P, G] how each of these answers counted."""
    seen: Seen | None = None
    """What the last update computed for each token of these answers; None where it keeps none of that."""

    @abstractmethod
    def step(self, step: int) -> Metrics:
        """Step `step` of the stage, from 0: one batch, one or more optimizer updates."""

    @abstractmethod
    def save_batch(self, name: str) -> None:
        """Keep the last batch for going through it by hand."""

    _position: int = 0

    @property
    def position(self) -> int:
        """Problems, or whatever else the stage goes through, taken from its stream."""
        return self._position if self.sampling is None else self.sampling.position

    @position.setter
    def position(self, position: int) -> None:
        if self.sampling is None:
            self._position = position
        else:
            self.sampling.position = position

    def carried(self) -> dict[str, Any]:
        """What the next step needs to know of the last ones besides weights and position, as plain JSON values."""
        return {} if self.sampling is None else self.sampling.carried()

    def carry(self, values: Mapping[str, Any]) -> None:
        """Go on from `carried` of a checkpoint."""
        if self.sampling is not None:
            self.sampling.carry(values)

    def tensors(self) -> dict[str, Tensor]:
        """What the method trains beside the policy: weights, and moments under names that begin with "optimizer/"."""
        return {}

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:  # noqa: B027  most methods train nothing else
        """Go on from `tensors` of a checkpoint."""
