"""Pins what a GPU's attention over a packed row is told: who sees whom, in which tiles, and that nothing is compiled
again for another length. No GPU is needed: flex attention runs here by its definition, and as torch traces it.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._dynamo.backends.debugging import aot_eager
from torch.nn.attention import flex_attention as torch_flex

from dense_flex import dense_flex, seen_pairs, tiles_of, wide
from peerwise.models import flex
from peerwise.models.attention import AttentionRule
from peerwise.models.forward import PackedGroup, completion_logprobs, packed_forward
from peerwise.models.shared_prompt import SharedPromptAttention
from tiny_models import CONFIGS, tiny

Lengths = Sequence[tuple[int, Sequence[int]]]

CPU = torch.device("cpu")
WINDOWED = ["llama", "gemma2", "mistral"]
"""Without a window; with one in every second layer, and soft caps; with one in every layer."""


def visible(lengths: Lengths, window: int | None) -> Tensor:
    """[N, N] bool, pair by pair: same group, not later in the row, of the prompt or of the same answer, near enough."""
    tokens = []  # group, answer (0 is the prompt), position
    for group, (prompt, answers) in enumerate(lengths):
        tokens += [(group, 0, position) for position in range(prompt)]
        for number, answer in enumerate(answers, 1):
            tokens += [(group, number, prompt + t) for t in range(answer)]
    seen = torch.zeros(len(tokens), len(tokens), dtype=torch.bool)
    for i, (group, answer, position) in enumerate(tokens):
        for j, (other_group, other_answer, other_position) in enumerate(tokens[: i + 1]):
            near = window is None or position - other_position < window
            seen[i, j] = group == other_group and other_answer in (0, answer) and near
    return seen


def tile_any(seen: Tensor, tile: int) -> Tensor:
    """[T, T] bool: whether any pair of a tile is seen."""
    missing = -len(seen) % tile
    padded = torch.nn.functional.pad(seen, (0, missing, 0, missing))
    return padded.unflatten(0, (-1, tile)).unflatten(2, (-1, tile)).any(3).any(1)


LENGTHS = st.lists(st.tuples(st.integers(1, 20), st.lists(st.integers(1, 12), max_size=4)), min_size=1, max_size=4)
WINDOWS = st.none() | st.integers(1, 40)


@settings(max_examples=150)
@given(LENGTHS, WINDOWS, st.sampled_from([1, 4, 8, 128]))
def test_a_token_sees_what_the_definition_says_and_just_the_tiles_where_any_does_are_listed(lengths, window, tile):
    expected = visible(lengths, window)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flex, "TILE", tile)
        blocks = SharedPromptAttention(lengths, CPU).blocks(window)
    at = torch.arange(len(expected))
    assert torch.equal(blocks.mask_mod(torch.tensor(0), torch.tensor(0), at[:, None], at), expected)
    in_part = tiles_of(blocks.kv_num_blocks, blocks.kv_indices)[0, 0]
    whole = tiles_of(blocks.full_kv_num_blocks, blocks.full_kv_indices)[0, 0]
    assert not (in_part & whole).any()
    assert torch.equal(in_part | whole, tile_any(expected, tile))
    # In whole tiles nothing is masked, so this says also that all of their pairs are seen.
    assert torch.equal(seen_pairs(blocks)[0, 0], expected)


def test_tiles_by_hand():
    # Prompt 0-3, answers 4-6 and 7-9, then a prompt 10-11, in tiles of 2.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flex, "TILE", 2)
        plan = SharedPromptAttention([(4, (3, 3)), (2, ())], CPU)
        full, near = plan.blocks(None), plan.blocks(2)
    assert rows_of(full.full_kv_num_blocks, full.full_kv_indices) == [[], [0], [0, 1], [0, 1], [0, 1], []]
    # Tokens 6 and 7 are of two answers; 8 and 9 see 7, which shares its tile with 6.
    assert rows_of(full.kv_num_blocks, full.kv_indices) == [[0], [1], [2], [2, 3], [3, 4], [5]]
    # A token and the one before it: 4 and 7 come after 3.
    assert rows_of(near.kv_num_blocks, near.kv_indices) == [[0], [0, 1], [1, 2], [1, 2, 3], [3, 4], [5]]
    assert rows_of(near.full_kv_num_blocks, near.full_kv_indices) == [[]] * 6


def rows_of(count: Tensor, which: Tensor) -> list[list[int]]:
    return [row[:n] for n, row in zip(count[0, 0].tolist(), which[0, 0].tolist(), strict=True)]


def test_a_long_row_is_tiled_without_a_mask_of_all_its_pairs():
    plan = SharedPromptAttention([(1000, (500,) * 30), (2000, (700,) * 20)], CPU)
    tracemalloc.start()
    try:
        blocks = plan.blocks(None)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    tokens = 32_000
    assert blocks.seq_lengths == (tokens, tokens)
    assert blocks.kv_indices.shape == (1, 1, 250, 250)
    # A mask of bools would be 1 GiB; what is needed are some columns of numbers and tables of tiles.
    assert peak < 20 * 2**20
    assert plan.blocks(None) is blocks


@pytest.fixture
def on_flex(monkeypatch):
    """Everything goes through flex attention, by its definition, in tiles that tiny rows have several of."""
    calls: list[tuple[int, ...]] = []

    def counted(q, *given, **how):
        calls.append(tuple(q.shape))
        return dense_flex(q, *given, **how)

    monkeypatch.setattr(flex, "serves", lambda q, v: True)
    monkeypatch.setattr(flex, "TILE", 8)
    monkeypatch.setattr(flex, "kernel", lambda: counted)
    return calls


GROUPS = [
    PackedGroup(prompt=(1, 9, 40, 41, 42, 43, 44, 45, 46), completions=((5, 6, 7, 8, 9, 10), (11,), (12, 13, 14))),
    PackedGroup(prompt=(3,), completions=((20, 21, 22, 23, 24, 25, 26, 27, 28, 29),)),
]


def logprobs_and_gradients(model: Any, groups: Sequence[PackedGroup]) -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad(set_to_none=True)
    with packed_forward(model):
        logprobs, _ = completion_logprobs(model, groups)
        (logprobs * torch.linspace(-1, 2, len(logprobs))).sum().backward()
    return logprobs.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def assert_the_same(found: tuple[Tensor, dict[str, Tensor]], expected: tuple[Tensor, dict[str, Tensor]]) -> None:
    """Log-probs to 1e-5; gradients to 1e-5 of the largest in the model, since single ones cancel to near 0."""
    torch.testing.assert_close(found[0], expected[0], rtol=1e-5, atol=1e-5)
    assert found[1].keys() == expected[1].keys()
    largest = max(float(g.abs().max()) for g in expected[1].values())
    for name, gradient in expected[1].items():
        assert float((found[1][name] - gradient).abs().max()) <= 1e-5 * largest, name


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
def test_values_and_gradients_are_those_of_group_by_group(name, checkpointing, on_flex, monkeypatch):
    model = tiny(name)
    if checkpointing:
        model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
        model.train()
    found = logprobs_and_gradients(model, GROUPS)
    assert len(on_flex) == model.config.num_hidden_layers * (1 + checkpointing)
    monkeypatch.setattr(flex, "serves", lambda q, v: False)
    assert_the_same(found, logprobs_and_gradients(model, GROUPS))


class Programs:
    """Compiles as torch does up to where a GPU's kernels would be made, and counts how often."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.made += 1
        return aot_eager(graph, inputs)


@pytest.fixture
def traced(monkeypatch):
    """Flex attention as `flex.kernel` compiles it, but for the backend; with gradients, which torch leaves to GPUs."""
    programs, compile_ = Programs(), torch.compile
    monkeypatch.setattr(flex, "serves", lambda q, v: True)
    monkeypatch.setattr(torch, "compile", lambda *given, **how: compile_(*given, **how, backend=programs))
    monkeypatch.setattr(torch_flex, "_validate_device", lambda *given: None)
    made = flex.kernel.__wrapped__()
    monkeypatch.setattr(flex, "kernel", lambda: made)
    monkeypatch.setattr(torch, "compile", compile_)
    yield programs
    torch._dynamo.reset()


@pytest.mark.parametrize("name", WINDOWED)
def test_torchs_own_flex_attention_has_the_same_values_and_gradients(name, traced, monkeypatch):
    model = tiny(name)
    found = logprobs_and_gradients(model, GROUPS)
    assert traced.made > 0
    monkeypatch.setattr(flex, "serves", lambda q, v: False)
    assert_the_same(found, logprobs_and_gradients(model, GROUPS))


def test_other_lengths_windows_and_layers_are_not_compiled_again(traced):
    torch.manual_seed(0)

    def attend(lengths: Lengths, window: int | None) -> int:
        plan, before = SharedPromptAttention(lengths, CPU), traced.made
        tokens = sum(plan.sizes)
        for layer in range(2):
            q, k, v = (torch.randn(1, heads, tokens, 16, requires_grad=True) for heads in (4, 2, 2))
            out = plan.attend(layer, q, k, v, AttentionRule(0.25, window, None))
            assert torch.equal(out, plan.attend(layer, q, k, v, AttentionRule(0.25, window, None)))
            out.sum().backward()
        return traced.made - before

    assert attend([(200, (50, 60))], None) > 0
    # Longer, shorter, a multiple of 128, no answers, many groups, a window and another.
    rows = [[(300, (200, 90, 1))], [(129, ())], [(128, (64, 64))], [(9, (30, 2))] * 7, [(400, (500,))]]
    assert [attend(row, window) for row in rows for window in (None, 16, 33)] == [0] * 15
    # A row of one tile is another program, once.
    assert attend([(20, (5, 6))], None) > 0
    assert attend([(3, (1, 1, 1))], 2) == 0


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("softcap", [None, 3.0])
def test_the_definition_used_here_is_torchs(softcap):
    torch.manual_seed(1)
    plan = SharedPromptAttention([(30, (7, 12)), (5, (20,))], CPU)
    q, k, v = torch.randn(1, 6, 74, 16), torch.randn(1, 2, 74, 16), torch.randn(1, 2, 74, 8)
    rule = AttentionRule(0.7, 11, softcap)
    found = []
    for kernel in (torch_flex.flex_attention, dense_flex):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(flex, "kernel", lambda kernel=kernel: kernel)
            found.append(flex.attend_row(q, k, v, plan.blocks(11), rule))
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)


class OnGpu(SimpleNamespace):
    is_cuda, device = True, torch.device("cuda", 0)


def heads(size: int, dtype: torch.dtype = torch.bfloat16) -> Any:
    return OnGpu(shape=(1, 8, 100, size), dtype=dtype)


@pytest.fixture
def gpu(monkeypatch):
    """`gpu(capability, triton)` makes torch see such a device."""
    flex._compiles.cache_clear()

    def make(capability: tuple[int, int] = (9, 0), triton: bool = True) -> None:
        flex._compiles.cache_clear()
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        monkeypatch.setattr(flex, "find_spec", lambda name: name if triton else None)

    monkeypatch.delenv("PEERWISE_FLEX", raising=False)
    yield make
    flex._compiles.cache_clear()


def test_gpus_that_torch_compiles_for_are_served(gpu, monkeypatch):
    gpu()
    assert flex.serves(heads(64), heads(64))
    assert flex.serves(heads(256, torch.float32), heads(256))
    assert flex.serves(heads(80), heads(16))
    monkeypatch.setenv("PEERWISE_FLEX", "off")
    assert not flex.serves(heads(64), heads(64))


def test_what_they_cannot_do_is_not(gpu):
    gpu()
    assert not flex.serves(heads(8), heads(8))
    assert not flex.serves(heads(64), heads(8))
    assert not flex.serves(heads(288), heads(288))
    assert not flex.serves(heads(64, torch.float64), heads(64))
    assert not flex.serves(torch.zeros(1, 8, 100, 64), torch.zeros(1, 8, 100, 64))
    gpu(capability=(7, 5))
    assert not flex.serves(heads(64), heads(64))
    gpu(triton=False)
    assert not flex.serves(heads(64), heads(64))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", WINDOWED)
def test_on_a_gpu_values_and_gradients_are_those_of_group_by_group(name, monkeypatch):
    model = wide(name).to("cuda")
    groups = [PackedGroup(prompt=tuple(range(4, 90)), completions=(tuple(range(5, 70)), (7, 8), tuple(range(9, 80))))]
    found = logprobs_and_gradients(model, groups * 3)
    monkeypatch.setenv("PEERWISE_FLEX", "off")
    assert_the_same(found, logprobs_and_gradients(model, groups * 3))
