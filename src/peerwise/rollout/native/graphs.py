"""Decode steps that are recorded once and then launched as a whole: CUDA graphs at bucketed sizes.

A decode step of a small model on a GPU is hundreds of short kernels, and launching them one by one takes longer than
running them. A recorded step repeats the same kernels on the same addresses, so here it works on buffers of a fixed
size: rows beyond the branches in use compute token 0 in slots that nobody holds, and are cut off. Sizes are rounded up
to few values, each a graph of its own.

Graphs hold the addresses of one cache, so they live as long as it: for one call of `generate`. What they read besides
are the model's own weights, in place. Knows no requests and draws nothing.

Shapes: n rows, g groups, W most branches of one group, as in `attention.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from peerwise.models.lean import Decoder
from peerwise.rollout.native.attention import DecodePlan, Layout, by_group
from peerwise.rollout.native.cache import Cache

log = logging.getLogger(__name__)

WARM_UP = 3
"""Steps of a size that are computed before one is recorded. They are steps like any other, so nothing is computed in
vain, and a size that comes and goes is never recorded. The first compiles what there is to compile for so many
branches, which a capture could not."""
LEAST_BRANCHES, LEAST_TOKENS = 8, 256
"""The smallest sizes but for the number of groups; the next ones are twice as large each."""


class Recorder(Protocol):
    """Records a function of no arguments that reads and writes tensors at fixed addresses."""

    def rehearse(self, step: Callable[[], Tensor]) -> Tensor:
        """Run it once, in the way that it will be recorded.

        Raises:
            RuntimeError: it does something that cannot be recorded.
        """
        ...

    def record(self, step: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """What runs it again on what lies at those addresses by then; its result lasts until it is called again.

        Raises:
            RuntimeError: it cannot be recorded.
        """
        ...


class CudaRecorder:
    """CUDA graphs, all in one memory pool: one runs at a time, and none reads what another has left."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.pool = torch.cuda.graph_pool_handle()

    def rehearse(self, step: Callable[[], Tensor]) -> Tensor:
        """On the side stream, where torch asks for the warm-up of a capture."""
        here = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(here)
        with torch.cuda.stream(self.stream), _waiting_is_an_error():
            out = step()
        here.wait_stream(self.stream)
        return out

    def record(self, step: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Captured on the side stream, replayed on the current one."""
        graph = torch.cuda.CUDAGraph()
        # The outer block brings the current stream back when a capture fails, which torch's own then does not.
        with (
            torch.cuda.stream(torch.cuda.current_stream(self.device)),
            torch.cuda.graph(graph, pool=self.pool, stream=self.stream),
        ):
            out = step()

        def replay() -> Tensor:
            graph.replay()
            return out

        return replay


@contextmanager
def _waiting_is_an_error() -> Iterator[None]:
    """What waits for the device cannot be captured, and an attempt would leave torch's allocator in the capture."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def cuda_recorder(device: torch.device) -> CudaRecorder | None:
    """A recorder where the device has graphs."""
    return CudaRecorder(device) if device.type == "cuda" else None


def no_recorder(device: torch.device) -> None:
    """None, whatever the device."""


class _Size(NamedTuple):
    branches: int
    groups: int
    tokens: int


class Graphs:
    """Decode steps by their size, recorded after WARM_UP of a size.

    Args:
        cache: of fixed room.
        most: answers of one request.
    """

    def __init__(self, decoder: Decoder, cache: Cache, recorder: Recorder, device: torch.device, most: int) -> None:
        self.decoder, self.cache, self.recorder, self.device, self.most = decoder, cache, recorder, device, most
        self.steps: dict[_Size, _Step] = {}

    def decode(self, ids: Sequence[int], groups: Sequence[int], lengths: Sequence[int]) -> Tensor | None:
        """Run one token of each branch through the model.

        Args:
            ids, groups, lengths: n times the token, the place of its prompt, and the answer tokens before it.
        Returns:
            Final hidden states [n, hidden], which the next step overwrites; None, and a warning, where the step cannot
            be recorded. It may then be computed in another way.
        """
        size = _Size(
            branches=bucket(len(ids), LEAST_BRANCHES, self.cache.answers.places),
            groups=bucket(len(self.cache.prompt_lengths), 1, self.cache.prompts.places),
            tokens=bucket(max(lengths) + 1, LEAST_TOKENS, self.cache.answers.room),
        )
        if size not in self.steps:
            self.steps[size] = _Step(self.decoder, self.cache, size, min(self.most, size.branches), self.device)
        step = self.steps[size]
        step.fill(ids, groups, lengths)
        try:
            return step.run(self.recorder)[: len(ids)]
        except RuntimeError as error:
            log.warning("decode steps of this model cannot be recorded; sampling goes on without, slower: %s", error)
            return None


class _Step:
    """One decode step at fixed addresses, for branches of one size."""

    def __init__(self, decoder: Decoder, cache: Cache, size: _Size, width: int, device: torch.device) -> None:
        self.decoder, self.cache, self.size, self.width = decoder, cache, size, width
        # Not left to the first step: zeros that a capture makes are made again at every replay.
        cache.answers.prepare(cache.prompts)
        n, g = size.branches, size.groups
        counts = [n, n, n, n, g, g * width]
        self.starts = list(accumulate(counts, initial=0))
        self.buffer = torch.zeros(self.starts[-1], dtype=torch.int64, device=device)
        self.ids, groups, lengths, place, prompt_lengths, members = torch.split(self.buffer, counts)
        self.layout = Layout(
            groups=groups,
            lengths=lengths,
            prompt_lengths=prompt_lengths,
            members=members,
            place=place,
            width=width,
            at=lengths,
            room=size.tokens,
            recurs=True,
        )
        self.rehearsals = 0
        self.replay: Callable[[], Tensor] | None = None

    def fill(self, ids: Sequence[int], groups: Sequence[int], lengths: Sequence[int]) -> None:
        """Put the values of a step into the buffers, in one copy.

        A row of nobody is 0 everywhere: it sees the first prompt and what it writes itself, so it is finite.
        """
        members, place = by_group(groups, self.size.groups, self.width)
        values = np.zeros(self.starts[-1], np.int64)
        columns = (ids, groups, lengths, place, self.cache.prompt_lengths, members)
        for start, column in zip(self.starts, columns, strict=False):
            values[start : start + len(column)] = column
        self.buffer.copy_(upload(values, self.buffer.device))

    def run(self, recorder: Recorder) -> Tensor:
        """[size.branches, hidden] of what the buffers hold."""
        if self.replay is None and self.rehearsals < WARM_UP:
            self.rehearsals += 1
            return recorder.rehearse(self._compute)
        if self.replay is None:
            self.replay = recorder.record(self._compute)
        return self.replay()

    def _compute(self) -> Tensor:
        plan = DecodePlan(self.layout, self.cache)
        return self.decoder(self.ids, plan.positions, plan)


def bucket(count: int, least: int, most: int) -> int:
    """The size that holds `count`: least, or twice that, or twice again, and so on, but not above `most`.

    Example:
        bucket(9, 8, 40) == 16; bucket(33, 8, 40) == 40
    """
    size = least
    while size < count:
        size *= 2
    return min(size, most)


def upload(values: NDArray[Any], device: torch.device) -> Tensor:
    """The values on the device; to a GPU by way of pinned memory, so that the host does not wait for the copy."""
    host = torch.from_numpy(values)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host
