"""How far the policy has moved from the frozen reference, estimated at the sampled tokens; and what that may cost.

Estimators: Schulman 2020, "Approximating KL divergence". All are of KL(policy || reference) at tokens the policy drew.
"""

from __future__ import annotations

from torch import Tensor

from peerwise.algo.presets import Divergence

# Where the reference is exp(10) times as likely as the policy, k3 would drown the batch with a single token; beyond, it
# stops growing. On the other side it grows no faster than the difference itself, and goes on pulling.
MAX_DIFFERENCE = 10.0


def divergence_of(kind: Divergence, logprobs: Tensor, reference: Tensor) -> Tensor:
    """[M] of the named estimator; logprobs, reference: [M] float32."""
    return {"k1": k1, "k2": k2, "k3": k3}[kind](logprobs, reference)


def k1(logprobs: Tensor, reference: Tensor) -> Tensor:
    """d = policy - reference. Unbiased, of either sign. As a loss its gradient is 0 on average: for rewards only."""
    return logprobs - reference


def k2(logprobs: Tensor, reference: Tensor) -> Tensor:
    """d^2 / 2: never negative, biased, low variance; its gradient is that of the divergence at the sampled policy."""
    return (logprobs - reference).square() / 2


def k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """exp(d) - d - 1 with d = reference - policy: never negative, 0 where both agree, unbiased (DeepSeekMath eq. 4).

    d is held at MAX_DIFFERENCE, where it has no gradient; `held` says at how many tokens.
    """
    difference = (reference - logprobs).clamp(max=MAX_DIFFERENCE)
    return difference.exp() - difference - 1


def held(kind: Divergence, logprobs: Tensor, reference: Tensor) -> int:
    """Tokens at which the estimate was held."""
    return int((logprobs + MAX_DIFFERENCE < reference).sum()) if kind == "k3" else 0


def adapted(coefficient: float, kl: float, *, target: float, rate: float, low: float, high: float) -> float:
    """The coefficient after an update that measured `kl` per token.

    Above 1.5 times the target it grows by the rate, below half of it it shrinks by the rate, in between it stays; never
    outside [low, high]. A step towards the idea of Schulman et al. 2017, section 4, in smaller steps.

    >>> round(adapted(0.04, 0.2, target=0.1, rate=0.1, low=0.001, high=0.5), 3)
    0.044
    """
    if kl > 1.5 * target:
        coefficient *= 1 + rate
    elif kl < 0.5 * target:
        coefficient *= 1 - rate
    return min(max(coefficient, low), high)
