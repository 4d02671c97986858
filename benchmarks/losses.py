"""Our losses beside TRL's on the same random tensors: what is equal, what is not, and by whose definition.

    python benchmarks/losses.py --seed 0 --json

TRL's own code runs: its trainers are made without `__init__`, and only what samples, scores or runs a model is replaced
by functions that return the tensors. One process, no gradient accumulation. Each case is given our advantages on both
sides ("loss", "gradient": with respect to the new log-probs), then each side its own ("gradient_own_advantages").
"relative" is the largest difference divided by the largest entry of either. Where the two differ by definition there
is a note, and "unexplained" is what remains once the stated cause is applied to our gradient.

Exit code 1 if something differs that has no note, or more than its note says; 2 if TRL is not installed.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from peerwise.algo.advantage import group_advantages
from peerwise.algo.aggregate import token_weights
from peerwise.algo.correction import mismatch_weights
from peerwise.algo.divergence import MAX_DIFFERENCE, divergence_of
from peerwise.algo.policy import policy_loss
from peerwise.algo.preference import dpo_loss
from peerwise.algo.presets import PRESETS, Method
from peerwise.algo.shaping import overlong_penalty
from peerwise.train.step import entropy_threshold

TRL = "1.16.0"
MISSING = (
    "benchmarks/losses.py compares with TRL, which is not installed here. "
    f"Get it with: pip install 'peerwise[benchmark]' (or pip install trl=={TRL})"
)
# Largest relative difference of gradients that is still float32 rounding (also of a whole answer's ratio), and of
# losses, where it is an absolute one for losses below 1.
ROUNDING, LOSS_ROUNDING = 2e-5, 1e-6
BOUND = 2.0
"""Of the weights for the mismatch of sampler and trainer, where a case has them."""
DPO_BETA = 0.1
END, PADDING, WORD = 2, 0, 3


@dataclass(frozen=True, kw_only=True)
class Batch:
    """P problems, G answers each, B = P * G; tensors are [B, T] with garbage in the padding, as a model leaves."""

    lengths: Tensor
    mask: Tensor
    new: Tensor
    old: Tensor
    reference: Tensor
    sampled: Tensor
    entropies: Tensor
    rewards: Tensor
    """[P, G]; in the last two groups all are equal."""
    cut_off: Tensor
    """[B] answers that end without the end token."""
    longest: int
    """The longest answer allowed: longer than any here."""


@dataclass(frozen=True, kw_only=True)
class Pass:
    """What one side made of a batch."""

    loss: float
    gradient: Tensor
    advantages: Tensor


Explain = Callable[[Batch, Pass, Method], Tensor]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One method, as our settings and as TRL's."""

    method: Method
    trl: dict[str, Any]
    """Beyond what `_trl_settings` reads off the method."""
    trainer: str = "grpo"
    change: Callable[[Batch], Batch] = field(default=lambda batch: batch)
    note: str | None = None
    """Why the two differ by definition; None where they must not."""
    explain: Explain | None = None
    """What TRL's gradient should be, from ours and the note."""


def make_batch(seed: int, dtype: torch.dtype, *, problems: int = 8, group_size: int = 8, tokens: int = 40) -> Batch:
    """Uneven lengths, some uninformative groups, and sequences from nearly on-policy to far off it.

    The new log-probs differ from the old by noise whose size runs from 1e-4 to 2 over the sequences, so that the
    narrow range of GSPO and the wide one of CISPO both hold some tokens and let others pass.
    """
    random = torch.Generator().manual_seed(seed)
    count = problems * group_size

    def normal(scale: float | Tensor) -> Tensor:
        return torch.randn(count, tokens, generator=random, dtype=torch.float64) * scale

    lengths = torch.randint(1, tokens + 1, (count,), generator=random)
    lengths[0] = tokens
    sizes = torch.logspace(-4, 0.3, count, dtype=torch.float64)[torch.randperm(count, generator=random)]
    old = normal(3.0).abs().neg()
    new = (old + normal(sizes[:, None])).clamp(max=-1e-3)
    levels = torch.tensor([0.0, 0.1, 1.0, 1.1])
    rewards = levels[torch.randint(0, len(levels), (problems, group_size), generator=random)]
    rewards[-2:] = torch.tensor([[1.1], [0.1]])
    return Batch(
        lengths=lengths,
        mask=torch.arange(tokens) < lengths[:, None],
        new=new.to(dtype),
        old=old.to(dtype),
        reference=(new + normal(0.5)).clamp(max=-1e-3).to(dtype),
        sampled=(old + normal(0.5)).to(dtype),
        entropies=normal(1.0).abs().float(),  # TRL compares them with a float32 quantile
        rewards=rewards,
        cut_off=torch.arange(count) % 5 == 3,
        longest=tokens + 10,
    )


def on_policy(batch: Batch) -> Batch:
    """The first update after sampling: new and old log-probs are the same."""
    return replace(batch, new=batch.old)


def far_from_reference(batch: Batch) -> Batch:
    """Some tokens differ from the reference by more than MAX_DIFFERENCE, in both directions."""
    new, old, reference = batch.new.clone(), batch.old.clone(), batch.reference.clone()
    reference[0, :3] = new[0, :3] - (MAX_DIFFERENCE + 2)
    new[0, 3:5] = old[0, 3:5] = -(MAX_DIFFERENCE + 3)
    reference[0, 3:5] = -1.0
    return replace(batch, new=new, old=old, reference=reference)


def our_advantages(batch: Batch, method: Method) -> Tensor:
    """[B]; where the divergence is charged in the reward, it is summed over each answer, as in `train.grpo`."""
    rewards = batch.rewards.double()
    if method.kl_in == "reward" and method.kl_coefficient:
        charged = divergence_of(method.divergence, batch.old, batch.reference) * batch.mask
        rewards = rewards - method.kl_coefficient * charged.sum(-1).reshape(rewards.shape)
    return group_advantages(rewards, scale=method.scale, baseline=method.baseline).flatten()


def our_weights(batch: Batch, method: Method) -> Tensor:
    """[B] the weight of each token of a sequence; 0 for answers cut off where the method leaves those out."""
    counted = batch.lengths.where(~batch.cut_off, 0) if method.truncated == "mask" else batch.lengths
    return token_weights(counted, method.aggregation, fixed_length=batch.longest)


def ours(batch: Batch, method: Method, advantages: Tensor) -> tuple[Pass, list[int]]:
    """Our loss and its gradient [B, T]; and how many tokens were held low and high."""
    new = batch.new.clone().requires_grad_()
    old, mask = batch.old[batch.mask], batch.mask
    correction, _ = mismatch_weights(old, batch.sampled[mask], kind=method.correction, bound=BOUND)
    threshold = entropy_threshold(list(batch.entropies[mask].split(batch.lengths.tolist())), method.entropy_share)
    if threshold is not None:
        forking = (batch.entropies[mask] >= threshold).to(old.dtype)
        correction = forking if correction is None else correction * forking
    result = policy_loss(
        new[mask],
        old,
        advantages.repeat_interleave(batch.lengths),
        our_weights(batch, method).repeat_interleave(batch.lengths),
        **method.objective,
        lengths=batch.lengths,
        correction=correction,
        reference=batch.reference[mask] if method.kl_in == "loss" and method.kl_coefficient else None,
        divergence=method.divergence,
        kl_coefficient=method.kl_coefficient,
        entropies=batch.entropies[mask] if method.entropy_coefficient else None,
        entropy_coefficient=method.entropy_coefficient,
    )
    (gradient,) = torch.autograd.grad(result.loss, new)
    done = Pass(loss=float(result.loss), gradient=gradient, advantages=advantages)
    return done, [result.clipped_low, result.clipped_high]


def theirs(batch: Batch, case: Case, advantages: Tensor | None) -> Pass:
    """TRL's: `_generate_and_score_completions`, then `_compute_loss` on what it made.

    Args:
        advantages: [B] in place of those that TRL computes.
    """
    new = batch.new.clone().requires_grad_()
    trainer = _trl_trainer(case, batch)
    policy, sampler, reference = SimpleNamespace(), trainer.model, trainer.ref_model
    seen = {id(policy): new, id(sampler): batch.old, id(reference): batch.reference}
    trainer._get_per_token_logps_and_entropies = lambda model, *_, **__: (seen[id(model)], batch.entropies, None)
    inputs = trainer._generate_and_score_completions([{"prompt": "?"} for _ in batch.lengths])
    if advantages is not None:
        inputs["advantages"] = advantages
    loss = trainer._compute_loss(policy, inputs)
    (gradient,) = torch.autograd.grad(loss, new)
    return Pass(loss=float(loss), gradient=gradient, advantages=inputs["advantages"])


def _trl_settings(method: Method) -> dict[str, Any]:
    """The attributes of TRL's trainer that say what our method says; TRL's default where a method has no such axis."""
    mode = {"truncate": "token_truncate", "mask": "token_mask", "none": "token_truncate"}[method.correction]
    return {
        "epsilon_low": method.clip_low,
        "epsilon_high": method.clip_high,
        "beta": method.kl_coefficient,
        "scale_rewards": method.scale,
        "mask_truncated_completions": method.truncated == "mask",
        "top_entropy_quantile": method.entropy_share,
        "entropy_coef": method.entropy_coefficient,
        "_entropy_bonus_enabled": method.entropy_coefficient > 0,
        "use_vllm": method.correction != "none",
        "vllm_importance_sampling_correction": method.correction != "none",
        "vllm_importance_sampling_mode": mode,
        "vllm_importance_sampling_clip_min": 1 / BOUND if method.correction == "mask" else None,
        "vllm_importance_sampling_clip_max": BOUND,
        "loss_type": "grpo",
        "importance_sampling_level": "token",
    }


def _trl_trainer(case: Case, batch: Batch) -> Any:
    """A trainer of TRL's with the attributes its two functions read; samples and scores are those of the batch."""
    from accelerate import Accelerator
    from trl import GRPOTrainer, RLOOTrainer
    from trl.experimental.gmpo import GMPOTrainer

    method = case.method
    answers = [[WORD] * (n - 1) + [END] for n in batch.lengths.tolist()]
    if method.truncated == "mask":
        answers = [[WORD] * len(a) if cut else a for a, cut in zip(answers, batch.cut_off.tolist(), strict=True)]
    sampled = [row[:n].tolist() for row, n in zip(batch.sampled, batch.lengths.tolist(), strict=True)]
    prompts = [[WORD]] * len(answers)
    generated: dict[str, tuple[Any, ...]] = {
        "grpo": (prompts, answers, None, ["!"] * len(answers), sampled, {}, None, None),
        "rloo": (prompts, answers, ["!"] * len(answers)),
    }
    generated["gmpo"] = generated["grpo"]
    trainer = object.__new__({"grpo": GRPOTrainer, "rloo": RLOOTrainer, "gmpo": GMPOTrainer}[case.trainer])
    arguments = {
        "delta": method.dual_clip,
        "sapo_temperature_pos": method.gate_positive,
        "sapo_temperature_neg": method.gate_negative,
        "use_bias_correction_kl": False,
        "steps_per_generation": 1,
        "gradient_accumulation_steps": 1,
        "gradient_checkpointing_kwargs": None,
        "per_device_train_batch_size": len(answers),
    }
    attributes = {
        "accelerator": Accelerator(cpu=True),
        "model": SimpleNamespace(training=True, is_gradient_checkpointing=False),
        "ref_model": SimpleNamespace(),
        "_generate": lambda _: generated[case.trainer],
        "_calculate_rewards": lambda *_: batch.rewards.reshape(-1, 1),
        "_tokenizer": SimpleNamespace(pad_token_id=PADDING),
        "eos_token_ids": [END],
        "pad_to_multiple_of": None,
        "environment_factories": None,
        "environments": None,
        "tools": None,
        "num_generations": batch.rewards.shape[1],
        "num_iterations": 2,  # with 1, TRL takes the new log-probs for the old ones
        "max_completion_length": batch.longest,
        "current_gradient_accumulation_steps": 1,
        "multi_objective_aggregation": "sum_then_normalize",
        "reward_weights": torch.ones(1),
        "reward_func_names": ["reward"],
        "reward_clip_range": None,
        "normalize_advantages": False,
        "off_policy_mask_threshold": None,
        "use_adaptive_entropy": False,
        "aux_loss_enabled": False,
        "_metrics": {"train": defaultdict(list)},
        "_logs": defaultdict(list, rewards=defaultdict(list), extra=defaultdict(list)),
        "_pending_extra_logs": {},
        "_pending_metrics": {},
        **_trl_settings(method),
    }
    for name, value in case.trl.items():
        (arguments if name in arguments else attributes)[name] = value
    trainer.__dict__.update(attributes, args=SimpleNamespace(**arguments))
    return trainer


def _kl_weighted_by_ratio(batch: Batch, mine: Pass, method: Method) -> Tensor:
    difference, ratio = batch.reference - batch.new, (batch.new - batch.old).exp()
    k3 = difference.exp() - difference - 1
    slope = 1 - difference.exp()
    extra = ratio * slope + ratio * k3 - slope
    return mine.gradient + our_weights(batch, method)[:, None] * method.kl_coefficient * extra * batch.mask


def _kl_not_held(batch: Batch, mine: Pass, method: Method) -> Tensor:
    difference = batch.reference - batch.new
    beyond = batch.mask & (difference > MAX_DIFFERENCE)
    slope = torch.where(beyond, 1 - difference.exp(), 0.0)
    return mine.gradient + our_weights(batch, method)[:, None] * method.kl_coefficient * slope


def _all_sequences_counted(batch: Batch, mine: Pass, _: Method) -> Tensor:
    return mine.gradient * float((~batch.cut_off).float().mean())


def _times_longest(batch: Batch, mine: Pass, _: Method) -> Tensor:
    return mine.gradient * batch.longest


def _whole_answer_clipped(batch: Batch, mine: Pass, method: Method) -> Tensor:
    ratio = ((batch.new - batch.old) * batch.mask).sum(-1, keepdim=True).exp()
    high = (ratio > 1 + method.clip_high) & (mine.advantages[:, None] > 0)
    low = (ratio < 1 - method.clip_low) & (mine.advantages[:, None] < 0)
    return mine.gradient * batch.longest * ratio.where(~(high | low), 0.0)


def _same_gradient(batch: Batch, mine: Pass, method: Method) -> Tensor:
    return mine.gradient


CUT_OFF_NOTE = (
    "Answers out of the loss: TRL masks their tokens and still divides by all B sequences; ours divides by the "
    "sequences kept. One constant for the batch, kept / B."
)


def cases() -> dict[str, Case]:
    """Every preset that TRL has too, then single axes of both."""
    grpo, dapo, gspo, rloo = PRESETS["grpo"], PRESETS["dapo"], PRESETS["gspo"], PRESETS["rloo"]
    cispo = PRESETS["cispo"]
    rloo_note = (
        "TRL: -min(r * A, clip(r) * A), mean over answers, r the ratio of the whole answer's probability. Ours: "
        "-A * log p, the policy gradient of RLOO (Ahmadian et al. 2024) without ratio or clip, divided also by the "
        "longest answer allowed."
    )
    return {
        "grpo": Case(method=grpo, trl={}),
        "dr_grpo": Case(method=PRESETS["dr_grpo"], trl={"loss_type": "dr_grpo"}),
        "dapo": Case(method=dapo, trl={"loss_type": "dapo"}),
        "dapo as bnpo": Case(method=dapo, trl={"loss_type": "bnpo"}),
        "gspo": Case(method=gspo, trl={"importance_sampling_level": "sequence"}),
        # TRL's epsilon_high is the bound itself, ours its distance from 1
        "cispo": Case(method=cispo, trl={"loss_type": "cispo", "epsilon_high": 1 + cispo.clip_high}),
        "sapo": Case(method=PRESETS["sapo"], trl={"loss_type": "sapo"}),
        "gmpo": Case(method=PRESETS["gmpo"], trl={}, trainer="gmpo"),
        "rloo, first update": Case(
            method=rloo,
            trl={},
            trainer="rloo",
            change=on_policy,
            note=rloo_note
            + " At a ratio of 1 the gradient is ours times that length; the values of the losses differ.",
            explain=_times_longest,
        ),
        "rloo, later update": Case(
            method=rloo,
            trl={},
            trainer="rloo",
            note=rloo_note + " Away from 1 it is also times r, and 0 where TRL clips.",
            explain=_whole_answer_clipped,
        ),
        "grpo, TRL's default KL": Case(
            method=grpo,
            trl={"use_bias_correction_kl": True},
            note="TRL's default (use_bias_correction_kl) multiplies the KL term by the ratio, with gradient, and names "
            "DeepSeek-V3.2 for it; ours is k3 alone, as DeepSeekMath (Shao et al. 2024), eq. 3 and 4.",
            explain=_kl_weighted_by_ratio,
        ),
        "grpo, far from the reference": Case(
            method=grpo,
            trl={},
            change=far_from_reference,
            note=f"Ours holds reference - policy at {MAX_DIFFERENCE:g} (beyond, no gradient); TRL does not.",
            explain=_kl_not_held,
        ),
        "grpo, dual clip": Case(method=replace(grpo, dual_clip=1.5), trl={}),
        "grpo, cut off masked": Case(
            method=replace(grpo, truncated="mask"), trl={}, note=CUT_OFF_NOTE, explain=_all_sequences_counted
        ),
        "dr_grpo, cut off masked": Case(
            method=replace(PRESETS["dr_grpo"], truncated="mask"),
            trl={"loss_type": "dr_grpo"},
            note=CUT_OFF_NOTE,
            explain=_all_sequences_counted,
        ),
        "dapo, cut off masked": Case(method=replace(dapo, truncated="mask"), trl={"loss_type": "dapo"}),
        "dapo, truncated weights": Case(method=replace(dapo, correction="truncate"), trl={"loss_type": "dapo"}),
        "dapo, masked weights": Case(method=replace(dapo, correction="mask"), trl={"loss_type": "dapo"}),
        "dapo, entropy bonus": Case(method=replace(dapo, entropy_coefficient=0.01), trl={"loss_type": "dapo"}),
        "grpo, entropy bonus": Case(
            method=replace(grpo, entropy_coefficient=0.01),
            trl={},
            note="TRL's bonus is the mean over tokens whatever the loss; ours is aggregated as the loss is, here per "
            "sequence.",
            explain=_same_gradient,
        ),
        "dapo, entropy share": Case(method=replace(dapo, entropy_share=0.5), trl={"loss_type": "dapo"}),
    }


def compare(case: Case, batch: Batch) -> dict[str, Any]:
    """One case as the JSON has it."""
    batch = case.change(batch)
    advantages = our_advantages(batch, case.method)
    mine, held = ours(batch, case.method, advantages)
    other = theirs(batch, case, advantages)
    own = theirs(batch, case, None)
    found: dict[str, Any] = {
        "loss": {"ours": mine.loss, "trl": other.loss} | _difference(torch.tensor(mine.loss), torch.tensor(other.loss)),
        "gradient": _difference(mine.gradient, other.gradient),
        "gradient_own_advantages": _difference(mine.gradient, own.gradient),
        "tokens_held": held,
    }
    if case.note is not None:
        assert case.explain is not None
        found["note"] = case.note
        found["unexplained"] = _difference(case.explain(batch, mine, case.method), other.gradient)
    close = abs(mine.loss - other.loss) <= LOSS_ROUNDING * max(1.0, abs(other.loss))
    found["same"] = close and found["gradient"]["relative"] <= ROUNDING
    found["as_stated"] = found["unexplained"]["relative"] <= ROUNDING if case.note else found["same"]
    return found


def compare_advantages(batch: Batch) -> dict[str, Any]:
    """Our advantages beside those of TRL's trainers."""
    group = batch.rewards.shape[1]
    rewards = batch.rewards.double()
    sample, population = rewards.std(-1, keepdim=True), rewards.std(-1, keepdim=True, correction=0)
    informative = population > 1e-6
    centred = rewards - rewards.mean(-1, keepdim=True)
    by_group = (population / (sample + 1e-4)).expand_as(rewards).flatten()
    by_batch = centred.square().mean().sqrt() / (rewards.std() + 1e-4)
    grpo, rloo = PRESETS["grpo"], PRESETS["rloo"]
    rows: dict[str, tuple[Method, str, Tensor | None, str | None]] = {
        "group": (
            grpo,
            "grpo",
            by_group,
            "TRL divides by the sample's deviation (G - 1) + 1e-4, ours by the group's own (G). For G = "
            f"{group} TRL's are {(1 - 1 / group) ** 0.5:.4f} of ours, and a little less the smaller the deviation. "
            "Where all rewards are equal, ours are exactly 0 and TRL's up to float32 noise / 1e-4 (see uninformative).",
        ),
        "none": (PRESETS["dr_grpo"], "grpo", None, None),
        "batch": (
            replace(grpo, scale="batch"),
            "grpo",
            by_batch.expand(rewards.numel()),
            "TRL divides by the deviation of all rewards from the batch's mean (N - 1) + 1e-4; ours by that of the "
            "group-centred advantages, whose deviation is smaller. No preset of ours uses this with a group's mean.",
        ),
        "leave_one_out": (replace(rloo, kl_coefficient=0.0), "rloo", None, None),
        "leave_one_out, KL in the reward": (rloo, "rloo", None, None),
    }
    found = {}
    for name, (method, trainer, factor, note) in rows.items():
        mine = our_advantages(batch, method)
        other = theirs(batch, Case(method=method, trl={}, trainer=trainer), None).advantages
        entry: dict[str, Any] = _difference(mine, other)
        if method.kl_in == "loss" or method.kl_coefficient == 0:
            entry["uninformative"] = {
                "ours": float(mine.view_as(rewards)[-2:].abs().max()),
                "trl": float(other.view_as(rewards)[-2:].abs().max()),
            }
        if note is not None and factor is not None:
            entry["note"] = note
            informed = informative.expand_as(rewards).flatten()
            entry["unexplained"] = _difference((mine * factor)[informed], other[informed])
        entry["same"] = entry["relative"] <= ROUNDING
        entry["as_stated"] = entry["unexplained"]["relative"] <= ROUNDING if note else entry["same"]
        found[name] = entry
    return found


def compare_dpo(batch: Batch) -> dict[str, Any]:
    """`DPOTrainer._compute_loss` on a model that returns the log-probs; the first half of the batch is right."""
    from accelerate import Accelerator
    from trl import DPOTrainer

    new = batch.new.clone().requires_grad_()
    right, wrong = ((new * batch.mask).sum(-1)).chunk(2)
    right_reference, wrong_reference = ((batch.reference * batch.mask).sum(-1)).chunk(2)
    loss, _ = dpo_loss(right, wrong, right_reference, wrong_reference, beta=DPO_BETA)
    (gradient,) = torch.autograd.grad(loss, new)

    other = batch.new.clone().requires_grad_()

    def model(log_probs: Tensor) -> Any:
        """TRL's patched forward: log-probs of the labels, 0 where there is none; the rest is only logged."""
        nothing = torch.zeros_like(batch.entropies)
        return SimpleNamespace(
            log_probs=log_probs * batch.mask, entropy=batch.entropies, mean_logits=nothing, is_top1=batch.mask
        )

    policy = torch.nn.Module()  # TRL asks whether it is wrapped
    policy.is_gradient_checkpointing = False
    trainer = object.__new__(DPOTrainer)
    trainer.__dict__.update(
        accelerator=Accelerator(cpu=True),
        model=policy,
        ref_model=lambda **_: model(batch.reference),
        args=SimpleNamespace(gradient_checkpointing_kwargs=None),
        beta=DPO_BETA,
        loss_types=["sigmoid"],
        loss_weights=[1.0],
        f_divergence_type="reverse_kl",
        ld_alpha=None,
        precompute_ref_logps=False,
        use_weighting=False,
        aux_loss_enabled=False,
        _metrics={"train": defaultdict(list)},
        _total_train_tokens=0,
        _tp_size=1,
    )
    mask = torch.cat([torch.zeros(len(batch.mask), 1, dtype=torch.long), batch.mask.long()], dim=1)  # one prompt token
    inputs = {"input_ids": mask, "attention_mask": mask, "completion_mask": mask}
    trl_loss = trainer._compute_loss(lambda **_: model(other), inputs, return_outputs=False)
    (trl_gradient,) = torch.autograd.grad(trl_loss, other)
    found: dict[str, Any] = {
        "loss": {"ours": float(loss), "trl": float(trl_loss)} | _difference(loss.detach(), trl_loss.detach()),
        "gradient": _difference(gradient, trl_gradient),
    }
    found["same"] = found["as_stated"] = max(found[name]["relative"] for name in ("loss", "gradient")) <= ROUNDING
    return found


def compare_overlong(longest: int = 100, buffer: int = 20) -> dict[str, Any]:
    """DAPO's soft overlong punishment at every length, beside TRL's reward function."""
    from trl.rewards import get_soft_overlong_punishment

    lengths = range(1, longest + 1)
    mine = torch.tensor([overlong_penalty(n, longest=longest, buffer=buffer) for n in lengths])
    punish = get_soft_overlong_punishment(max_completion_len=longest, soft_punish_cache=buffer)
    found: dict[str, Any] = _difference(mine, torch.tensor(punish(completion_ids=[[WORD] * n for n in lengths])))
    found["same"] = found["as_stated"] = found["relative"] <= ROUNDING
    return found


def _difference(mine: Tensor, other: Tensor) -> dict[str, float]:
    absolute = float((mine.double() - other.double()).abs().max())
    largest = max(float(mine.abs().max()), float(other.abs().max()))
    return {"absolute": absolute, "relative": absolute / largest if largest else 0.0}


def main() -> None:
    """Compare, print JSON."""
    options = _parser().parse_args()
    if importlib.util.find_spec("trl") is None:
        print(MISSING, file=sys.stderr)
        sys.exit(2)
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    warnings.simplefilter("ignore")
    version = importlib.metadata.version("trl")
    if version != TRL:
        print(f"written for trl {TRL}, this is {version}: its private functions may have changed", file=sys.stderr)
    batch = make_batch(options.seed, getattr(torch, options.dtype))
    methods = {name: compare(case, batch) for name, case in cases().items()}
    methods["dpo"] = compare_dpo(batch)
    advantages = compare_advantages(batch)
    overlong = compare_overlong()
    everything = methods | {f"advantages/{name}": entry for name, entry in advantages.items()} | {"overlong": overlong}
    surprises = [name for name, entry in everything.items() if not entry["as_stated"]]
    result = {
        "trl": version,
        "torch": torch.__version__,
        "dtype": options.dtype,
        "seed": options.seed,
        "groups": list(batch.rewards.shape),
        "tokens": int(batch.lengths.sum()),
        "lengths": [int(batch.lengths.min()), int(batch.lengths.max())],
        "uninformative_groups": 2,
        "methods": methods,
        "advantages": advantages,
        "overlong_penalty": overlong,
        "not_compared": {
            "reinforce_pp": f"TRL {TRL} has no trainer for it, nor the batch's mean as a baseline",
            "ppo": f"TRL {TRL} has no trainer for it",
        },
        "surprises": surprises,
    }
    json.dump(result, sys.stdout, indent=None if options.json else 1)
    print()
    sys.exit(1 if surprises else 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", default="float32", choices=("float32", "float64"))
    parser.add_argument("--json", action="store_true", help="one line")
    return parser


if __name__ == "__main__":
    main()
