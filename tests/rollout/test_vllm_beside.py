"""Pins what is said where vLLM is to run beside the trainer and is not installed."""

from __future__ import annotations

import sys

import pytest
from drawing import as_text

from peerwise.errors import ModelError
from peerwise.rollout.vllm.inprocess import VllmBeside
from peerwise.rollout.vllm.weights import Files
from tiny_models import END, tiny


def test_without_vllm_there_is_one_error_with_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ModelError, match=r"rollout\.engine is 'vllm'.*install it.*docs/vllm\.md.*'native'"):
        VllmBeside(
            tiny("llama"),
            source="anything",
            decode=as_text,
            end_ids=frozenset({END}),
            transfer=Files(str(tmp_path)),
            memory=0.2,
            needed=64,
        )
