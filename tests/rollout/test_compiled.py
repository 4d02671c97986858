"""Pins sampling with the compiled kernels to the trainer's log-probs, in models with heads wide enough for them."""

import pytest
import torch
from drawing import PROMPTS, asked, engine, sampled_logprobs, trainer_logprobs
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from peerwise.kernels import Kernels, build, kernels_for
from peerwise.rollout.base import SamplingParams
from tiny_models import CONFIGS, END, VOCABULARY

pytestmark = pytest.mark.skipif(
    kernels_for(torch.zeros(1, dtype=torch.bfloat16), 32) is None,
    reason="no C compiler, or a processor without AVX-512 BF16",
)
NAMES = ("llama", "qwen2", "qwen3", "mistral", "gemma2", "gpt_neox")
"""The lean family with and without biases, head norms and windows; and others, which have only their attention."""


def wide(name: str) -> PreTrainedModel:
    """Four heads of 32 over two of keys and values."""
    sizes = {"hidden_size": 128, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    grouped = {} if name == "gpt_neox" else {"num_key_value_heads": 2, "head_dim": 32}
    common = {"vocab_size": VOCABULARY, "max_position_embeddings": 512, "eos_token_id": END, "initializer_range": 0.1}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        config = AutoConfig.for_model(**{**common, **sizes, **CONFIGS[name], **grouped, "num_hidden_layers": 2})
        return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()


@pytest.mark.parametrize("name", NAMES)
def test_uneven_answers_that_wait_for_slots_have_the_trainers_logprobs(name, monkeypatch):
    calls = []
    original = Kernels.attend
    monkeypatch.setattr(Kernels, "attend", lambda self, *a, **k: (calls.append(1), original(self, *a, **k))[1])
    model, requests = wide(name), asked(PROMPTS, 3)
    answers = engine(model, range(0, 97, 16), max_branches=5).generate(requests, SamplingParams(max_new_tokens=40))
    assert calls
    assert len({len(answer.token_ids) for group in answers for answer in group}) > 3
    found, expected = sampled_logprobs(answers), trainer_logprobs(model, requests, answers, 1.0)
    errors = [abs(a - b) for a, b in zip(found, expected, strict=True)]
    assert sum(errors) / len(errors) < 0.02  # bfloat16 keeps 8 bits, and the two sum in another order


@pytest.mark.parametrize("name", NAMES)
def test_they_stray_from_float32_no_further_than_torch_does(name, monkeypatch):
    """Both round to bfloat16; the kernels round less often between their products."""
    model, requests, params = wide(name), asked(PROMPTS, 3), SamplingParams(max_new_tokens=40)
    errors = []
    for switch in ("on", "off"):
        monkeypatch.setenv("PEERWISE_KERNELS", switch)
        build._built.cache_clear()
        answers = engine(model, [96]).generate(requests, params)
        exact = trainer_logprobs(wide(name).float(), requests, answers, 1.0)
        errors.append(sum(abs(a - b) for a, b in zip(sampled_logprobs(answers), exact, strict=True)) / len(exact))
    build._built.cache_clear()
    assert errors[0] < 1.3 * errors[1]
