"""Settings of every test (no hub, one thread, no deadlines) and the tiny models as fixtures.

Imports neither torch nor transformers itself, so that tests of the rooms without them start at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# Read when torch is imported; tiny_models sets torch's own count as well.
os.environ["OMP_NUM_THREADS"] = "1"

# The same examples in every run: a red test is red again, and a planted fault is found or not found for good.
settings.register_profile("peerwise", deadline=None, derandomize=True)
settings.load_profile("peerwise")


@pytest.fixture(scope="session")
def tiny() -> Callable[[str], Any]:
    """`tiny(name)` is a fresh tiny causal model: llama, qwen2, qwen3, gemma, gemma2, mistral or gpt_neox."""
    from tiny_models import tiny as build

    return build


@pytest.fixture(scope="session")
def tiny_policy() -> Callable[[str], Any]:
    """`tiny_policy(name)` is a fresh Policy: the tiny model with a character tokenizer."""
    from tiny_models import tiny_policy as build

    return build
