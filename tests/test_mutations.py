"""Pins the tests themselves: each fault planted in a copy of the package must turn the named tests red, with a wrong
number and not with a crash, and the copy without a fault must pass them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "peerwise"

GOLDEN = "tests/algo/test_golden.py"
METHODS = "tests/algo/test_golden_methods.py"
ORACLE = "tests/algo/test_oracle.py::"
LORA = "tests/models/test_lora.py"
LOGPROBS = "tests/algo/test_golden_logprobs.py"
OPTIMIZER = "tests/train/test_optimizer.py::"
STEP = "tests/train/test_step.py::"
STAGE = "tests/train/test_grpo_stage.py::"
TABLE = "tests/rewards/test_grading_table.py"
OPTIONS = "tests/train/test_step_options.py::"
LEAN = "tests/models/test_lean.py::test_the_lean_decoder_gives_the_hidden_states_of_the_modules[mistral]"
KERNELS = "tests/kernels/test_kernels.py::test_attention_is_that_of_the_definition"
ENDINGS = "tests/rollout/test_native_endings.py::"
GRAPHS = "tests/rollout/test_graphs.py::"
REPLAY = "tests/train/test_replay.py::"
CURRICULUM = "tests/train/test_curriculum.py::"
PAIRS = "tests/train/test_dpo_pairs.py::"

ACCUMULATION = STEP + "test_one_answer_at_a_time_and_all_at_once_move_the_weights_alike"
BOTH_UPDATES = STEP + "test_both_updates_follow_the_naive_loss_against_the_policy_that_sampled"
MASKED = OPTIONS + "test_masked_answers_count_neither_in_the_gradient_nor_in_its_denominators"
DROPPED = OPTIONS + "test_a_dropped_group_leaves_the_gradient_of_the_batch_without_it"
ENTROPIES = ORACLE + "test_chunked_entropies_have_the_gradients_of_a_plain_log_softmax"
MISMATCH = STEP + "test_the_mismatch_is_the_distance_from_the_samplers_logprobs"


@dataclass(frozen=True)
class Fault:
    """One edit of one file: `text`, which must occur exactly once, becomes `planted`; `tests` must turn red."""

    name: str
    file: str
    text: str
    planted: str
    tests: str


FAULTS = [
    # Grading
    Fault(
        "a set counts a member twice",
        "rewards/equal.py",
        'if form.kind != "{}" else _distinct(form.parts, same)',
        'if form.kind != "" else _distinct(form.parts, same)',
        TABLE,
    ),
    Fault(
        "units are not compared",
        "rewards/units.py",
        "    if not one or not other or one == other:\n        return True\n    if other in",
        "    return True\n    if other in",
        TABLE,
    ),
    Fault(
        "exact values that are nearly equal count as equal",
        "rewards/quantities.py",
        "        return min(policy.relative_tolerance, ARITHMETIC)\n",
        "        return policy.relative_tolerance\n",
        TABLE,
    ),
    Fault(
        "the unit behind the last number is lost",
        "rewards/statements.py",
        "            return written + text[number.end() : number.end() + length]\n",
        "            return written\n",
        TABLE,
    ),
    Fault(
        "an earlier answer is credited when the last box is cut off",
        "rewards/boxes.py",
        "        if box == CUT_OFF:\n            return CUT_OFF\n",
        "        if box == CUT_OFF:\n            break\n",
        TABLE,
    ),
    # Advantages
    Fault(
        "the group's mean is not subtracted",
        "algo/advantage.py",
        "EQUAL_REWARDS * size, 0.0, values - mean)",
        "EQUAL_REWARDS * size, 0.0, values)",
        GOLDEN,
    ),
    Fault(
        "the mean is taken over the batch",
        "algo/advantage.py",
        "_centred(exact, among, of_among)",
        "_centred(exact, exact.flatten(), taken.flatten())",
        GOLDEN,
    ),
    Fault(
        "rewards that are equal but for float noise get an advantage",
        "algo/advantage.py",
        "torch.where(highest - lowest <= EQUAL_REWARDS * size, 0.0, values - mean)",
        "values - mean",
        GOLDEN,
    ),
    Fault(
        "the deviation is estimated as of a sample",
        "algo/advantage.py",
        "_root_mean_square(centred, taken.sum(-1, keepdim=True))",
        "exact.std(-1, keepdim=True)",
        GOLDEN,
    ),
    Fault(
        "dr_grpo divides by the deviation",
        "algo/presets.py",
        '"dr_grpo": Method(scale="none"',
        '"dr_grpo": Method(scale="group"',
        GOLDEN,
    ),
    Fault(
        "an answer left out of its own baseline is not",
        "algo/advantage.py",
        "centred * (number / (number - 1).clamp(min=1))",
        "centred",
        METHODS,
    ),
    Fault(
        "the batch's baseline is each group's own",
        "algo/advantage.py",
        "_centred(exact, among, of_among)",
        "_centred(exact, exact, taken)",
        METHODS,
    ),
    Fault(
        "the batch's deviation is each group's own",
        "algo/advantage.py",
        "_root_mean_square(centred.flatten(), taken.sum())",
        "_root_mean_square(centred, torch.tensor(centred.shape[-1]))",
        METHODS,
    ),
    Fault(
        "single tokens are not centred",
        "algo/advantage.py",
        "_centred(exact, exact, taken) if centre else exact",
        "exact",
        METHODS,
    ),
    Fault(
        "single tokens are always divided by their distance from the mean",
        "algo/advantage.py",
        "_divided(exact, _root_mean_square(exact, taken.sum()))",
        "_divided(exact, exact.std(correction=0))",
        METHODS,
    ),
    # Named methods
    Fault(
        "dapo clips higher on the wrong side",
        "algo/presets.py",
        '"dapo": Method(clip_high=0.28',
        '"dapo": Method(clip_low=0.28',
        METHODS,
    ),
    Fault(
        "gspo's widths are swapped",
        "algo/presets.py",
        "clip_low=3e-4, clip_high=4e-4",
        "clip_low=4e-4, clip_high=3e-4",
        METHODS,
    ),
    Fault(
        "gspo has the range of a token's ratio",
        "algo/presets.py",
        "clip_low=3e-4, clip_high=4e-4",
        "clip_low=0.2, clip_high=0.2",
        METHODS,
    ),
    Fault(
        "cispo has a lower bound",
        "algo/presets.py",
        "clip_low=1.0, clip_high=4.0",
        "clip_low=0.2, clip_high=4.0",
        METHODS,
    ),
    Fault(
        "sapo clips",
        "algo/presets.py",
        '"sapo": Method(surrogate="soft_gate")',
        '"sapo": Method(surrogate="clip")',
        METHODS,
    ),
    Fault(
        "gmpo has the ends of a ratio for those of its logarithm",
        "algo/presets.py",
        '"geometric_mean", clip_low=0.4, clip_high=0.4',
        '"geometric_mean", clip_low=0.6, clip_high=1.4',
        METHODS,
    ),
    Fault(
        "rloo compares with the whole group",
        "algo/presets.py",
        'baseline="leave_one_out"',
        'baseline="group"',
        METHODS,
    ),
    Fault(
        "rloo follows the ratio",
        "algo/presets.py",
        'ratio="none"',
        'ratio="token"',
        METHODS,
    ),
    Fault(
        "reinforce_pp divides by each group's deviation",
        "algo/presets.py",
        'baseline="batch", scale="batch"',
        'baseline="batch", scale="group"',
        METHODS,
    ),
    Fault(
        "ppo does not whiten its advantages",
        "algo/presets.py",
        'baseline="critic", scale="batch"',
        'baseline="critic", scale="none"',
        ORACLE + "test_a_preset_differs_from_grpo_in_what_its_paper_names_and_in_nothing_else",
    ),
    # The loss
    Fault(
        "the surrogate has the wrong sign",
        "algo/policy.py",
        "per_token = -objective.value",
        "per_token = objective.value",
        GOLDEN,
    ),
    Fault(
        "the larger side of the clip is taken",
        "algo/surrogate.py",
        "torch.minimum(ratio * advantages",
        "torch.maximum(ratio * advantages",
        GOLDEN,
    ),
    Fault(
        "the clip's widths are swapped",
        "algo/surrogate.py",
        "ratio.clamp(1 - clip_low, 1 + clip_high) * advantages",
        "ratio.clamp(1 - clip_high, 1 + clip_low) * advantages",
        GOLDEN,
    ),
    Fault(
        "nothing is clipped",
        "algo/surrogate.py",
        "ratio.clamp(1 - clip_low, 1 + clip_high) * advantages",
        "ratio * advantages",
        GOLDEN,
    ),
    Fault(
        "the divergence is rewarded",
        "algo/policy.py",
        "per_token + kl_coefficient * kl",
        "per_token - kl_coefficient * kl",
        GOLDEN,
    ),
    Fault(
        "the divergence is turned round",
        "algo/divergence.py",
        "(reference - logprobs)",
        "(logprobs - reference)",
        GOLDEN,
    ),
    Fault(
        "the loss takes its ratio against the reference",
        "algo/policy.py",
        "log_ratio = logprobs - old_logprobs",
        "log_ratio = logprobs - (old_logprobs if reference is None else reference)",
        GOLDEN,
    ),
    Fault(
        "a sequence's ratio is a product and no mean",
        "algo/surrogate.py",
        "(total / lengths.clamp(min=1))[sequence]",
        "total[sequence]",
        METHODS,
    ),
    Fault(
        "a sequence's ratio is that of each token",
        "algo/policy.py",
        "objectives.sequence_mean(log_ratio, lengths)",
        "log_ratio",
        METHODS,
    ),
    Fault(
        "the dual clip holds right tokens too",
        "algo/surrogate.py",
        "beyond = (advantages < 0) & (ratio > dual_clip)",
        "beyond = ratio > dual_clip",
        METHODS,
    ),
    Fault(
        "the dual clip does not hold",
        "algo/surrogate.py",
        "torch.where(beyond, dual_clip * advantages, value)",
        "torch.where(beyond, ratio * advantages, value)",
        METHODS,
    ),
    Fault(
        "what the dual clip holds is not counted",
        "algo/surrogate.py",
        "high = high | beyond",
        "high = high & ~beyond",
        METHODS,
    ),
    Fault(
        "the clipped weight carries a gradient",
        "algo/surrogate.py",
        "ratio.clamp(1 - clip_low, 1 + clip_high).detach()",
        "ratio.clamp(1 - clip_low, 1 + clip_high)",
        METHODS,
    ),
    Fault(
        "the clipped weight is not clipped",
        "algo/surrogate.py",
        "ratio.clamp(1 - clip_low, 1 + clip_high).detach()",
        "ratio.detach()",
        METHODS,
    ),
    Fault(
        "the gate's temperatures are swapped",
        "algo/surrogate.py",
        "torch.where(advantages > 0, positive, negative)",
        "torch.where(advantages > 0, negative, positive)",
        METHODS,
    ),
    Fault(
        "the gate is not divided by its temperature",
        "algo/surrogate.py",
        "(4 / temperature)",
        "4",
        METHODS,
    ),
    Fault(
        "the geometric mean holds likely tokens of wrong answers",
        "algo/surrogate.py",
        "high = (advantages > 0) & (log_ratio > clip_high)",
        "high = (advantages < 0) & (log_ratio > clip_high)",
        METHODS,
    ),
    Fault(
        "the geometric mean takes the product",
        "algo/surrogate.py",
        "sequence_mean(held, lengths).exp()",
        "(sequence_mean(held, lengths) * lengths.repeat_interleave(lengths)).exp()",
        METHODS,
    ),
    Fault(
        "without a ratio the ratio is followed all the same",
        "algo/policy.py",
        "objectives.Objective(advantages * logprobs,",
        "objectives.Objective(advantages * ratios,",
        METHODS,
    ),
    # Divergence, correction, entropy, length
    Fault(
        "k1 is turned round",
        "algo/divergence.py",
        "    return logprobs - reference\n",
        "    return reference - logprobs\n",
        METHODS,
    ),
    Fault(
        "k2 is not halved",
        "algo/divergence.py",
        "(logprobs - reference).square() / 2",
        "(logprobs - reference).square()",
        METHODS,
    ),
    Fault(
        "the estimators' names are mixed up",
        "algo/divergence.py",
        '"k2": k2, "k3": k3',
        '"k2": k3, "k3": k2',
        METHODS,
    ),
    Fault(
        "the wrong side counts as held",
        "algo/divergence.py",
        "logprobs + MAX_DIFFERENCE < reference",
        "reference + MAX_DIFFERENCE < logprobs",
        METHODS,
    ),
    Fault(
        "the coefficient shrinks where it should grow",
        "algo/divergence.py",
        "coefficient *= 1 + rate",
        "coefficient *= 1 - rate",
        METHODS,
    ),
    Fault(
        "the coefficient leaves its bounds",
        "algo/divergence.py",
        "min(max(coefficient, low), high)",
        "coefficient",
        METHODS,
    ),
    Fault(
        "the correction is turned round",
        "algo/correction.py",
        "torch.exp(trainer - sampler)",
        "torch.exp(sampler - trainer)",
        METHODS,
    ),
    Fault(
        "the mask keeps what lies outside",
        "algo/correction.py",
        "torch.where(outside, 0.0, weights)",
        "torch.where(outside, weights, 0.0)",
        METHODS,
    ),
    Fault(
        "truncation does not truncate",
        "algo/correction.py",
        "weights.clamp(max=bound)",
        "weights",
        METHODS,
    ),
    Fault(
        "the correction multiplies the divergence as well",
        "algo/policy.py",
        "per_token = per_token * correction",
        "weights = weights * correction",
        METHODS,
    ),
    Fault(
        "entropy is a cost",
        "algo/policy.py",
        "per_token - entropy_coefficient * entropies",
        "per_token + entropy_coefficient * entropies",
        METHODS,
    ),
    Fault(
        "the entropy's gradient drops the temperature",
        "algo/logprob.py",
        "for g in grads)",
        "for g in (grads[0], None if grads[1] is None else grads[1] * head.temperature))",
        ENTROPIES,
    ),
    Fault(
        "the entropy's gradient lacks the entropy",
        "algo/logprob.py",
        "(lnp + entropies)",
        "lnp.clone()",
        ENTROPIES,
    ),
    Fault(
        "a long answer costs nothing",
        "algo/shaping.py",
        "(longest - buffer - length) / buffer",
        "(longest - length) / buffer",
        METHODS,
    ),
    # Tokens and log-probs
    Fault(
        "the shift by one is missing",
        "models/forward.py",
        "source += [last_of_prompt, *range(len(ids), len(ids) + len(completion) - 1)]",
        "source += range(len(ids), len(ids) + len(completion))",
        LOGPROBS,
    ),
    Fault(
        "prompt tokens are in the loss",
        "models/forward.py",
        "        for completion in group.completions:\n",
        "        source += range(len(ids) - len(group.prompt), len(ids) - 1)\n"
        "        targets += group.prompt[1:]\n"
        "        for completion in group.completions:\n",
        LOGPROBS,
    ),
    Fault(
        "the end token is not in the loss",
        "models/forward.py",
        "        for completion in group.completions:\n",
        "        for completion in [y[:-1] or y for y in group.completions]:\n",
        LOGPROBS,
    ),
    Fault(
        "positions go on through the row instead of from the prompt",
        "models/forward.py",
        "positions += range(len(group.prompt), len(group.prompt) + len(completion))",
        "positions += range(len(ids), len(ids) + len(completion))",
        LOGPROBS,
    ),
    Fault(
        "the sliding window is not kept",
        "models/shared_prompt.py",
        "if window is None else (distance >= 0) & (distance < window)",
        "",
        "tests/models/test_forward.py::test_packed_gradients_are_those_of_one_row_for_each_answer[1-False-mistral]",
    ),
    Fault(
        "the trainer drops the temperature",
        "models/forward.py",
        "temperature=temperature or 1.0,",
        "temperature=1.0,",
        MISMATCH,
    ),
    Fault(
        "the gradient drops the temperature",
        "algo/logprob.py",
        "g[part] / head.temperature",
        "g[part]",
        "tests/algo/test_oracle.py::test_gradients_are_right_when_only_one_input_needs_them",
    ),
    # The step
    Fault(
        "each micro-batch has its own denominator",
        "train/step.py",
        "weights[rows].to(logprobs.device).repeat_interleave(lengths)",
        "torch.full((len(rows),), 1.0 / float(lengths.sum())).repeat_interleave(lengths)",
        ACCUMULATION,
    ),
    Fault(
        "a micro-batch's gradient replaces the one before",
        "train/step.py",
        "result.loss.backward()",
        "self.optimizer.zero_grad()\n                    result.loss.backward()",
        ACCUMULATION,
    ),
    Fault(
        "a micro-batch's gradient replaces the one before, in bfloat16",
        "train/masters.py",
        "total += _grad(p)",
        "total.copy_(_grad(p))",
        OPTIMIZER + "test_gradients_of_a_bfloat16_model_are_summed_in_float32",
    ),
    Fault(
        "the step takes its ratio against the reference",
        "train/step.py",
        "            old,\n",
        "            batch.of(rows, batch.reference or batch.old),\n",
        BOTH_UPDATES,
    ),
    Fault(
        "the ratio is against the last update, so that nothing is ever clipped",
        "train/step.py",
        "            old,\n",
        "            logprobs.detach(),\n",
        BOTH_UPDATES,
    ),
    Fault(
        "a master keeps only what bfloat16 can tell",
        "train/masters.py",
        "rest.copy_(bits - high.bitwise_left_shift_(16))",
        "rest.zero_()",
        OPTIMIZER + "test_moves_smaller_than_bfloat16_can_tell_add_up_in_the_master",
    ),
    Fault(
        "a gradient that is not finite moves the weights",
        "train/optimizer.py",
        "if math.isfinite(norm):",
        "if True:",
        STEP + "test_a_batch_that_is_not_finite_leaves_the_policy_as_it_was",
    ),
    Fault(
        "masked answers stay in the denominators",
        "train/sequences.py",
        "token_weights(batch.counted[rows],",
        "(batch.counted[rows] > 0) * token_weights(batch.lengths[rows],",
        MASKED,
    ),
    Fault(
        "answers that ended are masked",
        "train/sequences.py",
        'c.finish == "length"',
        'c.finish == "stop"',
        MASKED,
    ),
    Fault(
        "dropped groups stay in the denominators",
        "train/sequences.py",
        'drop or (method.truncated == "mask"',
        '(method.truncated == "mask"',
        DROPPED,
    ),
    Fault(
        "the correction is against the policy of now",
        "train/step.py",
        "correction=self._correction(rows, old, metrics, first=first)",
        "correction=self._correction(rows, logprobs.detach(), metrics, first=first)",
        OPTIONS + "test_the_correction_weighs_each_token_by_the_mismatch_before_the_update",
    ),
    Fault(
        "mini-batches share one denominator",
        "train/sequences.py",
        "weights[rows] = token_weights(batch.counted[rows], method.aggregation, fixed_length=max_new_tokens)",
        "weights[rows] = token_weights(batch.counted, method.aggregation, fixed_length=max_new_tokens)[rows]",
        OPTIONS + "test_each_pass_covers_every_group_once_and_each_mini_batch_has_its_own_denominators",
    ),
    Fault(
        "tokens of low entropy are followed",
        "train/step.py",
        "batch.of(rows, batch.entropies) >= self.threshold",
        "batch.of(rows, batch.entropies) <= self.threshold",
        "tests/train/test_entropy_share.py",
    ),
    # The divergence in the reward
    Fault(
        "the divergence of an answer is paid for",
        "train/grpo.py",
        "rewards -= self.coefficient",
        "rewards += self.coefficient",
        STAGE + "test_a_divergence_in_the_reward_is_taken_off_before_answers_are_compared",
    ),
    Fault(
        "a token answers for the divergence before it",
        "train/grpo.py",
        "cost.flip(0).cumsum(0).flip(0)",
        "cost.cumsum(0)",
        STAGE + "test_compared_with_the_batch_each_token_answers_for_the_divergence_from_its_place_on",
    ),
    Fault(
        "micro-batches of one update are as uneven as their budget leaves them",
        "train/batch.py",
        " or middle >= share * (full + 1)",
        "",
        "tests/train/test_batch.py::test_micro_batches_are_equally_large_where_groups_allow_it",
    ),
    Fault(
        "what a failed attempt left behind stays in the gradient",
        "train/budget.py",
        "            forget()\n",
        "",
        "tests/train/test_budget.py::test_a_step_that_ran_out_of_memory_has_the_gradient_of_one_that_did_not",
    ),
    Fault(
        "a tile that only an interval's last key touches is passed over",
        "models/flex.py",
        "first // TILE, -(-last // TILE)",
        "first // TILE, last // TILE",
        "tests/models/test_flex.py::test_a_token_sees_what_the_definition_says_and_just_the_tiles_where_any_does_are_listed",
    ),
    Fault(
        "a window does not reach back into the prompt",
        "models/shared_prompt.py",
        "out_of_sight = before + here - start + 1 - reach",
        "out_of_sight = here - start + 1 - reach",
        "tests/models/test_flex.py::test_a_token_sees_what_the_definition_says_and_just_the_tiles_where_any_does_are_listed",
    ),
    Fault(
        "a prompt's keys learn from its last answer alone",
        "models/shared_prompt.py",
        "found[:, :, : span.prompt].sum(0, keepdim=True)",
        "found[-1:, :, : span.prompt]",
        "tests/models/test_forward.py::test_packed_gradients_are_those_of_one_row_for_each_answer",
    ),
    Fault(
        "a fused norm's gradient leaves out its mean",
        "models/fused.py",
        "of_normed.sub_(normed.mul_(mean))",
        "of_normed",
        "tests/models/test_fused.py::test_fused_blocks_have_the_values_and_gradients_of_the_models_own",
    ),
    Fault(
        "a later tile's maximum does not rescale what came before",
        "algo/logprob.py",
        "self.total = self.total * rescale + total",
        "self.total = self.total + total",
        "tests/algo/test_oracle.py::test_chunked_logprobs_have_the_values_and_gradients_of_a_plain_log_softmax",
    ),
    # The reference
    Fault(
        "the reference is the live policy",
        "models/lora.py",
        "copy.deepcopy(model).eval().requires_grad_(False)",
        "model",
        LORA,
    ),
    Fault("the reference's adapter moves along", "models/lora.py", "p.detach().clone()", "p.detach()", LORA),
    # 4 and 8 bits
    Fault(
        "the scales of weights in 4 bits are not rounded",
        "models/quantized.py",
        "bnb_4bit_use_double_quant=True",
        "bnb_4bit_use_double_quant=False",
        "tests/models/test_quantized.py::test_all_linear_layers_but_the_output_layer_are_held_in_4_bits_and_two_scales",
    ),
    Fault(
        "the adapters are left out of merged weights",
        "models/lora.py",
        'owner[name].get_delta_weight("default").float()',
        '0 * owner[name].get_delta_weight("default").float()',
        "tests/models/test_quantized.py::test_merged_weights_are_a_plain_model_that_computes_the_same",
    ),
    Fault(
        "moments in 8 bits begin to count steps again when they are restored",
        "train/optimizer.py",
        'int(state["step"])',
        "0",
        OPTIMIZER + "test_a_saved_optimizer_with_moments_in_8_bits_goes_on_bit_by_bit",
    ),
    # Sampling
    Fault(
        "an answer ends at the pad token",
        "rollout/native/engine.py",
        "token in self.engine.end_ids",
        "token == self.model.config.pad_token_id",
        ENDINGS + "test_an_answer_ends_at_the_first_of_several_end_ids_and_keeps_it",
    ),
    Fault(
        "an answer ends at the pad token as well",
        "rollout/native/engine.py",
        "token in self.engine.end_ids",
        "token in {*self.engine.end_ids, self.model.config.pad_token_id}",
        ENDINGS + "test_a_pad_token_that_is_no_end_token_is_a_token_like_any_other",
    ),
    Fault(
        "answers of any weights are taken",
        "rollout/vllm/translate.py",
        "if set(answer.versions) != {label}:",
        "if not answer.versions:",
        "tests/rollout/test_vllm_servers.py::test_weights_of_somebody_else_are_never_sampled_from",
    ),
    Fault(
        "the adapter that tried vLLM out is drawn with",
        "rollout/vllm/servers.py",
        "self._stale = self.transfer.rank > 0",
        "self._stale = False",
        "tests/rollout/test_vllm_adapters.py::test_only_adapters_go_and_answers_are_the_native_engines",
    ),
    Fault(
        "adapters reach vLLM under one name",
        "rollout/vllm/weights.py",
        "{next(self._numbers)}",
        "{0}",
        "tests/rollout/test_vllm_adapters.py::test_every_update_has_a_name_of_its_own_and_only_the_latest_stays",
    ),
    Fault(
        "an adapter is written with the scale of another",
        "models/adapters.py",
        "lora_alpha=alpha,",
        "lora_alpha=2 * rank,",
        "tests/rollout/test_vllm_adapters.py::test_peft_reads_the_models_own_adapters",
    ),
    # Compiled kernels
    Fault(
        "a product forgets what was summed over the first inputs",
        "kernels/products.c",
        "first ? _mm512_loadu_ps",
        "0 ? _mm512_loadu_ps",
        "tests/kernels/test_products.py::test_inputs_too_many_for_one_piece_of_a_panel_are_summed_over_all_pieces",
    ),
    Fault(
        "what is added to a product is added before it is rounded",
        "kernels/products.c",
        "rounded(sum[c])) : sum[c]",
        "sum[c]) : sum[c]",
        "tests/kernels/test_products.py::test_what_is_added_is_added_to_the_rounded_product",
    ),
    Fault(
        "keys that come after a query have gradients by it",
        "kernels/row_attention_backward.c",
        "own ? key[r] - b->at : 0",
        "0",
        "tests/kernels/test_row_attention.py::test_prompts_and_answers_may_end_anywhere_in_a_block",
    ),
    Fault(
        "an answer looks at the prompt only",
        "kernels/row_attention.c",
        "limit[1][r] = b->at + r + 1;",
        "limit[1][r] = 1;",
        "tests/kernels/test_row_attention.py::test_prompts_and_answers_may_end_anywhere_in_a_block",
    ),
    Fault(
        "the gradient by entropies leaves the entropy out",
        "kernels/logits.c",
        "_mm512_add_ps(lnp, _mm512_set1_ps(entropy))",
        "lnp",
        "tests/kernels/test_logits.py::test_the_gradient_by_a_tile_is_that_of_the_definition",
    ),
    Fault(
        "sums over earlier tiles are not rescaled to a new maximum",
        "kernels/logits.c",
        "totals[r] * rescale",
        "totals[r]",
        "tests/kernels/test_logits.py::test_sums_over_tiles_are_those_of_all_logits",
    ),
    Fault(
        "a moment in 8 bits takes the level below it, not the nearest",
        "kernels/adamw.c",
        "_mm512_mask_add_epi32(first, above, first, _mm512_set1_epi32(1))",
        "first",
        "tests/kernels/test_adamw.py::test_values_and_moments_are_those_of_the_definition",
    ),
    Fault(
        "a negative moment in 8 bits is looked for among the positive ones",
        "kernels/adamw.c",
        "_mm512_movepi32_mask(bits)",
        "0",
        "tests/kernels/test_adamw.py::test_values_and_moments_are_those_of_the_definition",
    ),
    Fault(
        "all pieces of a parameter take the scales of the first",
        "train/moments.py",
        "slice(place.start // BLOCK, -(-place.stop // BLOCK))",
        "slice(0, -(-(place.stop - place.start) // BLOCK))",
        OPTIMIZER + "test_weights_that_move_in_pieces_move_as_a_whole",
    ),
    Fault(
        "all pieces of a parameter take the moments of the first",
        "train/moments.py",
        """kept[key].view(-1)[place] for key in""",
        """kept[key].view(-1)[: len(values)] for key in""",
        OPTIMIZER + "test_weights_that_move_in_pieces_move_as_a_whole",
    ),
    Fault(
        "what was changed in the last piece of a master is lost",
        "train/masters.py",
        "            split(values, flat[place], rest)\n",
        "            if place.stop < len(flat):\n                split(values, flat[place], rest)\n",
        "tests/train/test_masters.py::test_changes_piece_by_piece_are_those_of_the_whole",
    ),
    Fault(
        "the norm's gradient ignores that the norm follows its input",
        "kernels/elementwise.c",
        "_mm512_fnmadd_ps(normed, mean, of_normed)",
        "of_normed",
        "tests/kernels/test_kernels.py::test_the_norms_gradients_are_those_of_the_definition",
    ),
    Fault(
        "the lean decoder rotates the wrong way",
        "models/lean.py",
        "torch.cat([-second, first], dim=-1)",
        "torch.cat([second, -first], dim=-1)",
        LEAN,
    ),
    Fault(
        "the lean decoder forgets the window",
        "models/lean.py",
        "AttentionRule(attention.scaling, window, None)",
        "AttentionRule(attention.scaling, None, None)",
        LEAN,
    ),
    Fault(
        "a compiled decode step does not see its own token",
        "kernels/decode_attention.c",
        "lengths[row] + 1},",
        "lengths[row]},",
        KERNELS,
    ),
    Fault(
        "the compiled window is one token too wide",
        "kernels/decode_attention.c",
        "position - window + 1",
        "position - window",
        KERNELS,
    ),
    # Programs
    Fault(
        "the program's own comparison decides a test",
        "sandbox/inside/wire.py",
        'isinstance(other, Remote) and self._peer.call("eq", self, other) is True',
        'self._peer.call("eq", self, other) is True',
        "tests/sandbox/test_program_runs.py::"
        "test_an_object_that_claims_to_equal_everything_equals_no_value_of_the_tests",
    ),
    Fault(
        "a program that ended has raised what a test waits for",
        "sandbox/inside/tester.py",
        " and not peer.over",
        "",
        "tests/sandbox/test_program_runs.py::"
        "test_a_program_that_ends_the_conversation_has_raised_nothing_and_reaches_no_later_test",
    ),
    Fault(
        "tests that were not reached have passed",
        "sandbox/programs.py",
        "passed += [False] *",
        "passed += [True] *",
        "tests/sandbox/test_program_runs.py::test_an_endless_program_keeps_the_tests_it_passed_before_the_deadline",
    ),
    Fault(
        "a branch sees beyond its answer",
        "rollout/native/attention.py",
        "own <= lengths\n",
        "own <= lengths + 1\n",
        "tests/rollout/test_native.py::test_sampled_answers_of_uneven_length_have_the_trainers_logprobs[llama]",
    ),
    Fault(
        "an answer's part is added to its prompt's without its weight",
        "rollout/native/attention.py",
        "+ share * own",
        "+ own",
        "tests/rollout/test_flex_decode.py::test_greedy_ids_are_those_of_generate[llama]",
    ),
    Fault(
        "a window in an answer reaches one token too far back",
        "rollout/native/attention.py",
        "(last + 1 - window)",
        "(last - window)",
        "tests/rollout/test_flex_decode.py::test_long_answers_of_uneven_length_have_the_trainers_logprobs[mistral]",
    ),
    Fault(
        "a recorded step writes where the one before did",
        "rollout/native/graphs.py",
        "at=lengths,",
        "at=0,",
        GRAPHS + "test_greedy_ids_of_recorded_operations_are_those_of_generate[llama]",
    ),
    Fault(
        "a recorded step leaves out its own token when it begins a larger size",
        "rollout/native/graphs.py",
        "bucket(max(lengths) + 1,",
        "bucket(max(lengths),",
        GRAPHS + "test_answers_that_outgrow_the_first_size_are_those_of_generate[llama]",
    ),
    # Groups used again
    Fault(
        "groups that teach nothing are kept",
        "train/replay.py",
        "for group in groups if group.informative]",
        "for group in groups]",
        REPLAY + "test_only_groups_with_right_and_wrong_answers_are_kept",
    ),
    Fault(
        "a group is forgotten a step early",
        "train/replay.py",
        "if step - kept.step <= self.steps]",
        "if step - kept.step < self.steps]",
        REPLAY + "test_a_group_is_used_up_to_its_last_step_and_then_forgotten",
    ),
    Fault(
        "an old group is compared with the policy of now",
        "train/sequences.py",
        "batch.old = {row: batch.sampled[row] for row in range(batch.first_stale, len(lengths))}",
        "batch.old = {}",
        REPLAY + "test_old_groups_are_compared_with_what_their_sampler_said_and_fresh_ones_with_the_first_pass",
    ),
    Fault(
        "the mismatch is over old groups too",
        "train/step.py",
        "old[:fresh], sampled[:fresh], outside)",
        "old, sampled, outside)",
        REPLAY + "test_the_mismatch_is_that_of_fresh_groups_alone",
    ),
    Fault(
        "a resumed run has forgotten the groups it kept",
        "train/grpo.py",
        '"replay": self.replay.state()}',
        '"replay": []}',
        REPLAY + "test_a_run_that_uses_groups_again_is_resumed_to_the_same_end",
    ),
    # Which problems are met
    Fault(
        "a level is cut at the last problem of the share",
        "train/curriculum.py",
        "_difficulty(problem, self.column) <= self._hardest(step)",
        "_difficulty(problem, self.column) < self._hardest(step)",
        CURRICULUM + "test_a_level_is_never_cut_in_two",
    ),
    Fault(
        "problems that are always right are met like those that are sometimes right",
        "train/curriculum.py",
        "4 * rate * (1 - rate)",
        "4 * rate * max(rate, 1 - rate)",
        CURRICULUM + "test_a_problem_is_met_with_four_times_the_variance_of_its_reward_and_at_least_the_floor",
    ),
    Fault(
        "a resumed run has forgotten the pass rates",
        "train/sampling.py",
        '{"curriculum": self.curriculum.state()}',
        '{"curriculum": {}}',
        CURRICULUM + "test_a_run_by_pass_rate_is_resumed_to_the_same_end",
    ),
    # Pairs of a file
    Fault(
        "the worse answer of a pair is taken for the better one",
        "train/dpo.py",
        "for text in (pair.chosen, pair.rejected))",
        "for text in (pair.rejected, pair.chosen))",
        PAIRS + "test_every_step_follows_the_loss_written_out_over_padded_rows",
    ),
    Fault(
        "the same pairs are read at every step",
        "train/dpo.py",
        "        self.position += size\n",
        "",
        PAIRS + "test_every_pair_is_met_once_in_an_epoch_and_the_next_is_in_another_order",
    ),
    # Rewards
    Fault(
        "a batch of values that is too short is repeated",
        "rewards/custom.py",
        'return Failed("wrong length", detail)',
        "values = (values * count + [0.0] * count)[:count]",
        "tests/rewards/test_custom_rewards.py",
    ),
    Fault(
        "a function is given the records themselves",
        "rewards/custom.py",
        "lambda given: copy.deepcopy(given.problem.meta)",
        "lambda given: given.problem.meta",
        "tests/rewards/test_custom_rewards.py::"
        "test_what_a_function_does_to_its_arguments_reaches_neither_other_samples_nor_the_records",
    ),
    Fault(
        "no share of failures is too many",
        "rewards/failures.py",
        "count > self._most * samples",
        "count > samples",
        "tests/rewards/test_custom_rewards.py::test_too_many_failures_end_the_run_with_reward_problem_and_cause",
    ),
    Fault(
        "the cosine is turned round",
        "rewards/parts.py",
        "COSINE_RIGHT if judged.correct else COSINE_WRONG",
        "COSINE_WRONG if judged.correct else COSINE_RIGHT",
        "tests/rewards/test_parts.py",
    ),
    Fault(
        "weights jump instead of moving on a line",
        "rewards/rubric.py",
        "np.interp(step, [start for start, _ in points], [value for _, value in points])",
        "([points[0][1]] + [value for start, value in points if start <= step])[-1]",
        "tests/rewards/test_rubric.py",
    ),
    # Data
    Fault(
        "questions whose golds differ are taken for duplicates",
        "tasks/splits.py",
        "return all(same(golds[0], gold) for gold in golds[1:])",
        "return True",
        "tests/tasks/test_splits.py",
    ),
    Fault(
        "a run of words in every question counts as a leak",
        "tasks/inspect.py",
        "if often[g] <= COMMON",
        "if often[g] <= 10 * COMMON",
        "tests/tasks/test_inspect.py",
    ),
    Fault(
        "bytes that are not in the encoding pass for text",
        "tasks/formats.py",
        "bad = None if line.isascii() else _ESCAPED.search(line)",
        "bad = None",
        "tests/tasks/test_files.py::test_a_few_rows_that_cannot_be_read_are_left_out_with_their_lines",
    ),
    # What is shown while a run goes on
    Fault(
        "a trend is told within its error",
        "metrics/draw.py",
        "abs(difference) <= 2 * error",
        "abs(difference) <= 0 * error",
        "tests/metrics/test_draw.py",
    ),
    Fault(
        "a watched run tells an evaluation before the step it follows",
        "metrics/replay.py",
        'yield row["global_step"], 2, partial',
        'yield row["global_step"], -1, partial',
        "tests/metrics/test_told_again.py",
    ),
    Fault(
        "trackers are told figures that are not finite",
        "trackers/run.py",
        "for name, value in values.items() if math.isfinite(value)",
        "for name, value in values.items()",
        "tests/trackers/test_trackers_of_a_run.py::test_what_happens_is_told_in_order_and_the_end_too",
    ),
    # The report
    Fault(
        "the gain of a run is turned round",
        "evaluate/pairing.py",
        "changes = [(now - then) / samples",
        "changes = [(then - now) / samples",
        "tests/report/test_report_verdict.py",
    ),
    Fault(
        "the worst answer of a group stands first",
        "report/samples.py",
        'key=lambda answer: -(answer["advantage"] or 0.0)',
        'key=lambda answer: (answer["advantage"] or 0.0)',
        "tests/report/test_report_reading.py",
    ),
    Fault(
        "a wrong answer must earn more than a right one to be at odds",
        "report/disagreement.py",
        "any(_earned(answer) >= _earned(other) for other in others)",
        "any(_earned(answer) > _earned(other) for other in others)",
        "tests/report/test_report_tokens.py::test_a_wrong_answer_that_earned_as_much_as_a_right_one_is_at_odds",
    ),
    Fault(
        "the lengths of tokens in a page count code points",
        "report/tokens.py",
        'len(piece.encode("utf-16-le")) // 2',
        "len(piece)",
        "tests/report/test_report_tokens.py::test_lengths_follow_a_text_in_which_characters_are_spelled_out",
    ),
    Fault(
        "the band of several runs has no upper edge",
        "report/overlay.py",
        "_combined(steps, members, max)",
        "_combined(steps, members, min)",
        "tests/report/test_report_comparison.py::test_several_runs_are_their_mean_with_a_band_as_far_as_each_got",
    ),
    Fault(
        "a loss of one seed counts as a gain",
        "evaluate/compare.py",
        "gains.setdefault(task, []).append(gain.difference)",
        "gains.setdefault(task, []).append(abs(gain.difference))",
        "tests/evaluate/test_compare.py::test_recipes_with_several_seeds_are_compared_seed_by_seed",
    ),
    Fault(
        "a leading blank belongs to no token",
        "train/trace.py",
        "found = text.find(piece, at, at + len(piece) + 1)",
        "found = text.find(piece, at, at + len(piece))",
        "tests/train/test_trace.py::test_each_token_has_its_characters",
    ),
    Fault(
        "a text of a run is markup in the page",
        "report/page.py",
        "autoescape=True",
        "autoescape=False",
        "tests/report/test_report_page.py::test_texts_of_a_run_add_no_element_and_no_attribute",
    ),
]


class Runner:
    """A process that has torch loaded and runs pytest in forks of itself."""

    def __init__(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "400"}
        # Paths that would shadow the copy, and settings meant for the outer run.
        for key in ("PYTHONPATH", "PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER"):
            environment.pop(key, None)
        command = [sys.executable, str(ROOT / "tests" / "forked_pytest.py")]
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, copy: Path, tests: list[str]) -> tuple[int, str]:
        """pytest's exit code (1: tests failed; 2 and above: they could not be run) and what it printed."""
        log = copy / "log"
        # No plugin options of the project (they may ask for workers), no writes beside the tests.
        options = ["-x", "-q", "--tb=line", "-rf", "-o", "addopts=", "-p", "no:cacheprovider", "-p", "no:xdist"]
        # A planted fault may be an endless loop; all tests in one run take a minute on a slow machine.
        limit = 60 if len(tests) == 1 else 600
        request = {"root": str(copy), "log": str(log), "limit": limit, "arguments": [*options, *tests]}
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline()), log.read_text(encoding="utf-8")

    def close(self) -> None:
        self.process.communicate()


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    runner = Runner()
    yield runner
    runner.close()


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A fresh copy of the package to plant faults in; compiled files stay behind, lest one be taken for the edit."""
    target = tmp_path / "peerwise"
    shutil.copytree(PACKAGE, target, ignore=shutil.ignore_patterns("__pycache__"))
    return target


def test_the_copy_without_a_fault_passes_and_is_what_was_tested(runner: Runner, package: Path) -> None:
    tests = sorted({fault.tests for fault in FAULTS})
    code, output = runner.run(package.parent, tests)
    assert code == 0, output
    assert output.startswith(f"tested: {package / '__init__.py'}\n")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_turns_the_tests_red(runner: Runner, package: Path, fault: Fault) -> None:
    path = package / fault.file
    source = path.read_text(encoding="utf-8")
    assert source.count(fault.text) == 1, f"{fault.file} no longer holds {fault.text!r} exactly once"
    path.write_text(source.replace(fault.text, fault.planted), encoding="utf-8")
    code, output = runner.run(package.parent, [fault.tests])
    assert code == 1, output
    assert re.search(r"^FAILED .* - (assert|AssertionError|Failed: DID NOT RAISE)", output, re.MULTILINE), output
