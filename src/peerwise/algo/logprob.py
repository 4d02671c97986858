"""Log-probs of chosen tokens from hidden states, without ever holding [tokens, vocabulary].

Logits exist for one chunk of tokens at a time and are computed again in the backward pass. Whatever the model's
dtype, everything after the matrix product is float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def selected_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    bias: Tensor | None = None,
    softcap: float | None = None,
    temperature: float = 1.0,
    chunk: int = 1024,
) -> tuple[Tensor, Tensor]:
    """log softmax(logits / temperature) at the targets, with logits = softcap(hidden @ weight.T + bias).

    Args:
        hidden: [M, hidden] the state that predicts each target (already shifted by one).
        weight: [V, hidden]; bias: [V] or None.
        targets: [M] int64.
        softcap: logits become tanh(logits / softcap) * softcap; None leaves them.
        temperature: > 0.
        chunk: tokens whose logits exist at one time.
    Returns:
        logprobs [M] float32, and entropies [M] float32 in nats; both carry gradients.
    """
    if temperature <= 0:
        raise ValueError(f"temperature must be positive, got {temperature}")
    arguments = (hidden, weight, targets, bias, softcap, temperature, chunk)
    logprobs, entropies = _SelectedLogprobs.apply(*arguments)  # type: ignore[no-untyped-call]
    return logprobs, entropies


def _chunk_logits(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, softcap: float | None, temperature: float
) -> tuple[Tensor, Tensor | None]:
    """[C, hidden] -> tempered logits [C, V] float32, and the slope of the soft cap when there is one."""
    logits = torch.nn.functional.linear(hidden, weight, bias).float()
    slope = None
    if softcap is not None:
        squashed = torch.tanh(logits / softcap)
        logits, slope = squashed * softcap, 1 - squashed * squashed
    if temperature != 1.0:
        logits = logits / temperature
    return logits, slope


class _SelectedLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        bias: Tensor | None,
        softcap: float | None,
        temperature: float,
        chunk: int,
    ) -> tuple[Tensor, Tensor]:
        logprobs = torch.empty(len(targets), dtype=torch.float32, device=hidden.device)
        entropies = torch.empty_like(logprobs)
        for start in range(0, len(targets), chunk):
            part = slice(start, start + chunk)
            logits, _ = _chunk_logits(hidden[part], weight, bias, softcap, temperature)
            log_total = logits.logsumexp(-1)
            # H = -E[ln p]. As log Z - E[logit] it would lose digits where all logits are large.
            every = logits.sub_(log_total[:, None])
            logprobs[part] = every.gather(1, targets[part, None])[:, 0]
            entropies[part] = -(every.exp() * every).sum(-1)
        ctx.save_for_backward(hidden, weight, targets, bias, entropies)
        ctx.settings = (softcap, temperature, chunk)
        # A loss that leaves the entropies out costs nothing for them.
        ctx.set_materialize_grads(False)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, bias, entropies = ctx.saved_tensors
        of_logprobs, of_entropies = grads
        softcap, temperature, chunk = ctx.settings
        grad_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        # Sums over chunks are kept in float32: bfloat16 would lose the later chunks.
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        grad_bias = torch.zeros_like(bias, dtype=torch.float32) if ctx.needs_input_grad[3] else None
        for start in range(0, len(targets), chunk):
            part = slice(start, start + chunk)
            logits, slope = _chunk_logits(hidden[part], weight, bias, softcap, temperature)
            grad = logits.softmax(-1)
            from_entropies = None
            if of_entropies is not None:
                # d H / d logits = -p * (ln p + H)
                surprise = logits.log_softmax(-1).add_(entropies[part, None])
                from_entropies = surprise.mul_(grad).mul_(-(of_entropies[part] / temperature)[:, None])
            if of_logprobs is None:
                grad.zero_()
            else:
                # d logp(y) / d logits = onehot(y) - softmax
                grad.neg_()
                grad[torch.arange(len(grad), device=grad.device), targets[part]] += 1
                grad *= (of_logprobs[part] / temperature)[:, None]
            if from_entropies is not None:
                grad += from_entropies
            if slope is not None:
                grad *= slope
            if grad_bias is not None:
                grad_bias += grad.sum(0)
            grad = grad.to(weight.dtype)
            if grad_hidden is not None:
                grad_hidden[part] = grad @ weight
            if grad_weight is not None:
                grad_weight += grad.T @ hidden[part]
        return (
            grad_hidden,
            None if grad_weight is None else grad_weight.to(weight.dtype),
            None,
            None if grad_bias is None else grad_bias.to(bias.dtype),
            None,
            None,
            None,
        )
