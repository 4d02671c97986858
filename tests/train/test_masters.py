"""Pins master weights: a float32 number and its bfloat16 rounding with 16 more bits are the same, piece by piece."""

from __future__ import annotations

import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from peerwise.train import masters
from peerwise.train.masters import MasterWeights, joined, split

BITS = st.integers(0, 2**32 - 1)


def number(bits: int) -> float:
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def halves(values: Tensor) -> tuple[Tensor, Tensor]:
    upper, rest = torch.empty_like(values, dtype=torch.bfloat16), torch.empty_like(values, dtype=torch.int16)
    split(values, upper, rest)
    return upper, rest


@given(bits=st.lists(BITS, min_size=1, max_size=40))
def test_every_float32_comes_back_bit_by_bit(bits: list[int]) -> None:
    # Infinities, denormal numbers, both zeros and numbers that are none are among these.
    signed = [b - 2**32 if b >= 2**31 else b for b in bits]
    values = torch.tensor(signed, dtype=torch.int32).view(torch.float32)
    assert joined(*halves(values)).view(torch.int32).tolist() == signed


@given(bits=st.lists(BITS.filter(lambda b: b & 0xFFFF != 0x8000 and b >> 23 & 0xFF != 0xFF), min_size=1, max_size=40))
def test_the_upper_half_is_what_torch_rounds_to(bits: list[int]) -> None:
    values = torch.tensor([number(b) for b in bits])
    assert torch.equal(halves(values)[0], values.bfloat16())


def test_a_number_halfway_between_two_goes_away_from_zero() -> None:
    # bfloat16 has 1, 1 + 1/128 and 1 + 2/128 = 1.015625 here; torch would take the even 1 and 1.015625.
    values = torch.tensor([1 + 1 / 256, -(1 + 1 / 256), 1 + 3 / 256])
    assert halves(values)[0].tolist() == [1.0078125, -1.0078125, 1.015625]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [4, 6, 24, 100])
def test_changes_piece_by_piece_are_those_of_the_whole(dtype: torch.dtype, size: int, monkeypatch) -> None:
    monkeypatch.setattr(masters, "_piece_size", lambda device: size)
    model = nn.Linear(5, 4, bias=False).to(dtype)
    weights = MasterWeights(model)
    before = weights.values()["weight"].clone()
    seen = []
    for place, values in weights.pieces("weight"):
        seen.append((place.start, place.stop))
        values += torch.arange(place.start, place.stop) * 1e-3
    assert [stop - start for start, stop in seen] == [size] * (20 // size) + [20 % size] * bool(20 % size)
    expected = before + (torch.arange(20) * 1e-3).view(4, 5)
    assert torch.equal(weights.values()["weight"], expected)
    assert torch.equal(model.weight, expected.to(dtype))


def test_a_bfloat16_master_takes_two_bytes_beside_its_parameter() -> None:
    weights = MasterWeights(nn.Linear(5, 4, bias=False).bfloat16())
    assert [rest.nbytes for rest in weights._rests.values()] == [40]
