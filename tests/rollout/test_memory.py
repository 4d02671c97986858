"""Pins that the cache is planned before it is made: what it may grow to is what it grows to at most, fewer answers are
decoded at one time where memory is short, the same ones come out, and no memory at all is said."""

from __future__ import annotations

import pytest
import torch
from drawing import NEVER, PROMPTS, asked, drawn, engine

import peerwise.rollout.native.engine as engine_module
from peerwise.errors import ModelError
from peerwise.rollout.base import SamplingParams
from peerwise.rollout.native import memory
from peerwise.rollout.native.cache import Cache
from tiny_models import CONFIGS, tiny

PARAMS = SamplingParams(max_new_tokens=20, temperature=1.0)
LONGEST = max(map(len, PROMPTS))


def most_held(model, monkeypatch, **how):
    """The answers, the most branches that were active, and the most bytes that the cache held."""
    held, active = [], []
    original = Cache.make_room

    def looking(self, tokens, branches):
        original(self, tokens, branches)
        stores = [t for s in (self.prompts, self.answers) for kv in (s.k, s.v) for t in kv.values()]
        held.append(sum(t.numel() * t.element_size() for t in stores))
        active.append(branches)

    monkeypatch.setattr(Cache, "make_room", looking)
    answers = drawn(engine(model, [NEVER], **how), asked(PROMPTS, 3), PARAMS)
    return answers, max(active), max(held)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_cache_grows_to_what_was_planned_and_no_further(name, monkeypatch):
    model = tiny(name)
    branches, planned = engine(model, max_branches=5).side_by_side(
        prompts=len(PROMPTS), longest_prompt=LONGEST, max_new_tokens=20
    )
    assert branches == 5
    _, active, held = most_held(model, monkeypatch, max_branches=5)
    assert active == 5
    assert held == planned


def test_a_token_takes_two_vectors_a_layer_for_each_key_value_head():
    # 2 layers, 2 key/value heads of 8 numbers, keys and values, 4 bytes each.
    config = tiny("llama").config
    numbers = config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    assert memory.token_bytes(tiny("llama")) == 2 * numbers * 4
    assert memory.token_bytes(tiny("llama").to(torch.bfloat16)) == 2 * numbers * 2


def test_where_memory_is_short_answers_wait_and_come_out_the_same(monkeypatch):
    model = tiny("llama")
    expected, active, _ = most_held(model, monkeypatch, max_branches=12)
    assert active == 12
    room = memory.cache_bytes(
        memory.token_bytes(model), branches=3, prompts=len(PROMPTS), longest_prompt=LONGEST, max_new_tokens=20
    )
    found, active, held = most_held(model, monkeypatch, max_branches=12, memory_bytes=room + 7)
    assert found == expected
    assert active == 3
    assert held <= room


def test_what_is_free_is_asked_when_nothing_is_given(monkeypatch):
    model = tiny("llama")
    room = memory.cache_bytes(
        memory.token_bytes(model), branches=2, prompts=len(PROMPTS), longest_prompt=LONGEST, max_new_tokens=20
    )
    monkeypatch.setattr(engine_module, "spare_bytes", lambda device: room)
    _, active, _ = most_held(model, monkeypatch)
    assert active == 2


def test_no_room_for_a_single_answer_is_said_with_the_sizes():
    with pytest.raises(
        ModelError, match=r"no memory for one answer: keys and values of 9 prompt tokens and 20 new ones"
    ):
        drawn(engine(tiny("llama"), memory_bytes=1000), asked(PROMPTS, 2), PARAMS)


def test_a_containers_limit_counts_less_what_can_be_dropped(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    everything = memory.spare_bytes(torch.device("cpu"))
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("700000\n")
    (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 100000\n")
    assert memory.spare_bytes(torch.device("cpu")) == 360000  # 0.9 of 1,000,000 - 700,000 + 100,000
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.spare_bytes(torch.device("cpu")) > 0.5 * everything
