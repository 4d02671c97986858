"""Pins compiled attention over a packed row, and its gradients, to the definition in float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from peerwise.kernels import kernels_for
from peerwise.models.attention import AttentionRule
from peerwise.models.row_attention import RowAttention, row_kernels
from peerwise.models.shared_prompt import SharedPromptAttention

pytestmark = pytest.mark.skipif(
    kernels_for(torch.zeros(1, dtype=torch.bfloat16), 32) is None,
    reason="no C compiler, or a processor without AVX-512 BF16",
)
Lengths = list[tuple[int, list[int]]]


def _seen(lengths: Lengths, window: int | None) -> Tensor:
    """[N, N], pair by pair from who each token is: group, answer (None: prompt) and position."""
    tokens: list[tuple[int, int | None, int]] = []
    for group, (prompt, answers) in enumerate(lengths):
        tokens += [(group, None, p) for p in range(prompt)]
        tokens += [(group, answer, prompt + t) for answer, length in enumerate(answers) for t in range(length)]

    def sees(one: tuple[int, int | None, int], other: tuple[int, int | None, int]) -> bool:
        related = one[0] == other[0] and other[1] in (None, one[1])
        return related and 0 <= one[2] - other[2] < (window or len(tokens) + 1)

    return torch.tensor([[sees(one, other) for other in tokens] for one in tokens])


def _exact(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, scale: float) -> Tensor:
    repeat = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(repeat, 1) for x in (k, v))
    return (q @ k.transpose(2, 3) * scale).masked_fill(~seen, float("-inf")).softmax(-1) @ v


def _random(heads: int, tokens: int, size: int, seed: int, *, by_token: bool = True) -> Tensor:
    shape = (1, tokens, heads, size) if by_token else (1, heads, tokens, size)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()
    return (x.transpose(1, 2) if by_token else x).requires_grad_()


def _assert_right(lengths: Lengths, heads: tuple[int, int], size: int, window: int | None, by_token: bool) -> None:
    tokens = sum(prompt + sum(answers) for prompt, answers in lengths)
    q, k, v = (_random(n, tokens, size, s, by_token=by_token) for s, n in enumerate((heads[0], heads[1], heads[1])))
    grad = _random(heads[0], tokens, size, 3).detach()
    rule = AttentionRule(size**-0.5, window, None)
    kernels = row_kernels(q, v, rule)
    assert kernels is not None
    out = RowAttention(lengths).attend(kernels, q, k, v, rule)
    found = (out, *torch.autograd.grad(out, (q, k, v), grad))
    exact = tuple(x.detach().double().requires_grad_() for x in (q, k, v))
    expected = _exact(*exact, _seen(lengths, window), rule.scale)
    gradients = torch.autograd.grad(expected, exact, grad.double())
    for name, a, b in zip("oqkv", found, (expected, *gradients), strict=True):
        # Scores, weights and slopes are rounded to 8 bits on the way: relative to the whole, not to each number.
        error = (a.double() - b).norm() / (b.norm() + 1e-3 * grad.double().norm())
        assert float(error) < 0.01, (name, float(error))
        assert a.shape == b.shape


@settings(deadline=None, max_examples=25)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 90), st.lists(st.integers(1, 80), max_size=4)), min_size=1, max_size=3),
    heads=st.sampled_from([(1, 1), (3, 1), (4, 2), (9, 3)]),
    size=st.sampled_from([32, 64, 96, 128]),
    window=st.sampled_from([None, None, 2, 5, 70]),
    by_token=st.booleans(),
)
def test_values_and_gradients_are_those_of_the_definition(lengths, heads, size, window, by_token):
    _assert_right(lengths, heads, size, window, by_token)


@pytest.mark.parametrize("length", [63, 64, 65, 200])
def test_prompts_and_answers_may_end_anywhere_in_a_block(length):
    _assert_right([(length, [length, 1, length + 1]), (1, [2]), (3, [])], (2, 1), 64, None, True)


def test_a_packed_row_takes_it_and_a_soft_cap_or_float32_does_not(monkeypatch):
    lengths, calls = [(3, [2, 4])], []
    monkeypatch.setattr(RowAttention, "attend", lambda self, kernels, q, *rest: calls.append(1) or q)
    for dtype, softcap, taken in ((torch.bfloat16, None, 1), (torch.bfloat16, 5.0, 0), (torch.float32, None, 0)):
        q, k, v = (_random(n, 9, 32, n).detach().to(dtype) for n in (2, 1, 1))
        calls.clear()
        SharedPromptAttention(lengths, q.device).attend(0, q, k, v, AttentionRule(1.0, None, softcap))
        assert len(calls) == taken
