"""Named methods, as points in the space that `advantage`, `surrogate`, `divergence` and `aggregate` span.

Data only: no torch here, so that a recipe can be checked without it.

To add one: write its objective in `surrogate.py` if it is new, its row here with paper and equation, a section in
docs/algorithms.md, and a golden case worked by hand in tests/algo. Everything else reads the row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Baseline = Literal["group", "leave_one_out", "batch", "none", "critic"]
Scale = Literal["group", "batch", "none"]
Ratio = Literal["token", "sequence", "none"]
Surrogate = Literal["clip", "clipped_weight", "soft_gate", "geometric_mean"]
Divergence = Literal["k1", "k2", "k3"]
Aggregation = Literal["token", "sequence", "fixed"]
Correction = Literal["none", "truncate", "mask"]
KlPlace = Literal["loss", "reward"]
Uninformative = Literal["keep", "drop", "refill"]
Truncated = Literal["keep", "zero", "mask", "penalty"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A complete choice of one value on every axis. The defaults are GRPO's."""

    baseline: Baseline = "group"
    """What a reward is compared with."""
    scale: Scale = "group"
    """What the difference is divided by."""
    ratio: Ratio = "token"
    """What is compared with the sampling policy."""
    surrogate: Surrogate = "clip"
    """How far the ratio is followed."""
    clip_low: float = 0.2
    clip_high: float = 0.2
    """The ratio's range is (1 - clip_low, 1 + clip_high); for "geometric_mean" (exp(-clip_low), exp(clip_high))."""
    dual_clip: float | None = None
    """For "clip": a wrong token's ratio is followed up to here."""
    gate_positive: float = 1.0
    gate_negative: float = 1.05
    """Temperatures of "soft_gate" for right and wrong answers."""
    divergence: Divergence = "k3"
    kl_in: KlPlace = "loss"
    kl_coefficient: float = 0.0
    """The cost of moving away from the reference: its estimator, where it is charged, and how much."""
    aggregation: Aggregation = "sequence"
    """How per-token losses become one number."""
    correction: Correction = "none"
    """Weights for the mismatch of sampler and trainer."""
    uninformative: Uninformative = "keep"
    """Groups that are all right or all wrong: kept in the mean, left out of it, or replaced by other problems'."""
    truncated: Truncated = "keep"
    """Answers that were cut off: as they are, with a reward of 0, out of the loss, or with a growing penalty."""
    entropy_coefficient: float = 0.0
    """Bonus for entropy."""
    entropy_share: float = 1.0
    """Share of the tokens of all answers that are computed, those of highest entropy, whose objective counts."""

    @property
    def objective(self) -> dict[str, Any]:
        """The axes that say what a ratio is worth, as `policy.policy_loss` takes them."""
        names = ("clip_low", "clip_high", "ratio", "surrogate", "dual_clip", "gate_positive", "gate_negative")
        return {name: getattr(self, name) for name in names}


PRESETS: dict[str, Method] = {
    # DeepSeekMath (Shao et al. 2024), eq. 3 and 4; beta as in its section 4.2, the clip range of PPO.
    "grpo": Method(kl_coefficient=0.04),
    # Understanding R1-Zero-Like Training (Liu et al. 2025), section 3.2: no division by the group's standard
    # deviation, none by the answer's length; no KL.
    "dr_grpo": Method(scale="none", aggregation="fixed"),
    # DAPO (Yu et al. 2025): eq. 8 token mean, eq. 10 clip-higher (0.2, 0.28), eq. 11 dynamic sampling, eq. 13 soft
    # overlong punishment; no KL (section 2.3).
    "dapo": Method(clip_high=0.28, aggregation="token", uninformative="refill", truncated="penalty"),
    # GSPO (Zheng et al. 2025), eq. 5 and 7; the ranges of its section 5.1. A sequence's ratio moves far less than a
    # token's, so they are hundreds of times narrower.
    "gspo": Method(ratio="sequence", clip_low=3e-4, clip_high=4e-4),
    # CISPO (MiniMax-M1, 2025), eq. 4 and 5: no lower bound; the upper bound of 5 from ScaleRL (Khatri et al. 2025).
    "cispo": Method(surrogate="clipped_weight", clip_low=1.0, clip_high=4.0, aggregation="token"),
    # SAPO (Gao et al. 2025, arXiv 2511.20347), with the temperatures its authors recommend.
    "sapo": Method(surrogate="soft_gate"),
    # GMPO (Zhao et al. 2025, arXiv 2507.20673), token range (e^-0.4, e^0.4).
    "gmpo": Method(surrogate="geometric_mean", clip_low=0.4, clip_high=0.4),
    # RLOO (Ahmadian et al. 2024), eq. 9: the whole answer is one action, so its tokens' log-probs are summed; KL in
    # the reward (eq. 2). Its weight is ours: theirs depends on the task.
    "rloo": Method(
        baseline="leave_one_out",
        scale="none",
        ratio="none",
        aggregation="fixed",
        divergence="k1",
        kl_in="reward",
        kl_coefficient=0.03,
    ),
    # REINFORCE++ (Hu 2025): PPO's clip without a critic, KL in the reward of each token (k1), advantages normalised
    # over the whole batch. The KL's weight is ours.
    "reinforce_pp": Method(
        baseline="batch", scale="batch", aggregation="token", divergence="k1", kl_in="reward", kl_coefficient=0.01
    ),
    # PPO (Schulman et al. 2017) as RLHF uses it (Ouyang et al. 2022): a value network, GAE, whitened advantages, KL in
    # the reward of each token. The KL's weight is ours.
    "ppo": Method(
        baseline="critic", scale="batch", aggregation="token", divergence="k1", kl_in="reward", kl_coefficient=0.01
    ),
}
