"""The loop of the native engine: admit waiting answers, compute one token for each, draw, retire those that end.

It works on the very module that is being trained: there is no second copy of the weights and nothing to bring up
to date. It knows token ids, not problems or rewards; `decode` is the only thing it knows of text.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from peerwise.errors import ModelError, TrainingError
from peerwise.models.forward import head_of
from peerwise.models.lean import Decoder, sampling_decoder
from peerwise.records import Completion
from peerwise.rollout.adjust import adjusted
from peerwise.rollout.base import (
    Generator,
    Progress,
    Request,
    SamplingParams,
    check_context,
    completion,
    uniforms,
)
from peerwise.rollout.native.attention import DecodePlan, PrefillPlan, layout_of
from peerwise.rollout.native.cache import Cache
from peerwise.rollout.native.graphs import Graphs, Recorder, cuda_recorder, no_recorder, upload
from peerwise.rollout.native.memory import cache_bytes, spare_bytes, token_bytes
from peerwise.rollout.native.sampler import draw
from peerwise.rollout.native.scheduler import Branch, Scheduler


class NativeEngine(Generator):
    """Continuous batching with shared prompts, for any decoder-only Hugging Face model.

    Args:
        model: a causal model; it may be training, its mode is restored.
        decode: ids -> text without special tokens.
        end_ids: every id that ends an answer.
        max_branches: answers decoded side by side, fewer where memory does not hold so many.
        prefill_tokens: prompt tokens computed in one forward call.
        memory_bytes: what the cache may grow to; None takes what is free when an answer is asked for.
        recorder: gives what records decode steps on a device, or None where they are computed one by one.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        decode: Callable[[Sequence[int]], str],
        end_ids: frozenset[int],
        max_branches: int = 64,
        prefill_tokens: int = 4096,
        memory_bytes: int | None = None,
        recorder: Callable[[torch.device], Recorder | None] = cuda_recorder,
    ) -> None:
        self.model, self.decode, self.end_ids = model, decode, end_ids
        self.max_branches, self.prefill_tokens, self.memory_bytes = max_branches, prefill_tokens, memory_bytes
        self.recorder = recorder

    def side_by_side(self, *, prompts: int, longest_prompt: int, max_new_tokens: int) -> tuple[int, int]:
        """How many answers can be decoded at one time, and the bytes that their cache grows to at most.

        The others wait, so the cache never takes more, however long the answers become.

        Raises:
            ModelError: not even one answer fits into memory.
        """
        sizes = {"prompts": prompts, "longest_prompt": longest_prompt, "max_new_tokens": max_new_tokens}
        per_token = token_bytes(self.model)
        free = spare_bytes(self.model.device) if self.memory_bytes is None else self.memory_bytes
        fitting = bisect_right(
            range(self.max_branches + 1), free, key=lambda n: cache_bytes(per_token, branches=n, **sizes)
        )
        branches = fitting - 1
        if branches < 1:
            needed = cache_bytes(per_token, branches=1, **sizes)
            raise ModelError(
                f"no memory for one answer: keys and values of {longest_prompt} prompt tokens and {max_new_tokens} new "
                f"ones take {needed / 2**20:.0f} MiB, and {free / 2**20:.0f} MiB are free; lower max_new_tokens"
            )
        return branches, cache_bytes(per_token, branches=branches, **sizes)

    def generate(
        self,
        requests: Sequence[Request],
        params: SamplingParams,
        progress: Progress | None = None,
        on_token: Callable[[Sequence[int]], None] | None = None,
    ) -> list[tuple[Completion, ...]]:
        """Draw every answer of every request. `on_token` sees the ids of each answer as it grows.

        Raises:
            ModelError: a prompt is empty, or prompt and answer do not fit the model's context.
            TrainingError: the model's weights are not finite any more.
        """
        check_context(requests, params, getattr(self.model.config, "max_position_embeddings", None))
        training = self.model.training
        self.model.eval()
        try:
            with torch.inference_mode(), sampling_decoder(self.model) as decoder:
                return _Generation(self, decoder, requests, params, progress, on_token).run()
        finally:
            self.model.train(training)


class _Generation:
    """The state of one call of `generate`."""

    def __init__(
        self,
        engine: NativeEngine,
        decoder: Decoder,
        requests: Sequence[Request],
        params: SamplingParams,
        progress: Progress | None,
        on_token: Callable[[Sequence[int]], None] | None,
    ) -> None:
        self.engine, self.decoder, self.requests, self.params = engine, decoder, requests, params
        self.progress, self.on_token = progress, on_token
        self.model = engine.model
        self.head = head_of(engine.model)
        total = sum(len(r.keys) for r in requests)
        longest = max((len(r.prompt_ids) for r in requests), default=0)
        fitting, _ = engine.side_by_side(
            prompts=len(requests), longest_prompt=longest, max_new_tokens=params.max_new_tokens
        )
        branches = min(fitting, total)
        recorder = engine.recorder(self.model.device)
        self.scheduler = Scheduler([len(r.keys) for r in requests], branches)
        self.cache = Cache(
            groups=min(branches, len(requests)),
            branches=branches,
            longest_prompt=longest,
            max_new_tokens=params.max_new_tokens,
            fixed=recorder is not None,
        )
        most = max((len(r.keys) for r in requests), default=0)
        self.graphs = None if recorder is None else Graphs(decoder, self.cache, recorder, self.model.device, most)
        self.results: list[list[Completion | None]] = [[None] * len(r.keys) for r in requests]
        self.first: dict[int, Tensor] = {}  # request -> hidden state that predicts its answers' first token
        self.uniforms = np.empty((branches, params.max_new_tokens))
        self.total = total

    def run(self) -> list[tuple[Completion, ...]]:
        """Until no answer is left."""
        done = 0
        scheduler = self.scheduler
        while scheduler.waiting or scheduler.active:
            hidden = [self._decode()] if scheduler.active else []
            hidden += self._admit()
            self._draw(torch.cat(hidden))
            done += self._retire()
            if self.progress is not None:
                self.progress(done, self.total)
        return [tuple(row) for row in self.results]  # type: ignore[arg-type]

    def _admit(self) -> list[Tensor]:
        """Fill free slots; the hidden states that predict the new branches' first tokens."""
        start = len(self.scheduler.active)
        new_requests, new_branches = self.scheduler.admit()
        for batch in _by_tokens(new_requests, [len(r.prompt_ids) for r in self.requests], self.engine.prefill_tokens):
            self._prefill(batch)
        for slot, branch in enumerate(new_branches, start):
            key = self.requests[branch.request].keys[branch.sample]
            if self.params.temperature > 0:
                self.uniforms[slot] = uniforms(key, self.params.max_new_tokens)
        return [torch.stack([self.first[b.request] for b in new_branches])] if new_branches else []

    def _prefill(self, batch: Sequence[int]) -> None:
        """Compute some prompts in one row and keep them in the cache."""
        device = self.model.device
        prompts = [self.requests[request].prompt_ids for request in batch]
        places = [self.scheduler.groups.index(request) for request in batch]
        plan = PrefillPlan(prompts, places, self.cache, device)
        self.cache.prompt_lengths += map(len, prompts)
        hidden = self.decoder(plan.packed.ids, plan.packed.positions, plan)
        for request, last in zip(batch, plan.last, strict=True):
            self.first[request] = hidden[last].clone()

    def _decode(self) -> Tensor:
        """[n, hidden]: run the last token of every active branch through the model."""
        active, device = self.scheduler.active, self.model.device
        ids = [branch.token_ids[-1] for branch in active]
        groups = [branch.group for branch in active]
        lengths = [len(branch.token_ids) - 1 for branch in active]
        self.cache.make_room(max(lengths) + 1, len(active))
        if self.graphs is not None:
            hidden = self.graphs.decode(ids, groups, lengths)
            if hidden is not None:
                return hidden
            self.graphs, self.engine.recorder = None, no_recorder
        plan = DecodePlan(layout_of(groups, lengths, self.cache, device), self.cache)
        return self.decoder(torch.tensor(ids, device=device), plan.positions, plan)

    def _draw(self, hidden: Tensor) -> None:
        """Append one token to every active branch and say which of them end."""
        active, params = self.scheduler.active, self.params
        steps = [len(branch.token_ids) for branch in active]
        finite = hidden.isfinite().all(-1)
        logits = adjusted(
            # Numbers to draw from also where there are none: they are refused with what comes back below.
            self.head.logits(hidden.masked_fill(~finite[:, None], 0.0)),
            [self.requests[branch.request].prompt_ids for branch in active],
            [branch.token_ids for branch in active],
            params,
            self.engine.end_ids,
        )
        tokens, logprobs = draw(
            logits,
            upload(self.uniforms[np.arange(len(active)), steps], hidden.device),
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=params.top_k,
            min_p=params.min_p,
        )
        # The one copy to the host that waits for the step: whether an answer ends is decided here.
        drawn = torch.stack([tokens.double(), logprobs.double(), finite.double()]).cpu()
        if not drawn[2].all():
            raise TrainingError(
                "the model's hidden states are not finite, so nothing can be drawn from it: its weights have run away. "
                "Go back to an earlier checkpoint and lower the learning rate"
            )
        for branch, token, logprob in zip(active, drawn[0].long().tolist(), drawn[1].tolist(), strict=True):
            self._append(branch, token, logprob)

    def _append(self, branch: Branch, token: int, logprob: float) -> None:
        branch.token_ids.append(token)
        branch.logprobs.append(logprob)
        if token in self.engine.end_ids or self._stopped(branch):
            branch.finish = "stop"
        elif len(branch.token_ids) >= self.params.max_new_tokens:
            branch.finish = "length"
        if self.on_token is not None:
            self.on_token(branch.token_ids)

    def _stopped(self, branch: Branch) -> bool:
        """Whether a stop text has just appeared. A character may take four tokens (its bytes), never more."""
        if not self.params.stop:
            return False
        tail = self.engine.decode(branch.token_ids[-4 * (max(map(len, self.params.stop)) + 1) :])
        return any(stop in tail for stop in self.params.stop)

    def _retire(self) -> int:
        """Hand over finished answers and close the gaps they leave; returns how many."""
        used = max((len(branch.token_ids) for branch in self.scheduler.active), default=0)
        finished, slot_moves, group_moves = self.scheduler.retire()
        if not finished:
            return 0
        self.cache.retire(slot_moves, group_moves, len(self.scheduler.groups), min(used, self.cache.answers.room))
        for source, target in slot_moves:
            self.uniforms[target] = self.uniforms[source]
        for branch in finished:
            assert branch.finish is not None
            answer = completion(branch.token_ids, branch.logprobs, branch.finish, self.engine.decode)
            self.results[branch.request][branch.sample] = answer
        return len(finished)


def _by_tokens(requests: Sequence[int], lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Requests in batches of at most `budget` prompt tokens; a longer prompt is a batch of its own."""
    batches: list[list[int]] = []
    room = 0
    for request in requests:
        if not batches or lengths[request] > room:
            batches.append([])
            room = budget
        batches[-1].append(request)
        room -= lengths[request]
    return batches
