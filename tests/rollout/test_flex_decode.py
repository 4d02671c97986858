"""Pins how recorded steps on a GPU read answers: each to its own length and no tile further, in one softmax with the
prompt, with nothing that waits for the host or is compiled at every step. Flex attention runs here by its definition.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from drawing import NEVER, PROMPTS, asked, drawn, engine, generated, sampled_logprobs, trainer_logprobs
from hypothesis import given, settings
from hypothesis import strategies as st
from recording import Rerun, Traced, with_recorder
from torch._dynamo.backends.debugging import aot_eager
from torch.nn.attention import flex_attention as torch_flex

from dense_flex import dense_flex, seen_pairs, tiles_of, wide
from peerwise.models import flex
from peerwise.models.attention import AttentionRule
from peerwise.rollout.base import SamplingParams
from peerwise.rollout.native import graphs
from peerwise.rollout.native.attention import merged
from tiny_models import END, tiny


@settings(max_examples=100)
@given(st.integers(0, 10_000), st.integers(1, 40), st.integers(1, 40), st.integers(0, 40))
def test_two_parts_are_merged_to_the_softmax_over_both(seed, early, late, hidden):
    generator = torch.Generator().manual_seed(seed)
    # Some units wide, and up to all of the early part out of a window's sight.
    early_scores, scores = (6 * torch.randn(3, 2, n, generator=generator) for n in (early, late))
    early_scores[..., :hidden] = float("-inf")
    values, own_values = (torch.randn(3, n, 4, generator=generator) for n in (early, late))
    own = scores.softmax(-1) @ own_values
    weights, share = merged(early_scores, scores.logsumexp(-1))
    together = torch.cat([early_scores, scores], dim=-1).double().softmax(-1)
    expected = together @ torch.cat([values, own_values], dim=1).double()
    torch.testing.assert_close((weights @ values + share * own).double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(weights.sum(-1) + share[..., 0], torch.ones(3, 2), rtol=1e-5, atol=1e-5)


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 39), st.integers(0, 39)), min_size=1, max_size=5), st.sampled_from([4, 8, 64]))
def test_a_branch_reads_the_tiles_from_its_first_key_to_its_last(pairs, tile):
    first, last = (torch.tensor(column, dtype=torch.int32) for column in zip(*map(sorted, pairs), strict=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flex, "TILE", tile)
        blocks = flex.slot_blocks(first, last, room=40, queries=3)
    at = torch.arange(40)
    expected = (at >= first[:, None]) & (at <= last[:, None])
    assert torch.equal(seen_pairs(blocks, len(first)), expected[:, None, None].expand(-1, 1, 3, -1))
    padded = torch.nn.functional.pad(expected, (0, -40 % tile)).unflatten(1, (-1, tile)).any(-1)
    assert torch.equal(tiles_of(blocks.kv_num_blocks, blocks.kv_indices)[:, 0, 0], padded)


@pytest.fixture
def on_flex(monkeypatch):
    """Prompts and answers go through flex attention, in tiles of 8; what it was called with, by number of branches."""
    calls: list[int] = []

    def counted(q, *given, **how):
        if "return_aux" in how:
            calls.append(len(q))
        return dense_flex(q, *given, **how)

    for module, name, value in (
        (flex, "serves", lambda q, v: True),
        (flex, "TILE", 8),
        (flex, "kernel", lambda: counted),
        (graphs, "WARM_UP", 1),
        (graphs, "LEAST_BRANCHES", 2),
        (graphs, "LEAST_TOKENS", 16),
    ):
        monkeypatch.setattr(module, name, value)
    return calls


@pytest.mark.parametrize("name", ["llama", "gemma2", "mistral", "gpt_neox"])
def test_greedy_ids_are_those_of_generate(name, on_flex):
    model, recorder = tiny(name), Traced()
    ends = [END, 11, 40]
    params = SamplingParams(max_new_tokens=12, temperature=0.0)
    found = drawn(with_recorder(model, recorder, ends, max_branches=5), asked(PROMPTS, 3), params)
    assert found == [[tuple(generated(model, prompt, 12, ends))] * 3 for prompt in PROMPTS]
    assert recorder.replays > recorder.records > 0
    assert {2, 5} <= set(on_flex) <= {2, 4, 5}


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2"])
def test_long_answers_of_uneven_length_have_the_trainers_logprobs(name, on_flex):
    model, requests = tiny(name), asked(PROMPTS, 3)
    answers = with_recorder(model, Traced(), range(0, 97, 20), max_branches=5).generate(
        requests, SamplingParams(max_new_tokens=30)
    )
    assert len({len(answer.token_ids) for of_request in answers for answer in of_request}) > 3
    assert sampled_logprobs(answers) == pytest.approx(trainer_logprobs(model, requests, answers, 1.0), abs=1e-4)
    assert on_flex


def test_a_step_that_is_not_recorded_uses_products(on_flex):
    # Its number of branches is that of this step, and kernels would be compiled for each.
    model = tiny("llama")
    params = SamplingParams(max_new_tokens=12, temperature=0.0)
    found = drawn(engine(model, [END, 11], max_branches=5), asked(PROMPTS, 3), params)
    assert found == [[tuple(generated(model, prompt, 12, [END, 11]))] * 3 for prompt in PROMPTS]
    assert not on_flex


def test_where_its_kernels_cannot_be_compiled_sampling_goes_on_with_products(on_flex, monkeypatch, caplog):
    def failing(*given: Any, **how: Any) -> Any:
        if "return_aux" in how:
            raise RuntimeError("out of resource: shared memory")
        return dense_flex(*given, **how)

    monkeypatch.setattr(flex, "kernel", lambda: failing)
    model, recorder = tiny("gemma2"), Rerun()
    params = SamplingParams(max_new_tokens=12, temperature=0.0)
    with caplog.at_level(logging.WARNING):
        found = drawn(with_recorder(model, recorder, [END, 11], max_branches=5), asked(PROMPTS, 3), params)
    assert found == [[tuple(generated(model, prompt, 12, [END, 11]))] * 3 for prompt in PROMPTS]
    (said,) = [record.message for record in caplog.records if record.name == graphs.__name__]
    assert "out of resource" in said
    assert recorder.replays == 0


def test_torch_compiles_once_for_a_number_of_branches_whatever_lengths_room_and_window(monkeypatch):
    made: list[list[tuple[int, ...]]] = []

    def counting(graph: Any, inputs: Any) -> Any:
        made.append([tuple(x.shape) for x in inputs if isinstance(x, torch.Tensor)])
        return aot_eager(graph, inputs)

    compile_ = torch.compile
    with monkeypatch.context() as patch:
        patch.setattr(torch, "compile", lambda *given, **how: compile_(*given, **how, backend=counting))
        program = flex.kernel.__wrapped__()
    monkeypatch.setattr(flex, "kernel", lambda: program)
    torch.manual_seed(0)
    k, v = (torch.randn(16, 2, 2048, 16) for _ in range(2))

    def attend(n: int, room: int, window: int | None) -> int:
        before = len(made)
        q, last = torch.randn(n, 2, 3, 16), torch.randint(0, room, (n,), dtype=torch.int32)
        first = torch.zeros_like(last) if window is None else (last + 1 - window).clamp(min=0)
        blocks = flex.slot_blocks(first, last, room, queries=3)
        arguments = q, k[:n, :, :room], v[:n, :, :room], blocks, AttentionRule(0.3, window, None)
        found = flex.attend_slots(*arguments)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(flex, "kernel", lambda: dense_flex)
            expected = flex.attend_slots(*arguments)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        return len(made) - before

    try:
        with torch.inference_mode():
            assert attend(8, 384, None) > 0
            # The number of branches is known to the program, which a kernel needs that shares keys among processors.
            assert made[-1][0] == (8, 2, 3, 16)
            assert [attend(8, room, window) for room in (512, 1024, 1500) for window in (None, 100)] == [0] * 6
            assert attend(16, 640, None) > 0
            assert [attend(8, 768, 9), attend(16, 1024, 700)] == [0, 0]
    finally:
        torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_the_definition_used_here_is_torchs(softcap):
    torch.manual_seed(2)
    last = torch.tensor([0, 5, 30], dtype=torch.int32)
    blocks = flex.slot_blocks((last - 9).clamp(min=0), last, room=32, queries=2)
    q, k, v = torch.randn(3, 2, 2, 16), torch.randn(3, 2, 32, 16), torch.randn(3, 2, 32, 16)
    found = []
    for kernel in (torch_flex.flex_attention, dense_flex):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(flex, "kernel", lambda kernel=kernel: kernel)
            found.append(flex.attend_slots(q, k, v, blocks, AttentionRule(0.6, 10, softcap)))
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ["llama", "gemma2", "mistral"])
def test_on_a_gpu_greedy_ids_are_those_of_generate(name, caplog, monkeypatch):
    model, calls, original = wide(name), [], flex.attend_slots
    monkeypatch.setattr(flex, "attend_slots", lambda *given: calls.append(1) or original(*given))
    expected = [[tuple(generated(model, prompt, 300, [END, NEVER]))] * 5 for prompt in PROMPTS]
    with caplog.at_level(logging.WARNING):
        made = engine(model.to("cuda"), [END, NEVER], max_branches=20)
        assert drawn(made, asked(PROMPTS, 5), SamplingParams(max_new_tokens=300, temperature=0.0)) == expected
    assert calls
    assert not [record for record in caplog.records if record.name == graphs.__name__]
