"""Named methods, as points in the space that `advantage`, `policy` and `aggregate` span."""

from __future__ import annotations

from dataclasses import dataclass

from peerwise.algo.advantage import Scale
from peerwise.algo.aggregate import Aggregation


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A complete choice of one value on every axis."""

    scale: Scale
    aggregation: Aggregation
    clip_low: float
    clip_high: float
    kl_coefficient: float


PRESETS: dict[str, Method] = {
    # DeepSeekMath (Shao et al. 2024), eq. 3 and 4; beta as in its section 4.2, the clip range of PPO.
    "grpo": Method(scale="group", aggregation="sequence", clip_low=0.2, clip_high=0.2, kl_coefficient=0.04),
    # Understanding R1-Zero-Like Training (Liu et al. 2025), section 3.2: no division by the group's standard
    # deviation, none by the answer's length; no KL.
    "dr_grpo": Method(scale="none", aggregation="fixed", clip_low=0.2, clip_high=0.2, kl_coefficient=0.0),
}
