"""What every way to vLLM must agree on with our own engine, in float32."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from peerwise.models.attention import NAME, use_attention
from peerwise.models.forward import PackedGroup, completion_logprobs
from peerwise.models.load import Policy
from peerwise.records import Completion
from peerwise.rollout.base import Generator, Request, SamplingParams, sample_key
from peerwise.rollout.native.engine import NativeEngine

CONTEXT = 256
"""Tokens of prompt and answer that vLLM is started for."""
QUESTIONS = ("What is 3 + 4?", "Name a colour.", "Write one line about rain.")
SETTINGS = (
    SamplingParams(max_new_tokens=24, temperature=0.0),
    SamplingParams(max_new_tokens=24, temperature=0.0, repetition_penalty=1.3, min_new_tokens=20),
    SamplingParams(max_new_tokens=24, temperature=0.0, logit_bias=((198, 5.0),), stop=("the", "is a")),
)
CLOSE = 2e-3
"""Largest difference of log-probs of the same tokens; both sides compute in float32."""


def asked(policy: Policy, samples: int) -> list[Request]:
    return [
        Request(
            prompt_ids=policy.prompt_ids([{"role": "user", "content": question}]),
            keys=tuple(sample_key(0, 0, question, index) for index in range(samples)),
        )
        for question in QUESTIONS
    ]


def assert_greedy_agrees(policy: Policy, generator: Generator) -> list[str]:
    """The same ids, texts, ends and log-probs as the native engine's; returns the texts."""
    native = NativeEngine(policy.model, decode=policy.decode, end_ids=policy.end_ids)
    texts = []
    for params in SETTINGS:
        found, expected = generator.generate(asked(policy, 2), params), native.generate(asked(policy, 2), params)
        for theirs, ours in zip(found, expected, strict=True):
            assert [(a.token_ids, a.finish, a.text) for a in theirs] == [(a.token_ids, a.finish, a.text) for a in ours]
            gap = max(abs(p - q) for p, q in zip(theirs[0].logprobs, ours[0].logprobs, strict=True))
            assert gap < CLOSE
            texts.append(theirs[0].text)
    return texts


def assert_sampling_agrees(policy: Policy, generator: Generator, samples: int = 6) -> None:
    """Answers of a group differ, and their log-probs are the trainer's at that temperature."""
    for params in (
        SamplingParams(max_new_tokens=24, temperature=0.8),
        SamplingParams(max_new_tokens=24, temperature=1.2),
    ):
        requests = asked(policy, samples)
        found = generator.generate(requests, params)
        assert all(len({answer.token_ids for answer in answers}) > 1 for answers in found)
        expected = trainer_logprobs(policy, requests, found, params.temperature)
        given = torch.tensor([logprob for answers in found for answer in answers for logprob in answer.logprobs])
        assert float((given - expected).abs().max()) < CLOSE


def trainer_logprobs(
    policy: Policy, requests: Sequence[Request], answers: Sequence[Sequence[Completion]], temperature: float
) -> torch.Tensor:
    groups = [
        PackedGroup(prompt=request.prompt_ids, completions=tuple(answer.token_ids for answer in of_request))
        for request, of_request in zip(requests, answers, strict=True)
    ]
    with torch.no_grad(), use_attention(policy.model, NAME):
        return completion_logprobs(policy.model, groups, temperature=temperature)[0]


def learn(policy: Policy, seed: int) -> None:
    """Other adapters, large enough to change answers."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if "lora_B" in name:
                parameter.add_(0.02 * torch.randn_like(parameter))


def tokens_a_second(policy: Policy, generator: Generator) -> float:
    """Of three groups of 6 answers, 24 tokens each."""
    params = SamplingParams(max_new_tokens=24, min_new_tokens=24)
    generator.generate(asked(policy, 6), params)
    begun = time.perf_counter()
    found = generator.generate(asked(policy, 6), params)
    return sum(len(one.token_ids) for answers in found for one in answers) / (time.perf_counter() - begun)


def move(policy: Policy, seed: int) -> None:
    """Other weights everywhere, the tied embedding included, near enough that answers stay text."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.add_(0.03 * parameter.std(correction=0) * torch.randn_like(parameter))
