"""Pins AdamW with moments in 8 bits to its definition in float64, and to what bitsandbytes computes."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from peerwise.kernels import CodeTable, float32_kernels

KERNELS = float32_kernels(torch.zeros(1))
pytestmark = pytest.mark.skipif(KERNELS is None, reason="no C compiler, or a processor without AVX-512 BF16")
BETAS, EPS, RATE, DECAY = (0.9, 0.99), 1e-8, 1e-2, 0.1
# Levels of unequal steps: of both signs for the mean, of one for the mean of squares.
LEVELS = torch.linspace(-1, 1, 256) ** 3, torch.linspace(0, 1, 256) ** 2

TABLES = [CodeTable(levels) for levels in LEVELS]


def start(count: int, seed: int) -> tuple[Tensor, Tensor, list[Tensor], list[Tensor]]:
    """Values, gradient, codes and scales."""
    generator = torch.Generator().manual_seed(seed)
    values, gradient = torch.randn(2, count, generator=generator)
    codes = [torch.randint(256, (count,), generator=generator, dtype=torch.uint8) for _ in range(2)]
    scales = [torch.rand(-(-count // 256), generator=generator) for _ in range(2)]
    return values, gradient, codes, scales


def move(
    values: Tensor, gradient: Tensor, codes: list[Tensor], scales: list[Tensor], tables: list[CodeTable], step: int
):
    KERNELS.adamw_in_8_bits(
        values, gradient, codes, scales, tables, step=step, rate=RATE, betas=BETAS, eps=EPS, decay=DECAY
    )


def by_definition(values: Tensor, gradient: Tensor, codes: list[Tensor], scales: list[Tensor], step: int):
    """New values, and both moments before they are rounded, in float64."""
    g, blocks = gradient.double(), torch.arange(len(values)) // 256
    m, v = (LEVELS[i].double()[codes[i].long()] * scales[i].double()[blocks] for i in range(2))
    m = BETAS[0] * m + (1 - BETAS[0]) * g
    v = BETAS[1] * v + (1 - BETAS[1]) * g * g
    unbiased = m / (1 - BETAS[0] ** step), v / (1 - BETAS[1] ** step)
    return values.double() * (1 - RATE * DECAY) - RATE * unbiased[0] / (unbiased[1].sqrt() + EPS), (m, v)


@settings(deadline=None, max_examples=30)
@given(count=st.integers(1, 1100), step=st.sampled_from([1, 2, 1000]), seed=st.integers(0, 9))
def test_values_and_moments_are_those_of_the_definition(count: int, step: int, seed: int) -> None:
    values, gradient, codes, scales = start(count, seed)
    expected, moments = by_definition(values, gradient, codes, scales, step)
    move(values, gradient, codes, scales, TABLES, step)
    torch.testing.assert_close(values.double(), expected, rtol=1e-5, atol=1e-6)
    for moment, code, scale, levels in zip(moments, codes, scales, LEVELS, strict=True):
        most = torch.stack([block.abs().max() for block in moment.split(256)])
        torch.testing.assert_close(scale.double(), most, rtol=1e-5, atol=0)
        wanted = moment / most[torch.arange(count) // 256]
        distance = (wanted[:, None] - levels.double()).abs()
        found = distance.gather(1, code.long()[:, None])[:, 0]
        # No level is nearer, but for a number that lies between two to the precision of float32.
        assert float((found - distance.min(1).values).max()) < 1e-6


def test_a_parameter_that_never_had_a_gradient_stays_as_it_is() -> None:
    values, _, codes, scales = start(300, 1)
    before = values.clone()
    scales = [torch.zeros_like(scale) for scale in scales]
    KERNELS.adamw_in_8_bits(
        values, torch.zeros(300), codes, scales, TABLES, step=1, rate=RATE, betas=BETAS, eps=EPS, decay=0.0
    )
    assert torch.equal(values, before)
    assert [scale.tolist() for scale in scales] == [[0.0, 0.0]] * 2


def test_nothing_beyond_the_end_is_touched() -> None:
    values, gradient, codes, scales = start(300, 2)
    kept = [tensor[270:].clone() for tensor in (values, *codes)]
    move(values[:270], gradient[:270], [code[:270] for code in codes], scales, TABLES, 3)
    assert all(torch.equal(tensor[270:], before) for tensor, before in zip((values, *codes), kept, strict=True))


@pytest.mark.filterwarnings("ignore")
def test_steps_are_those_of_bitsandbytes() -> None:
    functional = pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed").functional
    levels = tuple(functional.create_dynamic_map(signed=signed) for signed in (True, False))
    ours, gradient, codes, scales = start(5000, 3)
    codes, scales = [torch.zeros_like(code) for code in codes], [torch.zeros_like(scale) for scale in scales]
    theirs, other_codes, other_scales = ours.clone(), [c.clone() for c in codes], [s.clone() for s in scales]
    for step in range(1, 6):
        gradient = torch.randn(5000, generator=torch.Generator().manual_seed(step)) * math.exp(-step)
        move(ours, gradient, codes, scales, [CodeTable(row) for row in levels], step)
        functional.optimizer_update_8bit_blockwise(
            *("adam", gradient, theirs, *other_codes, *BETAS, 0.0, 0.0, EPS, step, RATE),
            *(*levels, *other_scales, DECAY),
        )
        # bitsandbytes takes a neighbour of the nearest level now and then, and a step later the scales tell.
        for one, other in zip(scales, other_scales, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-2, atol=0)
        for row, one, other in zip(levels, codes, other_codes, strict=True):
            apart = (row[one.long()] - row[other.long()]).abs()
            assert float(apart.max()) < 0.02
            assert float(apart.mean()) < 1e-4
    # Five steps move by up to 0.05.
    torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-3)
    assert float((ours - theirs).abs().mean()) < 2e-5


def test_levels_that_the_upper_bits_cannot_tell_apart_are_refused() -> None:
    # From 1 on two bfloat16 are 1/128 apart.
    with pytest.raises(ValueError, match="the same upper 16 bits"):
        CodeTable(torch.linspace(1, 1.4, 256))
