"""Pins the compiled kernels to float64 arithmetic on the same numbers, and what happens where they cannot be built."""

import logging
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from peerwise.kernels import BLOCK, kernels_for
from peerwise.kernels import build as module

KERNELS = kernels_for(torch.zeros(1, dtype=torch.bfloat16), 64)
needed = pytest.mark.skipif(KERNELS is None, reason="no C compiler, or a processor without AVX-512 BF16")
ROUNDING = 2**-8
"""Half a unit in the last place of bfloat16, relative."""


def _random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


@needed
def test_the_norm_is_that_of_the_definition():
    x, weight = _random(5, 48) * 3, _random(48, seed=1)
    exact = x.double()
    exact = exact / (exact.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    torch.testing.assert_close(KERNELS.rms_norm(x, weight, 1e-5).double(), exact, rtol=2 * ROUNDING, atol=1e-6)


@needed
def test_gates_are_silu_from_far_below_0_to_far_above():
    gates = torch.cat([torch.linspace(-120, 120, 62), torch.tensor([0.0, -0.0])]).bfloat16()[None]
    values = _random(1, 64)
    exact = gates.double() / (1 + torch.exp(-gates.double())) * values.double()
    torch.testing.assert_close(KERNELS.gated(gates, values).double(), exact, rtol=2 * ROUNDING, atol=1e-30)


@needed
@pytest.mark.parametrize("rows", [1, 70])
def test_the_norms_gradients_are_those_of_the_definition(rows):
    x, weight, grad = _random(rows, 160) * 3, _random(160, seed=1), _random(rows, 160, seed=2)
    exact = x.double().requires_grad_(), weight.double().requires_grad_()
    out = exact[0] / (exact[0].square().mean(-1, keepdim=True) + 1e-5).sqrt() * exact[1]
    of_x, of_weight = torch.autograd.grad(out, exact, grad.double())
    found, sums = KERNELS.rms_norm_backward(x, weight, 1e-5, grad)
    torch.testing.assert_close(found.double(), of_x, rtol=ROUNDING, atol=1e-5)
    torch.testing.assert_close(sums.double(), of_weight, rtol=1e-5, atol=1e-5)


@needed
def test_gates_gradients_are_those_of_the_definition():
    gates = torch.linspace(-30, 30, 96).bfloat16()[None]
    values, grad = _random(1, 96), _random(1, 96, seed=2)
    exact = gates.double().requires_grad_(), values.double().requires_grad_()
    expected = torch.autograd.grad(torch.nn.functional.silu(exact[0]) * exact[1], exact, grad.double())
    out, *found = KERNELS.gated_backward(gates, values, grad)
    assert torch.equal(out, KERNELS.gated(gates, values))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=2 * ROUNDING, atol=1e-6)


@needed
def test_rotation_turns_each_pair_of_dimensions_by_its_angle_and_leaves_other_heads_alone():
    x = _random(4, 5, 64)
    angles = torch.arange(4)[:, None] * (10000.0 ** (-torch.arange(32) / 32))[None]  # [rows, D / 2]
    cos, sin = (f(torch.cat([angles, angles], dim=1)).bfloat16() for f in (torch.cos, torch.sin))
    first, second = x.double().chunk(2, dim=-1)
    c, s = cos.double()[:, None, :32], sin.double()[:, None, :32]
    expected = torch.cat([first * c - second * s, second * c + first * s], dim=-1)
    turned = x.clone()
    KERNELS.rotate(turned, 3, cos, sin)
    torch.testing.assert_close(turned[:, :3].double(), expected[:, :3], rtol=3 * ROUNDING, atol=3 * ROUNDING)
    assert torch.equal(turned[:, 3:], x[:, 3:])


def _attention(q, k, v, scale, softcap, seen):
    """One head by its definition: q [D], k and v [T, D], seen [T] -> [D], all float64."""
    scores = k @ q * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    return torch.softmax(scores.masked_fill(~seen, -math.inf), 0) @ v


@needed
@settings(deadline=None, max_examples=40)
@given(
    heads=st.sampled_from([(1, 1), (3, 1), (4, 2), (9, 3), (10, 2), (8, 1)]),
    size=st.sampled_from([32, 64, 96, 128]),
    prompts=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    answers=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 37)), min_size=1, max_size=6),
    window=st.sampled_from([0, 1, 7, 20]),
    softcap=st.sampled_from([0.0, 5.0]),
)
def test_attention_is_that_of_the_definition(heads, size, prompts, answers, window, softcap):
    h, kv = heads
    room, n, scale = 48, len(answers), size**-0.5
    prompt_k, prompt_v = ([_random(kv, p, size, seed=7 * i + s) for i, p in enumerate(prompts)] for s in (1, 2))
    own_k, own_v = ([_random(kv, t + 1, size, seed=99 * i + s) for i, (_, t) in enumerate(answers)] for s in (3, 4))
    stores = [torch.zeros(places, kv, room, size).bfloat16() for places in (len(prompts), len(prompts), n, n)]
    for place, pair in enumerate(zip(prompt_k, prompt_v, strict=True)):
        KERNELS.keep(*pair, *(store[place] for store in stores[:2]))
    for place, (pair, (_, t)) in enumerate(zip(zip(own_k, own_v, strict=True), answers, strict=True)):
        KERNELS.keep(*(x[:, :t] for x in pair), *(store[place] for store in stores[2:]))
    groups = [g % len(prompts) for g, _ in answers]
    q = _random(n, h, size, seed=5)
    out = KERNELS.attend(
        *(q, torch.stack([k[:, -1] for k in own_k]), torch.stack([v[:, -1] for v in own_v])),
        rows=tuple(
            torch.tensor(column)
            for column in (groups, list(range(n)), [prompts[g] for g in groups], [t for _, t in answers])
        ),
        prompts=(stores[0], stores[1]),
        answers=(stores[2], stores[3]),
        scale=scale,
        softcap=softcap,
        window=window,
        scratch=KERNELS.scratch(2 * room, size),
    )
    for row, group in enumerate(groups):
        k, v = (torch.cat([a[group], b[row]], 1).double() for a, b in ((prompt_k, own_k), (prompt_v, own_v)))
        here = k.shape[1] - 1
        seen = here - torch.arange(here + 1) < window if window else torch.ones(here + 1, dtype=torch.bool)
        for head in range(h):
            of = head // (h // kv)
            expected = _attention(q[row, head].double(), k[of], v[of], scale, softcap, seen)
            torch.testing.assert_close(out[row, head].double(), expected, rtol=4 * ROUNDING, atol=4 * ROUNDING)


@needed
def test_rows_of_one_answer_see_each_other_in_order():
    size, prompt = 32, _random(1, 5, 32)
    k, v, q = (_random(3, 1, size, seed=s) for s in (1, 2, 3))
    prompts = [torch.zeros(1, 1, BLOCK, size).bfloat16() for _ in range(2)]
    KERNELS.keep(prompt, prompt, *(x[0] for x in prompts))
    answers = [torch.zeros(1, 1, BLOCK, size).bfloat16() for _ in range(2)]

    def attend(first: int, last: int) -> torch.Tensor:
        rows = [[0], [0], [5]]
        columns = [torch.tensor(column * (last - first)) for column in rows] + [torch.arange(first, last)]
        return KERNELS.attend(
            *(x[first:last] for x in (q, k, v)),
            rows=columns,
            prompts=prompts,
            answers=answers,
            scale=1.0,
            softcap=0.0,
            window=0,
            scratch=KERNELS.scratch(64, size),
        )

    together = attend(0, 3)
    for store in answers:
        store.zero_()
    assert torch.equal(together, torch.cat([attend(i, i + 1) for i in range(3)]))


@needed
def test_a_prompt_is_kept_in_blocks_of_16_keys_and_pairs_of_values_whatever_its_strides():
    k, v = _random(2, 19, 32), _random(19, 2, 32, seed=1).transpose(0, 1)
    keys, values = (torch.full((2, 48, 32), 7.0).bfloat16() for _ in range(2))
    KERNELS.keep(k, v, keys, values)
    # Key of head 1, token 17, dimensions 6 and 7: block 1, pair 3, token 1 of it. Value likewise: pair 8, second token.
    assert torch.equal(keys.view(2, 3, 16, 16, 2)[1, 1, 3, 1], k[1, 17, 6:8])
    assert torch.equal(values.view(2, 24, 32, 2)[1, 8, :, 1], v[1, 17])
    # Every token in its place, and the rest as it was.
    of_keys = keys.view(2, 3, 16, 16, 2).transpose(2, 3).reshape(2, 48, 32)
    of_values = values.view(2, 24, 32, 2).transpose(2, 3).reshape(2, 48, 32)
    for found, original in ((of_keys, k), (of_values, v)):
        assert torch.equal(found[:, :19], original)
        assert bool((found[:, 19:] == 7).all())


@pytest.mark.parametrize(
    ("tensor", "size"),
    [(torch.zeros(1), 64), (torch.zeros(1, dtype=torch.bfloat16, device="meta"), 64), (_random(1), 48)],
    ids=["float32", "another device", "a head of 48"],
)
def test_what_they_cannot_do_is_left_to_torch(tensor, size):
    assert kernels_for(tensor, size) is None


def test_without_a_compiler_there_are_none_and_it_is_said(monkeypatch, caplog):
    monkeypatch.setenv("CC", "no-such-compiler")
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    with caplog.at_level(logging.WARNING):
        assert module._built.__wrapped__() is None
    assert "no C compiler" in caplog.text


def test_a_compiler_that_fails_is_quoted_and_leaves_nothing_behind(monkeypatch, caplog, tmp_path):
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho 'cannot do this' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with caplog.at_level(logging.WARNING):
        assert module._built.__wrapped__() is None
    assert "cannot do this" in caplog.text
    assert list((tmp_path / "cache" / "peerwise").iterdir()) == []
