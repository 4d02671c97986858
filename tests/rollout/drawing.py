"""What tests of generators share: prompts, a text for any ids, what transformers and the trainer say of given ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from peerwise.models.attention import NAME, use_attention
from peerwise.models.forward import PackedGroup, completion_logprobs
from peerwise.records import Completion
from peerwise.rollout.base import Generator, Request, SamplingParams, sample_key
from peerwise.rollout.native.engine import NativeEngine
from tiny_models import END, PAD, tiny

GREEDY = SamplingParams(max_new_tokens=12, temperature=0.0)
PROMPTS = [(1, 40, 41), (1, 7, 8, 9, 10, 11, 12, 13, 14), (5,), (1, 90, 17, 33, 52, 60)]
"""1 to 9 tokens: shorter and longer than the windows of the models that have one."""
NEVER = 96
"""An end id for answers that are not to end; `first_tokens` checks that it is not drawn."""


def as_text(ids: Sequence[int]) -> str:
    """One letter for each id, so that texts can be compared with ids."""
    return "".join(chr(0x4E00 + i) for i in ids)


def engine(model: PreTrainedModel, end_ids: Sequence[int] = (END,), **how: Any) -> NativeEngine:
    return NativeEngine(model, **{"decode": as_text, "end_ids": frozenset(end_ids), **how})


def asked(prompts: Sequence[tuple[int, ...]], samples: int, seed: int = 0) -> list[Request]:
    return [
        Request(prompt_ids=prompt, keys=tuple(sample_key(seed, 0, str(prompt), i) for i in range(samples)))
        for prompt in prompts
    ]


def drawn(generator: Generator, requests: Sequence[Request], params: SamplingParams) -> list[list[tuple[int, ...]]]:
    return [[answer.token_ids for answer in answers] for answers in generator.generate(requests, params)]


def generated(
    model: PreTrainedModel, prompt: tuple[int, ...], max_new_tokens: int, end_ids: Sequence[int]
) -> list[int]:
    """What transformers' own greedy generate writes after one prompt."""
    ids = torch.tensor([prompt])
    out = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=max_new_tokens,
        do_sample=False,
        eos_token_id=list(end_ids),
        pad_token_id=PAD,
    )
    return out[0, len(prompt) :].tolist()


def trainer_logprobs(
    model: PreTrainedModel, requests: Sequence[Request], answers: Sequence[Sequence[Completion]], temperature: float
) -> list[float]:
    """What the trainer says of the same ids, in the order of requests and answers."""
    groups = [
        PackedGroup(prompt=request.prompt_ids, completions=tuple(answer.token_ids for answer in of_request))
        for request, of_request in zip(requests, answers, strict=True)
    ]
    with torch.no_grad(), use_attention(model, NAME):
        return completion_logprobs(model, groups, temperature=temperature)[0].tolist()


def sampled_logprobs(answers: Sequence[Sequence[Completion]]) -> list[float]:
    return [logprob for of_request in answers for answer in of_request for logprob in answer.logprobs]


def first_tokens(count: int) -> list[int]:
    """The greedy answer to PROMPTS[0] when nothing ends it."""
    params = SamplingParams(max_new_tokens=count, temperature=0.0)
    ((answer,),) = drawn(engine(tiny("llama"), [NEVER]), asked(PROMPTS[:1], 1), params)
    assert NEVER not in answer
    return list(answer)
