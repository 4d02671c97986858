"""Pins how a token is drawn: where the cumulative distribution passes the uniform number, from the tempered and
truncated distribution, with the log-prob of the distribution it was drawn from."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from peerwise.rollout.native.sampler import BLOCK, FIRST_TOP, draw

ALMOST_ONE = math.nextafter(1.0, 0.0)
"""The largest number a uniform generator on [0, 1) can give."""


def draw_each(logits: torch.Tensor, points: list[float], **how: float) -> tuple[list[int], list[float]]:
    """The same logits [V] once for each uniform number."""
    tokens, logprobs = draw(
        logits.float().expand(len(points), -1).contiguous(), torch.tensor(points, dtype=torch.float64), **how
    )
    assert (tokens.dtype, logprobs.dtype) == (torch.int64, torch.float32)
    return tokens.tolist(), logprobs.tolist()


def log_of(probabilities: list[float]) -> torch.Tensor:
    return torch.tensor(probabilities, dtype=torch.float64).log()


def spread(count: int, seed: int) -> list[float]:
    return np.random.default_rng(seed).random(count).tolist()


def test_the_token_is_where_the_cumulative_distribution_passes_the_uniform_number():
    # Probabilities 0.1, 0.2, 0.3, 0.4 fill [0, 0.1), [0.1, 0.3), [0.3, 0.6), [0.6, 1).
    points = [0.0, 0.0999, 0.1001, 0.2999, 0.3001, 0.5999, 0.6001, ALMOST_ONE]
    tokens, logprobs = draw_each(log_of([0.1, 0.2, 0.3, 0.4]), points, temperature=1.0)
    assert tokens == [0, 0, 1, 1, 2, 2, 3, 3]
    expected = [math.log(p) for p in (0.1, 0.1, 0.2, 0.2, 0.3, 0.3, 0.4, 0.4)]
    assert logprobs == pytest.approx(expected, abs=1e-6)


def test_a_shift_of_all_logits_changes_nothing():
    logits = log_of([0.1, 0.2, 0.3, 0.4])
    points = [0.05, 0.2, 0.45, 0.8]
    tokens, logprobs = draw_each(logits, points, temperature=1.0)
    for shift in (-500.0, 500.0):
        moved, moved_logprobs = draw_each(logits + shift, points, temperature=1.0)
        assert moved == tokens
        # float32 holds 500 + x to about 3e-5.
        assert moved_logprobs == pytest.approx(logprobs, abs=1e-4)


def test_temperature_divides_the_logits():
    # Logits 2 and 0 at T = 0.5 are 4 and 0: log p = -log(1 + e^-4) = -0.01815 and -4.01815. The first token holds
    # 0.98201 of the line.
    tokens, logprobs = draw_each(torch.tensor([2.0, 0.0]), [0.9819, 0.9821], temperature=0.5)
    assert tokens == [0, 1]
    assert logprobs == pytest.approx([-0.01815, -4.01815], abs=1e-5)


def test_temperature_zero_takes_the_likeliest_token_with_its_untempered_logprob():
    # 1 / (1 + e^-1 + e^-2) = 0.66524; its log is -0.40761.
    for point in (0.0, 0.5, ALMOST_ONE):
        tokens, logprobs = draw_each(torch.tensor([1.0, 2.0, 0.0]), [point], temperature=0.0, top_p=0.5, top_k=2)
        assert tokens == [1]
        assert logprobs == pytest.approx([-0.40761], abs=1e-5)


# The likeliest first: token 2 (0.5), token 0 (0.25), token 3 (0.15), token 1 (0.1).
FOUR = log_of([0.25, 0.1, 0.5, 0.15])


@pytest.mark.parametrize(
    ("how", "kept"),
    [
        ({"top_k": 1}, {2: 1.0}),
        ({"top_k": 2}, {2: 2 / 3, 0: 1 / 3}),
        ({"top_k": 3}, {2: 5 / 9, 0: 2.5 / 9, 3: 1.5 / 9}),
        ({"top_k": 9}, {2: 0.5, 0: 0.25, 3: 0.15, 1: 0.1}),
        # A token stays when those before it do not yet cover top_p: 0, 0.5, 0.75 and 0.9 stand before the four.
        ({"top_p": 0.001}, {2: 1.0}),
        ({"top_p": 0.49}, {2: 1.0}),
        ({"top_p": 0.51}, {2: 2 / 3, 0: 1 / 3}),
        ({"top_p": 0.74}, {2: 2 / 3, 0: 1 / 3}),
        ({"top_p": 0.76}, {2: 5 / 9, 0: 2.5 / 9, 3: 1.5 / 9}),
        ({"top_p": 0.91}, {2: 0.5, 0: 0.25, 3: 0.15, 1: 0.1}),
        # The nucleus is taken of what top_k left, renormalised: 5/9 = 0.556 alone covers 0.55, 0.5 would not.
        ({"top_k": 3, "top_p": 0.55}, {2: 1.0}),
        ({"top_k": 3, "top_p": 0.6}, {2: 2 / 3, 0: 1 / 3}),
        # At T = 0.5 the probabilities are as 0.25, 0.0625, 0.0225, 0.01 (sum 0.345): the first alone has 0.7246.
        ({"temperature": 0.5, "top_p": 0.72}, {2: 1.0}),
        ({"temperature": 0.5, "top_p": 0.73}, {2: 0.8, 0: 0.2}),
    ],
)
def test_truncation_keeps_the_right_tokens_and_renormalises_their_logprobs(how, kept):
    points = [(i + 0.5) / 400 for i in range(400)]
    tokens, logprobs = draw_each(FOUR, points, **{"temperature": 1.0, **how})
    assert set(tokens) == set(kept)
    for token, logprob in zip(tokens, logprobs, strict=True):
        assert logprob == pytest.approx(math.log(kept[token]), abs=1e-5)
    for token, probability in kept.items():
        # 400 evenly spaced numbers hit an interval of length p in 400 p places, give or take one.
        assert abs(tokens.count(token) - 400 * probability) <= 1.01


def test_a_nucleus_wider_than_the_first_look_is_found_whole():
    # 1000 equal tokens: the 500th has 0.499 before it, the 501st 0.5, so 0.4995 keeps exactly 500.
    size, wanted = 1000, 500
    assert wanted > FIRST_TOP
    tokens, logprobs = draw_each(
        torch.zeros(size), [(i + 0.5) / 2000 for i in range(2000)], temperature=1.0, top_p=0.4995
    )
    assert len(set(tokens)) == wanted
    assert logprobs == pytest.approx([-math.log(wanted)] * len(logprobs), abs=1e-4)


def test_rows_with_nuclei_of_different_width_do_not_disturb_each_other():
    narrow = torch.zeros(1000)
    narrow[7] = 50.0
    points = torch.full((2,), 0.999, dtype=torch.float64)
    tokens, logprobs = draw(torch.stack([narrow, torch.zeros(1000)]), points, temperature=1.0, top_p=0.4995)
    assert tokens[0] == 7
    assert logprobs.tolist() == pytest.approx([0.0, -math.log(500)], abs=1e-4)


@pytest.mark.parametrize("how", [{}, {"top_p": 0.9}, {"top_k": 5}, {"top_p": 0.9, "top_k": 5, "min_p": 0.1}])
def test_off_the_cpu_nothing_asks_for_a_number_before_all_is_done(how):
    # Tensors of the meta device have shapes and no numbers: asking one for its truth or value raises.
    logits, points = torch.empty(3, 1000, device="meta"), torch.empty(3, dtype=torch.float64, device="meta")
    tokens, logprobs = draw(logits, points, temperature=0.7, **how)
    assert tokens.shape == logprobs.shape == (3,)


@pytest.mark.parametrize("size", [1, 5, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 3 * BLOCK + 77])
def test_one_hot_logits_give_their_token_with_certainty_at_any_vocabulary_size(size):
    for hot in {0, size // 2, size - 1}:
        logits = torch.full((size,), -math.inf)
        logits[hot] = 3.0
        for how in ({}, {"top_p": 0.9}, {"top_k": 4}, {"temperature": 0.0}):
            tokens, logprobs = draw_each(logits, [0.0, 0.5, ALMOST_ONE], **{"temperature": 1.0, **how})
            assert tokens == [hot] * 3
            assert logprobs == [0.0] * 3


logits_with_holes = st.integers(1, 3 * BLOCK + 5).flatmap(
    lambda size: st.tuples(
        st.just(size), st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.5, 0.99]), st.sampled_from([0.3, 1.0, 30.0])
    )
)


def made(size: int, seed: int, holes: float, scale: float) -> torch.Tensor:
    """Random logits [size], a share of them -inf, at least one finite."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=size) * scale
    logits[(rng.random(size) < holes) & (np.arange(size) != rng.integers(size))] = -np.inf
    return torch.from_numpy(logits).float()


@given(logits_with_holes, st.sampled_from([{}, {"top_k": 3}, {"top_p": 0.5}, {"top_k": 70, "top_p": 0.99}]))
def test_no_uniform_number_gives_a_token_of_zero_probability(shape, truncation):
    logits = made(*shape)
    points = [0.0, 5e-324, 2**-53, 0.5, 1 - 2**-30, ALMOST_ONE]
    tokens, logprobs = draw_each(logits, points, temperature=1.0, **truncation)
    for token, logprob in zip(tokens, logprobs, strict=True):
        assert 0 <= token < len(logits)
        assert torch.exp(logits[token] - logits.max()) > 0
        assert math.isfinite(logprob)
        assert logprob <= 0


def test_sums_that_round_apart_never_point_past_the_last_token():
    # Masses of very different size make the sum over blocks and the sum within one differ in the last bit, and the
    # largest uniform number falls into that gap; behind it stand tokens that cannot be.
    size, count = 2 * BLOCK, 500
    rng = np.random.default_rng(0)
    logits = torch.from_numpy(rng.normal(size=(count, size)) * 12).float()
    logits[:, BLOCK + 200 :] = -math.inf
    tokens, logprobs = draw(logits, torch.full((count,), ALMOST_ONE, dtype=torch.float64), temperature=1.0)
    assert int(tokens.max()) < BLOCK + 200
    assert torch.isfinite(logprobs).all()


@given(logits_with_holes, st.floats(0, ALMOST_ONE), st.sampled_from([0.25, 1.0, 2.0]))
def test_a_drawn_token_is_that_of_a_plain_float64_inverse_cdf(shape, point, temperature):
    logits = made(*shape)
    probabilities = (logits.double() / temperature).softmax(0)
    edges = torch.cat([torch.zeros(1, dtype=torch.float64), probabilities.cumsum(0)])
    (token,), (logprob,) = draw_each(logits, [point], temperature=temperature)
    # Masses are float32, so an edge may lie a little off: 1e-6 is ten times the rounding of one exponential.
    assert edges[token] - 1e-6 <= point <= edges[token + 1] + 1e-6
    # Below the normal range of float32 a mass has few digits, down to one.
    normal = probabilities[token] > 2.0**-126
    assert logprob == pytest.approx(math.log(probabilities[token]), abs=1e-4 if normal else 0.7)


@given(st.integers(0, 2**32 - 1), st.integers(2, 5))
def test_a_row_is_drawn_alike_alone_and_among_others(seed, count):
    rows = torch.stack([made(BLOCK + 60, seed + i, 0.3, 2.0) for i in range(count)])
    points = torch.tensor(spread(count, seed), dtype=torch.float64)
    for how in ({}, {"top_p": 0.8}, {"top_k": 20}):
        tokens, logprobs = draw(rows, points, temperature=0.7, **how)
        for i in range(count):
            alone = draw(rows[i : i + 1], points[i : i + 1], temperature=0.7, **how)
            assert (alone[0].item(), alone[1].item()) == (tokens[i].item(), pytest.approx(logprobs[i].item(), abs=1e-6))


def chi_square_p_value(tokens: list[int], probabilities: torch.Tensor) -> float:
    """The chance that as many draws from `probabilities` [V] would be as far off; rare tokens share one bin."""
    counts = torch.bincount(torch.tensor(tokens), minlength=len(probabilities)).double()
    expected = probabilities.double() * len(tokens)
    rare = expected < 5
    if rare.any():
        counts = torch.cat([counts[~rare], counts[rare].sum()[None]])
        expected = torch.cat([expected[~rare], expected[rare].sum()[None]])
    kept = expected > 0
    assert counts[~kept].sum() == 0
    statistic = ((counts - expected)[kept] ** 2 / expected[kept]).sum()
    freedom = torch.tensor((int(kept.sum()) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, statistic / 2))


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(1.0, 0, 1.0), (0.6, 0, 1.0), (1.5, 0, 1.0), (1.0, 25, 1.0), (1.0, 0, 0.8)]
)
def test_draws_follow_softmax(temperature, top_k, top_p):
    # The seed is fixed, so this passes always or never; over seeds a correct sampler would fail once in a million.
    size, count = BLOCK + 45, 20_000
    logits = made(size, 3, 0.1, 1.5)
    probabilities = (logits.double() / temperature).softmax(0)
    order = probabilities.argsort(descending=True)
    before = probabilities[order].cumsum(0) - probabilities[order]
    left_out = order[(before >= top_p) | (torch.arange(size) >= (top_k or size))]
    truncated = probabilities.clone()
    truncated[left_out] = 0.0
    tokens, _ = draw_each(logits, spread(count, 11), temperature=temperature, top_k=top_k, top_p=top_p)
    assert chi_square_p_value(tokens, truncated / truncated.sum()) > 1e-6
    # The same draws do not pass for those of a slightly different temperature.
    assert chi_square_p_value(tokens, (logits.double() / (1.1 * temperature)).softmax(0)) < 1e-6
