"""Between our sampling settings and completions and vLLM's. Knows neither servers nor weights.

vLLM draws with its own random numbers. A seed made of the samples' keys goes with each request; the same request is
answered alike only as far as vLLM keeps that (its version, device and what is batched together all matter).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from peerwise.errors import EngineError, RequestError
from peerwise.records import Completion, Finish
from peerwise.rollout.base import SamplingParams, completion

MAX_BIAS = 100.0
"""vLLM cuts larger biases to this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer as vLLM gives it."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop_text: bool
    """Whether it says that a stop text ended it."""
    versions: tuple[str, ...]
    """The labels of the weights that drew its tokens."""


def check_params(params: SamplingParams) -> None:
    """Refuse what vLLM would do otherwise than the other engines.

    Raises:
        RequestError: with the settings to change.
    """
    if params.min_p > 0 and params.top_p < 1 and params.temperature > 0:
        raise RequestError(
            f"min_p = {params.min_p:g} with top_p = {params.top_p:g}: vLLM applies min_p before top_p and the other "
            "engines after it, so the answers would be drawn from another distribution; set one of them"
        )
    if any(abs(bias) > MAX_BIAS for _, bias in params.logit_bias):
        raise RequestError(f"logit_bias: vLLM knows biases from -{MAX_BIAS:g} to {MAX_BIAS:g} only")


def vllm_params(params: SamplingParams, end_ids: Collection[int], keys: Sequence[int]) -> dict[str, Any]:
    """The keyword arguments of vLLM's SamplingParams for one answer to each key; for a single one where all are the
    same anyway, since greedy answers cannot be asked for in number.

    Every field is given, so that no default of a model's generation config gets in. Ends are our ids alone, and the
    log-prob asked for is that of the drawn token.
    """
    greedy = params.temperature == 0
    return {
        "n": 1 if greedy else len(keys),
        "temperature": params.temperature,
        "top_p": 1.0 if greedy else params.top_p,
        "top_k": 0 if greedy else params.top_k,
        "min_p": 0.0 if greedy else params.min_p,
        "repetition_penalty": params.repetition_penalty,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "logit_bias": dict(params.logit_bias) or None,
        "min_tokens": params.min_new_tokens,
        "max_tokens": params.max_new_tokens,
        "stop": list(params.stop) or None,
        "stop_token_ids": sorted(end_ids),
        "ignore_eos": True,
        "detokenize": bool(params.stop),
        "logprobs": 0,
        "seed": seed_of(keys),
    }


def seed_of(keys: Sequence[int]) -> int:
    """A seed for the answers of one request. vLLM adds each answer's index to it, so it leaves room above."""
    text = ",".join(map(str, keys))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 2


def completions_of(
    answers: Sequence[Answer],
    params: SamplingParams,
    end_ids: Collection[int],
    decode: Callable[[Sequence[int]], str],
    *,
    label: str,
    where: str,
) -> list[Completion]:
    """Answers as our records have them, each cut after its first end token or stop text.

    Args:
        label: what vLLM calls the weights that should have drawn them.
        where: who answered, for messages.
    Raises:
        EngineError: other weights drew a token, nothing that was asked for ended an answer, or a log-prob is not a
            number.
    """
    for answer in answers:
        if set(answer.versions) != {label}:
            raise EngineError(
                f"{where} answered with other weights than the policy's ({', '.join(answer.versions) or 'no label'}, "
                f"expected {label}): it was started anew, or somebody else gave it weights. Go on with "
                "peerwise train --resume RUN, which gives it the right ones"
            )
        if len(answer.logprobs) != len(answer.token_ids) or not all(map(math.isfinite, answer.logprobs)):
            raise EngineError(
                f"{where} sent log-probs that are not one finite number for each token; its weights may have run away"
            )
    return [_completion(answer, params, end_ids, decode, where) for answer in answers]


def _completion(
    answer: Answer,
    params: SamplingParams,
    end_ids: Collection[int],
    decode: Callable[[Sequence[int]], str],
    where: str,
) -> Completion:
    finish, length = _end(answer.token_ids, answer.stop_text, params, end_ids, decode)
    if finish == "length" and length != params.max_new_tokens:
        raise EngineError(
            f"{where} ended an answer after {length} tokens without an end token or stop text, where "
            f"{params.max_new_tokens} were allowed; is its context (--max-model-len) too short, or were its requests "
            "aborted?"
        )
    return completion(answer.token_ids[:length], answer.logprobs[:length], finish, decode)


def _end(
    token_ids: Sequence[int],
    ended_by_stop_text: bool,
    params: SamplingParams,
    end_ids: Collection[int],
    decode: Callable[[Sequence[int]], str],
) -> tuple[Finish, int]:
    for position, token in enumerate(token_ids):
        if token in end_ids or (params.stop and _stopped(token_ids[: position + 1], params.stop, decode)):
            return "stop", position + 1
    return ("stop" if ended_by_stop_text else "length"), len(token_ids)


def _stopped(token_ids: Sequence[int], stops: Sequence[str], decode: Callable[[Sequence[int]], str]) -> bool:
    """Whether a stop text ends here. A character may take four tokens (its bytes), never more."""
    tail = decode(token_ids[-4 * (max(map(len, stops)) + 1) :])
    return any(stop in tail for stop in stops)
