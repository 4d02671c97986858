"""The slow reference: Hugging Face's own `generate`, drawing exactly what the native engine draws.

A logits processor draws each token with our sampler and the sample's own numbers, then leaves `generate` no other
choice. Prompts are repeated for each answer and padded on the left, as `generate` wants them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, PreTrainedModel

from peerwise.models.attention import use_attention
from peerwise.records import Completion, Finish
from peerwise.rollout.adjust import adjusted
from peerwise.rollout.base import Generator, Progress, Request, SamplingParams, check_context, completion, uniforms
from peerwise.rollout.native.sampler import draw


class TransformersGenerator(Generator):
    """`model.generate` behind the Generator protocol. Arguments as for `NativeEngine`."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        decode: Callable[[Sequence[int]], str],
        end_ids: frozenset[int],
        max_branches: int = 64,
    ) -> None:
        self.model, self.decode, self.end_ids, self.max_branches = model, decode, end_ids, max_branches

    def generate(
        self, requests: Sequence[Request], params: SamplingParams, progress: Progress | None = None
    ) -> list[tuple[Completion, ...]]:
        """Draw every answer, `max_branches` rows at a time. Raises ModelError as the native engine does."""
        check_context(requests, params, getattr(self.model.config, "max_position_embeddings", None))
        rows = [(request.prompt_ids, key) for request in requests for key in request.keys]
        answers: list[Completion] = []
        training, defaults = self.model.training, self.model.generation_config
        self.model.eval()
        # What the model's own configuration would add (penalties, suppressed tokens) is not in SamplingParams.
        self.model.generation_config = GenerationConfig()
        try:
            for start in range(0, len(rows), self.max_branches):
                answers += self._batch(rows[start : start + self.max_branches], params)
                if progress is not None:
                    progress(len(answers), len(rows))
        finally:
            self.model.train(training)
            self.model.generation_config = defaults
        found = iter(answers)
        return [tuple(next(found) for _ in request.keys) for request in requests]

    def _batch(self, rows: Sequence[tuple[tuple[int, ...], int]], params: SamplingParams) -> list[Completion]:
        longest = max(len(prompt) for prompt, _ in rows)
        pad = min(self.end_ids)
        ids = torch.tensor([[pad] * (longest - len(prompt)) + list(prompt) for prompt, _ in rows])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt, _ in rows])
        drawing = _Draw(rows, params, self.end_ids)
        device = self.model.device
        attention = "sdpa" if self.model._supports_sdpa else "eager"
        with torch.inference_mode(), use_attention(self.model, attention):
            out = self.model.generate(
                input_ids=ids.to(device),
                attention_mask=mask.to(device),
                max_new_tokens=params.max_new_tokens,
                do_sample=False,
                eos_token_id=sorted(self.end_ids),
                pad_token_id=pad,
                logits_processor=LogitsProcessorList([drawing]),
            )
        drawn, logprobs = out[:, longest:].tolist(), torch.stack(drawing.logprobs, dim=1).tolist()
        return [self._completion(*pair, params) for pair in zip(drawn, logprobs, strict=True)]

    def _completion(self, drawn: list[int], logprobs: list[float], params: SamplingParams) -> Completion:
        """Cut a row at its first end token or stop text; what `generate` appended after that is padding."""
        finish: Finish = "length"
        length = len(drawn)
        for position, token in enumerate(drawn):
            stopped = params.stop and any(stop in self.decode(drawn[: position + 1]) for stop in params.stop)
            if token in self.end_ids or stopped:
                finish, length = "stop", position + 1
                break
        return completion(drawn[:length], logprobs[:length], finish, self.decode)


class _Draw(LogitsProcessor):  # type: ignore[misc]
    """Draws a token for each row and forbids all others."""

    def __init__(
        self, rows: Sequence[tuple[tuple[int, ...], int]], params: SamplingParams, end_ids: frozenset[int]
    ) -> None:
        self.prompts, self.params, self.end_ids = [prompt for prompt, _ in rows], params, end_ids
        self.points = np.stack([uniforms(key, params.max_new_tokens) for _, key in rows])
        self.logprobs: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        step, params = len(self.logprobs), self.params
        points = torch.from_numpy(self.points[:, step].copy()).to(scores.device)
        answers = input_ids[:, input_ids.shape[1] - step :].tolist()
        tokens, logprobs = draw(
            adjusted(scores.float(), self.prompts, answers, params, self.end_ids),
            points,
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=params.top_k,
            min_p=params.min_p,
        )
        self.logprobs.append(logprobs)
        return torch.full_like(scores, float("-inf")).scatter(1, tokens[:, None], 0.0)
