"""Pins log-probs, entropies and their gradients from compiled tiles of logits to float64 arithmetic."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from peerwise.algo.logprob import selected_logprobs
from peerwise.kernels import kernels_for

KERNELS = kernels_for(torch.zeros(1, dtype=torch.bfloat16), 32)
pytestmark = pytest.mark.skipif(KERNELS is None, reason="no C compiler, or a processor without AVX-512 BF16")


def _random(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale).bfloat16()


def _logprobs(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    lnp = torch.log_softmax(logits / temperature, -1)
    return lnp.gather(1, targets[:, None])[:, 0], -(lnp.exp() * lnp).sum(-1)


@settings(deadline=None, max_examples=30)
@given(
    words=st.integers(1, 150),
    cuts=st.lists(st.integers(1, 149), max_size=3),
    scale=st.sampled_from([0.1, 3.0, 40.0]),
    temperature=st.sampled_from([1.0, 0.6, 2.0]),
)
def test_sums_over_tiles_are_those_of_all_logits(words, cuts, scale, temperature):
    logits, targets = _random(5, words, scale=scale), torch.randint(words, (5,))
    sums = torch.zeros(4, 5)
    sums[0] = float("-inf")
    edges = [0, *sorted({cut for cut in cuts if cut < words}), words]
    for start, end in pairwise(edges):
        KERNELS.logits_sums(logits[:, start:end].contiguous(), temperature, targets, start, sums)
    top, total, moment, chosen = sums.double()
    logprobs, entropies = _logprobs(logits.double(), targets, temperature)
    torch.testing.assert_close(chosen - top - total.log(), logprobs, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(total.log() - moment / total, entropies, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("asked", ["logprobs", "entropies", "both"])
def test_the_gradient_by_a_tile_is_that_of_the_definition(asked, temperature):
    logits, targets = _random(6, 100, scale=2.0), torch.tensor([0, 99, 50, 33, 34, 66])
    weights = torch.randn(2, 6, generator=torch.Generator().manual_seed(4))
    if asked != "both":
        weights[asked == "logprobs"] = 0
    exact = logits.double().requires_grad_()
    logprobs, entropies = _logprobs(exact, targets, temperature)
    expected = torch.autograd.grad((weights.double() * torch.stack([logprobs, entropies])).sum(), exact)[0]
    log_sums = torch.logsumexp(exact / temperature, -1).float().detach()
    for tile in (slice(0, 34), slice(34, 100)):
        found = logits[:, tile].contiguous()
        KERNELS.logits_gradient(
            *(found, temperature, targets, tile.start),
            log_sums=log_sums,
            of_logprobs=weights[0] / temperature,
            of_entropies=None if asked == "logprobs" else weights[1] / temperature,
            entropies=None if asked == "logprobs" else entropies.float().detach(),
        )
        torch.testing.assert_close(found.double(), expected[:, tile], rtol=2**-7, atol=1e-5)


def test_log_probs_from_hidden_states_have_their_values_and_gradients():
    hidden, weight = _random(40, 64), _random(333, 64, seed=1, scale=0.3)
    bias, targets = _random(333, seed=2), torch.arange(40) * 8
    along = torch.randn(2, 40, generator=torch.Generator().manual_seed(3))

    def gradients(dtype: torch.dtype) -> tuple[Tensor, ...]:
        leaves = tuple(x.to(dtype).requires_grad_() for x in (hidden, weight, bias))
        if dtype == torch.bfloat16:
            found = selected_logprobs(
                leaves[0], leaves[1], targets, bias=leaves[2], temperature=0.8, chunk=16, columns=100
            )
        else:
            found = _logprobs(leaves[0] @ leaves[1].T + leaves[2], targets, 0.8)
        loss = (torch.stack(found) * along.to(found[0].dtype)).sum()
        return (*found, *torch.autograd.grad(loss, leaves))

    for a, b in zip(gradients(torch.bfloat16), gradients(torch.float64), strict=True):
        # Logits are rounded to 8 bits, and so is their gradient.
        assert float(((a.double() - b).norm() / b.norm()).detach()) < 0.02
