"""How far the policy has moved from the frozen reference, estimated at the sampled tokens."""

from __future__ import annotations

from torch import Tensor

# exp(20) on a single token would drown the batch; beyond this the estimate stops growing.
MAX_DIFFERENCE = 10.0


def k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """KL(policy || reference) by the k3 estimator: exp(d) - d - 1 with d = reference - policy.

    Never negative, 0 where both agree, unbiased under the policy (Schulman 2020, "Approximating KL divergence";
    DeepSeekMath eq. 4). d is clamped to +-MAX_DIFFERENCE, where it has no gradient.

    Args:
        logprobs, reference: [M] float32.
    Returns:
        [M] float32.
    """
    difference = (reference - logprobs).clamp(-MAX_DIFFERENCE, MAX_DIFFERENCE)
    return difference.exp() - difference - 1
