"""What every generator promises: requests in, completions out, each sample a function of its key alone.

A generator knows nothing of rewards, tasks or training. It returns ids as they were drawn, with the log-probs of
the distribution they were drawn from, and decides "stop" or "length" by those ids.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from peerwise.errors import ModelError, RequestError
from peerwise.records import Completion, Finish

Progress = Callable[[int, int], None]
"""Called with (answers finished, answers in all)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to draw. What is left at its default changes nothing.

    The order is that of `generate`: bias, repetition penalty and least length on the logits, then temperature, then
    top_k, top_p and min_p.
    """

    max_new_tokens: int
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    """Tokens with less than this share of the likeliest one's probability are not drawn (Nguyen et al. 2024)."""
    stop: tuple[str, ...] = ()
    """Texts that end an answer as soon as it contains one."""
    min_new_tokens: int = 0
    """No end token is drawn before this many tokens."""
    repetition_penalty: float = 1.0
    """The logit of every token of prompt and answer is divided by it, or multiplied where it is below 0 (Keskar et al.
    2019, section 4.1)."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, what is added to its logit)."""

    def __post_init__(self) -> None:
        """Raises RequestError for values that mean nothing."""
        wanted = {
            "max_new_tokens": (self.max_new_tokens >= 1, "at least 1"),
            "temperature": (0 <= self.temperature < math.inf, "a finite one of 0 or more"),
            "top_p": (0 < self.top_p <= 1, "above 0 and at most 1"),
            "top_k": (self.top_k >= 0, "0 or more"),
            "min_p": (0 <= self.min_p <= 1, "from 0 to 1"),
            "min_new_tokens": (0 <= self.min_new_tokens <= self.max_new_tokens, "0 to max_new_tokens"),
            "repetition_penalty": (0 < self.repetition_penalty < math.inf, "a finite one above 0"),
        }
        for name, (holds, expected) in wanted.items():
            if not holds:
                raise RequestError(f"{name} = {getattr(self, name)!r}, expected {expected}")

    @property
    def adjusts(self) -> bool:
        """Whether logits are changed before the temperature."""
        return self.min_new_tokens > 0 or self.repetition_penalty != 1.0 or bool(self.logit_bias)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A prompt and one key for each answer that is wanted of it.

    Example:
        Request(prompt_ids=(1, 42, 7), keys=tuple(sample_key(0, step, problem.id, i) for i in range(8)))
    """

    prompt_ids: tuple[int, ...]
    keys: tuple[int, ...]


class Generator(Protocol):
    """Draws answers to prompts."""

    def generate(
        self, requests: Sequence[Request], params: SamplingParams, progress: Progress | None = None
    ) -> list[tuple[Completion, ...]]:
        """One tuple of completions for each request, one completion for each of its keys, in their order."""
        ...

    def weights_moved(self, version: int) -> None:
        """The policy has other weights than before, those after `version` steps: the next answers come from them.

        An engine that runs on the very module that is trained has nothing to do.
        """
        return


def check_context(requests: Sequence[Request], params: SamplingParams, context: int | None) -> None:
    """Refuse prompts that are empty or that leave no room for an answer.

    Args:
        context: tokens the model was made for; None when it does not say.
    Raises:
        ModelError: with the sizes and the settings to change.
    """
    if any(not request.prompt_ids for request in requests):
        raise ModelError("a prompt has no tokens; there is nothing to continue")
    longest = max((len(request.prompt_ids) for request in requests), default=0)
    if context and longest + params.max_new_tokens > context:
        raise ModelError(
            f"a prompt of {longest} tokens and {params.max_new_tokens} new ones do not fit the model's context "
            f"of {context}; lower max_new_tokens or max_prompt_tokens"
        )


def sample_key(seed: int, place: int, problem_id: str, index: int) -> int:
    """The 128-bit key of one sample: the same four things draw the same sample, whatever runs beside it.

    `place` is the problem's place in the stream, so that it is answered afresh when it comes round again.
    """
    digest = hashlib.blake2b(f"{seed}\x1f{place}\x1f{problem_id}\x1f{index}".encode(), digest_size=16)
    return int.from_bytes(digest.digest(), "big")


def uniforms(key: int, count: int) -> NDArray[np.float64]:
    """[count] numbers in [0, 1) of a counter-based generator: the t-th decides the t-th token."""
    return np.random.Generator(np.random.Philox(key=key)).random(count)


def completion(
    token_ids: Sequence[int], logprobs: Sequence[float], finish: Finish, decode: Callable[[Sequence[int]], str]
) -> Completion:
    """A Completion from what was drawn; `decode` leaves special tokens out of the text."""
    return Completion(token_ids=tuple(token_ids), logprobs=tuple(logprobs), finish=finish, text=decode(token_ids))
