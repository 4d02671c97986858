"""The generator that asks vLLM servers: requests go to whoever has least to do, new weights or adapters to all.

Knows ids and weights, no problems or rewards. Each answer says which weights drew it; one drawn by others than the
policy's ends the call, so a server that was restarted or that somebody else gave weights is never trained on.
"""

from __future__ import annotations

import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from transformers import PreTrainedModel

from peerwise.errors import EngineError, ModelError
from peerwise.records import Completion
from peerwise.rollout.base import Generator, Progress, Request, SamplingParams, check_context
from peerwise.rollout.vllm import probe
from peerwise.rollout.vllm.abilities import Abilities, check_abilities
from peerwise.rollout.vllm.server import Server
from peerwise.rollout.vllm.threads import side_by_side
from peerwise.rollout.vllm.translate import check_params, completions_of, vllm_params
from peerwise.rollout.vllm.weights import Send, Transfer

UPDATING = "peerwise: being updated"
"""The label of weights while they are exchanged, so that nothing sampled in between can pass."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Some answers of one request, asked for together."""

    request: int
    first: int
    keys: tuple[int, ...]


class VllmServers(Generator):
    """Servers behind the Generator protocol. `connect` comes first.

    Args:
        model: whose weights the servers are to have; it may be training.
        decode: ids -> text without special tokens.
        end_ids: every id that ends an answer.
        transfer: how weights reach them.
        max_branches: answers that each server is asked for at one time.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        decode: Callable[[Sequence[int]], str],
        end_ids: frozenset[int],
        servers: Sequence[Server],
        transfer: Transfer,
        max_branches: int = 64,
    ) -> None:
        self.model, self.decode, self.end_ids = model, decode, end_ids
        self.servers, self.transfer, self.max_branches = list(servers), transfer, max_branches
        self.found: list[Abilities] = []
        self._run = secrets.token_hex(4)
        self._version, self._stale = 0, True
        self._busy, self._lock = Counter[int](), threading.Lock()

    @property
    def label(self) -> str:
        """What servers call the weights they should have: the run, which may share servers with others, and steps."""
        return f"{self._run}:{self._version}"

    def connect(self, needed: int) -> None:
        """See that every server can serve this run, give it the weights, and compare an answer with the model's own.

        Args:
            needed: tokens of the longest prompt and answer.
        Raises:
            EngineError: a server cannot be reached.
            ModelError: a server does not fit.
        """
        dtype = str(self.model.dtype).removeprefix("torch.")
        self.found = [server.abilities() for server in self.servers]
        for server, found in zip(self.servers, self.found, strict=True):
            check_abilities(
                server.url,
                found,
                dtype=dtype,
                needed=needed,
                backend=self.transfer.backend,
                rank=self.transfer.rank,
            )
        with probe.telling_adapters(self.model):
            self._try_out()
        self._stale = self.transfer.rank > 0  # the adapters that were tried are not the policy's

    def _try_out(self) -> None:
        try:
            self._push()
        except EngineError as error:
            raise ModelError(f"{error}. Does the server hold the model that is trained?") from error
        request = probe.question(self.model.config.get_text_config().vocab_size)
        for server in self.servers:
            (answer,) = self._ask(server, request, request.keys, probe.PARAMS)
            probe.check_answer(self.model, request, answer, f"the server at {server.url}")

    def weights_moved(self, version: int) -> None:
        """New weights are pushed before the next answers are asked for."""
        self._version, self._stale = version, True

    def generate(
        self, requests: Sequence[Request], params: SamplingParams, progress: Progress | None = None
    ) -> list[tuple[Completion, ...]]:
        """Draw every answer.

        Raises:
            RequestError: settings that vLLM would understand otherwise, or what does not fit the context.
            EngineError: a server that fails, after some attempts where the connection was lost.
        """
        check_params(params)
        check_context(requests, params, min(found.context for found in self.found))
        if self._stale:
            self._push()
        parts = list(self._parts(requests))
        largest = max((len(part.keys) for part in parts), default=1)
        workers = max(1, len(self.servers) * self.max_branches // largest)
        results: list[list[Completion | None]] = [[None] * len(request.keys) for request in requests]
        done, total = 0, sum(len(request.keys) for request in requests)
        jobs = [lambda part=part: self._answer(requests[part.request], part, params) for part in parts]
        for index, answers in side_by_side(jobs, workers):
            part = parts[index]
            results[part.request][part.first : part.first + len(answers)] = answers
            done += len(answers)
            if progress is not None:
                progress(done, total)
        return [tuple(row) for row in results]  # type: ignore[arg-type]

    def close(self) -> None:
        """Let go of servers and of what weights were sent with."""
        self.transfer.close()
        for server in self.servers:
            server.close()

    def _parts(self, requests: Sequence[Request]) -> Iterator[_Part]:
        """A group is one request, as far as the servers decode so many answers at one time."""
        most = min(found.max_answers for found in self.found)
        for index, request in enumerate(requests):
            for first in range(0, len(request.keys), most):
                yield _Part(index, first, request.keys[first : first + most])

    def _answer(self, request: Request, part: _Part, params: SamplingParams) -> list[Completion]:
        with self._least_busy(len(part.keys)) as server:
            return self._ask(server, request, part.keys, params)

    @contextmanager
    def _least_busy(self, answers: int) -> Iterator[Server]:
        """The server with the fewest answers to draw, which has so many more for the time of the block."""
        with self._lock:
            index = min(range(len(self.servers)), key=lambda i: self._busy[i])
            self._busy[index] += answers
        try:
            yield self.servers[index]
        finally:
            with self._lock:
                self._busy[index] -= answers

    def _ask(self, server: Server, request: Request, keys: Sequence[int], params: SamplingParams) -> list[Completion]:
        answers = server.generate(request.prompt_ids, vllm_params(params, self.end_ids, keys))
        completions = completions_of(answers, params, self.end_ids, self.decode, label=self.label, where=server.url)
        return completions * len(keys) if params.temperature == 0 else completions

    def _push(self) -> None:
        """Give every server the weights the model has now; afterwards none remembers anything of the old ones."""
        with self.transfer.offer(self.model) as send:
            jobs = [lambda server=server: self._update(server, send) for server in self.servers]
            for _ in side_by_side(jobs, len(jobs) if self.transfer.side_by_side else 1):
                pass
        self._stale = False

    def _update(self, server: Server, send: Send) -> None:
        server.pause()
        server.label(UPDATING)
        send(server)
        server.forget_prompts()
        server.label(self.label)
        server.resume()
