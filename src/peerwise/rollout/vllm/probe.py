"""Whether what vLLM says is what the trained model would say: a short answer, and its log-probs by both.

Finds at once what no list of settings tells for sure: another model under the same shapes, weights that did not
arrive, layers that leave their adapter out, log-probs of another distribution, positions that are scaled otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers import PreTrainedModel

from peerwise.errors import ModelError
from peerwise.models.attention import use_attention
from peerwise.models.lora import lora_layers
from peerwise.records import Completion
from peerwise.rollout.base import Request, SamplingParams

PARAMS = SamplingParams(max_new_tokens=8, temperature=0.7)
"""A temperature other than 1 tells log-probs of the drawn distribution from those before it."""
LIMITS = {torch.float32: 0.02}
"""Largest mean difference of a token's log-prob; two float32 engines differ by about 1e-4."""
COARSE_LIMIT = 0.3
"""The same for coarser dtypes, where kernels differ in the third digit of a logit of 20."""

TOLD = 0.1
"""Size of what an adapter adds for the probe, as a share of the weights it is beside. Of SmolLM2-135M in bfloat16 an
unused one then moves log-probs by 1.5 to 2.5, rounding by 0.03 to 0.12."""


@contextmanager
def telling_adapters(model: PreTrainedModel) -> Iterator[None]:
    """Within the block every adapter adds something random to its layer, where a fresh one adds nothing, so that an
    adapter that is not used shows. A model without adapters stays as it is."""
    generator = torch.Generator().manual_seed(0)
    learned = []
    for layer in lora_layers(model):
        a, b = layer.lora_A["default"].weight.detach(), layer.lora_B["default"].weight
        # |s B A| is about std(B) s |A| sqrt(outputs) in the Frobenius norm, for B with independent entries.
        largest = layer.get_base_layer().weight.detach().float().norm() / (a.norm() * len(b) ** 0.5)
        noise = torch.randn(b.shape, generator=generator).to(b)
        learned.append((b, b.data))
        b.data = b.data + TOLD * float(largest) / layer.scaling["default"] * noise
    try:
        yield
    finally:
        for b, data in learned:
            b.data = data


def question(vocabulary: int) -> Request:
    """A prompt of ids from all over the vocabulary."""
    ids = [(7919 * (index + 1)) % vocabulary for index in range(12)]
    return Request(prompt_ids=tuple(ids), keys=(0,))


def check_answer(model: PreTrainedModel, request: Request, answer: Completion, where: str) -> None:
    """Compare an answer under PARAMS with the model's own view of it.

    Raises:
        ModelError: the log-probs differ by more than arithmetic explains.
    """
    expected = _logprobs(model, request.prompt_ids, answer.token_ids)
    given = torch.tensor(answer.logprobs)
    apart = float((given - expected).abs().mean())
    if not apart <= LIMITS.get(model.dtype, COARSE_LIMIT):
        raise ModelError(
            f"{where} does not answer as the model that is trained: log-probs of the same tokens differ by {apart:.2g} "
            "on average. It must hold the same architecture and configuration; start it with the model that is "
            "trained, without quantisation, overrides or --lora-target-modules"
        )


def _logprobs(model: PreTrainedModel, prompt: tuple[int, ...], answer: tuple[int, ...]) -> torch.Tensor:
    """[T] of the answer's tokens at the temperature of PARAMS."""
    training = model.training
    model.eval()
    try:
        with torch.inference_mode(), use_attention(model, "sdpa" if model._supports_sdpa else "eager"):
            ids = torch.tensor([[*prompt, *answer]], device=model.device)
            logits = model(ids).logits[0, len(prompt) - 1 : -1].float()
            logprobs = (logits / PARAMS.temperature).log_softmax(-1)
            chosen: torch.Tensor = logprobs.gather(1, ids[0, len(prompt) :, None])[:, 0]
            return chosen.cpu()
    finally:
        model.train(training)
