"""Stand-ins for CUDA graphs that tests of recorded decode steps share.

Without a GPU torch's tracer stands in for a capture: it refuses to hand values to the host, and what it records is
operations on fixed tensors, numbers of the recorded step included.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from drawing import engine
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from transformers import PreTrainedModel

from peerwise.rollout.native.engine import NativeEngine
from tiny_models import END

Compute = Callable[[], Tensor]


class Rerun:
    """Calls the function again; its result lies where the one before lay, as that of a graph does."""

    def __init__(self) -> None:
        self.rehearsals = self.records = self.replays = 0

    def rehearse(self, step: Compute) -> Tensor:
        self.rehearsals += 1
        return self.finite(step())

    def record(self, step: Compute) -> Compute:
        self.records += 1
        again = self.recorded(step)
        out = step().clone()

        def replay() -> Tensor:
            self.replays += 1
            return out.copy_(self.finite(again()))

        return replay

    def recorded(self, step: Compute) -> Compute:
        return step

    def finite(self, out: Tensor) -> Tensor:
        """Rows that nobody has are checked with the others."""
        assert out.isfinite().all()
        return out


class Traced(Rerun):
    """Records the operations of one call and runs those."""

    def recorded(self, step: Compute) -> Compute:
        start = torch.zeros(())
        trace = make_fx(lambda _: step())(start)
        return lambda: trace(start)


def with_recorder(model: PreTrainedModel, recorder: Any, ends: Sequence[int] = (END,), **how: Any) -> NativeEngine:
    return engine(model, ends, recorder=lambda device: recorder, **how)
