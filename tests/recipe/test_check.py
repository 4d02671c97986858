"""Pins which recipes are refused, which are warned of, that all of it is said at once, and that the names the recipe
room knows are the names the other rooms have."""

import importlib
import re
from dataclasses import fields, replace
from typing import get_args

import pytest

from peerwise.algo import presets
from peerwise.algo.presets import PRESETS, Method
from peerwise.errors import RecipeError
from peerwise.recipe import check as checks
from peerwise.recipe.check import check, uniform_share
from peerwise.recipe.load import loads
from peerwise.recipe.method import method_of
from peerwise.recipe.schema import Algorithm, Recipe

QUIET = "[algorithm]\npreset = 'dr_grpo'\n"
"""A recipe that check has nothing to say about."""


def violations(text: str, *overrides: str) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        check(loads(text, overrides))
    first, *lines = str(caught.value).splitlines()
    assert first == "the recipe cannot run:"
    return [line.strip() for line in lines]


def warnings(text: str, *overrides: str) -> list[str]:
    return check(loads(text, overrides))


def test_a_sound_recipe_has_no_warnings():
    assert warnings(QUIET) == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--rollout.group-size 1", "rollout.group_size: a group of 1 has nothing to compare with: advantage is "
         "always 0; set rollout.group_size to 4 or more"),
        ("--rollout.group-size -2", "rollout.group_size: a group of -2 cannot be sampled"),
        ("--rollout.temperature 0", "rollout.temperature: got 0, expected a finite one above 0"),
        ("--rollout.temperature inf", "rollout.temperature: got inf"),
        ("--rollout.top-p 0.9", "rollout.top_p: got 0.9, training needs 1"),
        ("--rollout.top-k 20", "rollout.top_k: got 20, training needs 0"),
        ("--algorithm.preset dr-grpo", "algorithm.preset: unknown name 'dr-grpo'; did you mean 'dr_grpo'?"),
        ("--algorithm.clip-high inf", "algorithm.clip_high: got inf"),
        ("--optimizer.learning-rate inf", "optimizer.learning_rate: got inf"),
        ("--task.name gms8k", "task.name: unknown name 'gms8k'; did you mean 'gsm8k'?"),
        ("--task.template boxd", "task.template: unknown name 'boxd'; did you mean 'boxed'?"),
        ("--task.reward correctnes", "task.reward: unknown name 'correctnes'; did you mean 'correctness'?"),
        ("--task.reward mine.py", "task.reward: unknown name 'mine.py'"),
        ("--task.reward mine.py:", "task.reward: unknown name 'mine.py:'"),
        ("--task.reward parts", "task.reward_weights: reward 'parts' needs weights"),
        ("--task.reward parts --task.reward-weights correct=0", "task.reward_weights: reward 'parts' needs weights"),
        ("--task.reward parts --task.reward-weights correct=inf", "task.reward_weights.correct: got inf"),
        ("--task.reward parts --task.reward-weights correct=1 fromat=0.1", "did you mean 'format'?"),
        ("--task.reward-weights correct=1", "task.reward_weights: has no effect with reward 'correctness'"),
        ("--task.name files", "task.path: files needs one"),
        ("--task.name reasoning-gym", "task.params.dataset: reasoning-gym needs the name of a data set"),
        ("--task.name gsm8k --task.eval-split train", "task.eval_split: 'train' is the split that is trained on"),
        ("--evaluation.samples 4", "evaluation.samples: 4 greedy answers are all the same"),
        ("--model.lora-alpha 16", "model.lora_alpha: has no effect while model.lora_rank is 0"),
        ("--model.quantization nf4", "model.quantization: weights in 'nf4' are frozen, so only adapters can learn; "
         "set model.lora_rank, such as 16"),
    ],
)  # fmt: skip
def test_a_recipe_that_cannot_run_is_refused_with_what_to_do(words, expected):
    lines = violations(QUIET, *words.split())
    assert len(lines) == 1
    assert expected in lines[0]


def test_every_violation_is_listed_and_one_that_stages_inherit_only_once():
    stages = "[stage.a]\nmethod = 'grpo'\n[stage.b]\nmethod = 'grpo'\n[stage.b.rollout]\ntop_k = 5\n"
    lines = violations(stages, "--rollout.group-size", "1", "--task.name", "x", "--evaluation.samples", "2")
    assert [line.split(":")[0] for line in lines] == [
        "evaluation.samples",
        "task.name",
        "rollout.group_size",
        "stage.b.rollout.top_k",
    ]


def test_an_sft_stage_is_not_judged_by_the_rules_of_group_sampling():
    assert warnings("[stage.s]\nmethod = 'sft'", "--rollout.group-size", "1", "--rollout.temperature", "0") == []


def test_a_recipe_without_stages_is_refused():
    assert violations("[stage]") == ["stage: there is none; add [stage.grpo] with method = 'grpo'"]


@pytest.mark.parametrize("name", ["a b", "../up", "a.b", "", "-x", "é", "a" * 65])
def test_a_stage_whose_name_is_no_folder_name_is_refused(name):
    assert "expected a folder name" in violations(f"[stage.'{name}']\nmethod = 'sft'")[0]


def test_stage_names_that_share_a_flag_or_a_folder_are_refused():
    text = "[stage.a_b]\nmethod = 'sft'\n[stage.a-b]\nmethod = 'sft'\n[stage.A-B]\nmethod = 'sft'"
    assert [line.split(" would")[0] for line in violations(text)] == [
        "stage: 'a_b' and 'a-b'",
        "stage: 'a_b' and 'A-B'",
    ]


def test_a_task_of_the_mixture_is_judged_under_its_own_key():
    assert violations("[[more_tasks]]\nname = 'gsm8k'\ntemplate = 'x'")[0].startswith("more_tasks.0.template:")


def test_the_same_task_twice_is_refused_whatever_its_weight():
    lines = violations("[[more_tasks]]\nweight = 2.0")
    assert lines == ["more_tasks: 'arithmetic' is listed twice with the same settings; raise its weight instead"]


def test_your_own_reward_is_accepted_by_its_form():
    assert warnings(QUIET, "--task.reward", "path/to/mine.py:score") == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--algorithm.updates-per-batch 6", "algorithm.updates_per_batch: 6 passes"),
        ("--optimizer.learning-rate 4e-5", "optimizer.learning_rate: 4e-05 is high"),
        ("--optimizer.warmup-steps 101", "optimizer.warmup_steps: 101 of warm-up in a stage of 100 steps"),
        ("--optimizer.micro-batch-tokens 1279",
         "optimizer.micro_batch_tokens: 1279 is less than the longest row, 1024 + 256"),
        ("--rollout.max-new-tokens 31", "rollout.max_new_tokens: 31 tokens leave little room"),
        ("--model.offload-activations --model.device cpu", "model.offload_activations: a CPU has nowhere else"),
        ("--algorithm.kl-coefficient 0.01", "algorithm.kl_coefficient: 0.01 without LoRA keeps a frozen reference: "
         "memory for one more copy of the weights"),
        ("--task.path x", "task.path: task 'arithmetic' does not use it"),
        ("--task.columns a=b", "task.columns: task 'arithmetic' does not use it"),
        ("--task.name gsm8k --task.params a=b", "task.params: task 'gsm8k' does not use it"),
        ("--task.reward parts --task.reward-weights correct=1 format=0.6 steps=0.4",
         "the other parts together weigh 1"),
    ],
)  # fmt: skip
def test_a_known_trap_is_warned_of_and_not_refused(words, expected):
    lines = warnings("[algorithm]\npreset = 'dr_grpo'", *words.split())
    assert len(lines) == 1
    assert expected in lines[0]


@pytest.mark.parametrize(
    "words",
    [
        "--algorithm.updates-per-batch 5",
        "--optimizer.learning-rate 3e-5",
        "--optimizer.learning-rate 1e-3 --model.lora-rank 8",
        "--optimizer.warmup-steps 100",
        "--optimizer.micro-batch-tokens 1280",
        "--rollout.max-new-tokens 32",
        "--rollout.max-new-tokens 31 --task.template plain",
        "--rollout.group-size 4",
        "--algorithm.kl-coefficient 0.01 --model.lora-rank 8",
        "--task.reward parts --task.reward-weights correct=1 format=0.5 steps=0.4",
    ],
)
def test_no_warning_just_outside_a_trap(words):
    assert warnings(QUIET, *words.split()) == []


def test_the_warning_on_small_groups_shows_how_many_teach_nothing():
    # G = 3: 0.2^3 + 0.8^3 = 0.008 + 0.512 = 0.52; 0.5^3 + 0.5^3 = 0.25
    (line,) = warnings(QUIET, "--rollout.group-size", "3")
    assert "52% at p = 0.2 and 25% at p = 0.5" in line


def test_uniform_share_of_hand_worked_groups():
    assert uniform_share(0.2, 2) == pytest.approx(0.68)  # 0.04 + 0.64
    assert uniform_share(0.5, 8) == 2 / 256
    assert uniform_share(0.0, 8) == 1.0


def test_a_stage_section_that_its_method_does_not_read_is_warned_of():
    text = QUIET + "[stage.g]\nmethod = 'grpo'\n[stage.g.sft]\nbatch_size = 2"
    assert warnings(text) == ["stage.g.sft: method 'grpo' does not use it"]


def test_sft_on_generated_data_without_solutions_is_a_warning():
    text = "[task]\nname = 'reasoning-gym'\nparams = {dataset = 'chain_sum'}\n[stage.s]\nmethod = 'sft'"
    assert warnings(text) == ["stage.s: sft needs worked solutions, and reasoning-gym data has none"]


def test_the_default_recipe_runs_and_says_that_its_preset_keeps_a_reference():
    (line,) = check(Recipe())
    assert "0.04 (from preset 'grpo')" in line


def test_the_method_is_the_preset_with_what_the_recipe_sets_on_top():
    assert method_of(Algorithm()) == PRESETS["grpo"]
    assert method_of(Algorithm()).kl_coefficient == 0.04
    assert method_of(Algorithm(preset="dr_grpo")).kl_coefficient == 0.0
    # 0 is a value like any other and not "not given".
    assert method_of(Algorithm(kl_coefficient=0.0)) == replace(PRESETS["grpo"], kl_coefficient=0.0)
    given = Algorithm(preset="dr_grpo", kl_coefficient=0.5, ratio="sequence", dual_clip=3.0, truncated="mask")
    expected = replace(PRESETS["dr_grpo"], kl_coefficient=0.5, ratio="sequence", dual_clip=3.0, truncated="mask")
    assert method_of(given) == expected


# The axes of the algorithm


RATIO_NONE = "--algorithm.ratio none"
WITH_KL = "--model.lora-rank 8 --algorithm.kl-coefficient"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--algorithm.scale group --algorithm.baseline batch",
         "algorithm.scale: 'group' needs a baseline within the group, got baseline 'batch'; set scale to"),
        ("--algorithm.scale group --algorithm.baseline none",
         "algorithm.scale: 'group' needs a baseline within the group, got baseline 'none'"),
        ("--algorithm.surrogate geometric_mean --algorithm.ratio sequence",
         "algorithm.ratio: surrogate 'geometric_mean' takes its mean over token ratios; set ratio = 'token'"),
        (f"{RATIO_NONE} --algorithm.surrogate soft_gate",
         "algorithm.surrogate: 'soft_gate' follows a ratio, and ratio is 'none'"),
        (f"{RATIO_NONE} --algorithm.surrogate clipped_weight",
         "algorithm.surrogate: 'clipped_weight' follows a ratio, and ratio is 'none'"),
        (f"{RATIO_NONE} --algorithm.updates-per-batch 2",
         "algorithm.updates_per_batch: with ratio 'none' only the first update after sampling is right"),
        (f"{RATIO_NONE} --algorithm.mini-batches 2",
         "with ratio 'none' only the first update after sampling is right; set updates_per_batch and mini_batches"),
        ("--algorithm.dual-clip 1.1", "algorithm.dual_clip: 1.1 is not above 1 + clip_high = 1.2"),
        ("--algorithm.dual-clip 1.5 --algorithm.clip-high 0.5",
         "algorithm.dual_clip: 1.5 is not above 1 + clip_high = 1.5"),
        ("--algorithm.mini-batches 9", "algorithm.mini_batches: 9 of 8 groups; a group is not split"),
        ("--algorithm.truncated penalty --algorithm.overlong-buffer 256",
         "algorithm.overlong_buffer: 256 is not less than rollout.max_new_tokens = 256"),
        ("--algorithm.kl-low 0.6", "algorithm.kl_low: 0.6 is more than kl_high = 0.5"),
        ("--algorithm.kl-target 0.1", "algorithm.kl_target: has no effect while kl_coefficient is 0"),
        (f"{WITH_KL} 0.1 --algorithm.divergence k1",
         "algorithm.divergence: the gradient of k1 is 0 on average, so in the loss it is nothing but noise"),
        (f"{WITH_KL} 0.6 --algorithm.kl-target 0.1",
         "algorithm.kl_coefficient: 0.6 lies outside kl_low to kl_high, 0.001 to 0.5"),
        (f"{WITH_KL} 0.0005 --algorithm.kl-target 0.1",
         "algorithm.kl_coefficient: 0.0005 lies outside kl_low to kl_high, 0.001 to 0.5"),
        ("--algorithm.entropy-coefficient inf", "algorithm.entropy_coefficient: got inf"),
        ("--algorithm.mismatch-bound inf", "algorithm.mismatch_bound: got inf"),
        ("--evaluation.patience 2 --evaluation.every 0",
         "evaluation.patience: stages are evaluated only at their end; set evaluation.every above 0"),
        ("--rollout.final-temperature inf", "rollout.final_temperature: got inf"),
        ("--algorithm.preset gspo --algorithm.correction mask",
         "algorithm.correction: chooses among tokens, and here a whole answer has one ratio"),
        ("--algorithm.preset gmpo --algorithm.entropy-share 0.2",
         "algorithm.entropy_share: chooses among tokens, and here a whole answer has one ratio"),
        ("--rollout.group-schedule 0=8", "rollout.group_schedule: got steps 0, expected whole numbers of 1 or more"),
        ("--rollout.group-schedule 10=8 x=9", "rollout.group_schedule: got steps 10, x, expected whole numbers"),
        ("--rollout.group-schedule 1.5=8", "rollout.group_schedule: got steps 1.5, expected whole numbers"),
        ("--rollout.group-schedule 20=8 10=9",
         "rollout.group_schedule: got steps [20, 10], expected each after the one before"),
        ("--rollout.group-schedule 10=8 010=9", "rollout.group_schedule: got steps [10, 10], expected each after"),
        ("--rollout.group-schedule 10=1", "rollout.group_schedule: a group needs at least 2 answers"),
    ],
)  # fmt: skip
def test_settings_of_the_method_that_contradict_each_other_are_refused(words, expected):
    lines = violations(QUIET, *words.split())
    assert len(lines) == 1
    assert expected in lines[0]


def test_a_geometric_mean_without_a_ratio_is_refused_for_both_reasons():
    lines = violations(QUIET, *f"{RATIO_NONE} --algorithm.surrogate geometric_mean".split())
    assert [line.split(":")[0] for line in lines] == ["algorithm.ratio", "algorithm.surrogate"]


def test_a_contradiction_within_one_stage_is_named_by_that_stage():
    text = QUIET + "[stage.a]\nmethod = 'grpo'\n[stage.b]\nmethod = 'grpo'\n[stage.b.algorithm]\nmini_batches = 9\n"
    text += "[stage.b.rollout]\ngroup_schedule = {'5' = 1}\n"
    keys = [line.split(": ")[0] for line in violations(text)]
    assert sorted(keys) == ["stage.b.algorithm.mini_batches", "stage.b.rollout.group_schedule"]


def test_an_unknown_preset_is_not_judged_any_further():
    lines = violations(QUIET, "--algorithm.preset", "gsop", "--algorithm.mini-batches", "9")
    assert lines == ["algorithm.preset: unknown name 'gsop'; did you mean 'gspo'?"]


@pytest.mark.parametrize(
    "words",
    [
        "--algorithm.scale batch --algorithm.baseline batch",
        "--algorithm.scale none --algorithm.baseline none",
        "--algorithm.scale group --algorithm.baseline leave_one_out",
        "--algorithm.surrogate geometric_mean",
        f"{RATIO_NONE} --algorithm.updates-per-batch 1 --algorithm.mini-batches 1",
        "--algorithm.ratio sequence --algorithm.aggregation sequence",
        "--algorithm.dual-clip 1.3",
        "--algorithm.mini-batches 8",
        "--algorithm.truncated penalty --algorithm.overlong-buffer 255",
        "--algorithm.kl-low 0.5",
        f"{WITH_KL} 0.1 --algorithm.divergence k1 --algorithm.kl-in reward",
        f"{WITH_KL} 0.5 --algorithm.kl-target 0.1",
        f"{WITH_KL} 0.001 --algorithm.kl-target 0.1",
        f"{WITH_KL} 0.6",
        "--rollout.group-schedule 1=2 99=12",
        "--evaluation.patience 2 --evaluation.every 1",
        "--evaluation.patience 0 --evaluation.every 0",
        "--algorithm.surrogate soft_gate --algorithm.gate-positive 1 --algorithm.gate-negative 2",
        "--algorithm.clip-low 0.1 --algorithm.clip-high 0.3",
        "--algorithm.surrogate clipped_weight --algorithm.clip-low 1 --algorithm.clip-high 4",
    ],
)
def test_settings_of_the_method_that_go_together_are_accepted_without_a_word(words):
    assert warnings(QUIET, *words.split()) == []


UNUSED = "this method does not use it"
NO_KL = "has no effect while kl_coefficient is 0; set one above 0"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--algorithm.surrogate clipped_weight --algorithm.dual-clip 3", f"algorithm.dual_clip: {UNUSED}"),
        (f"{RATIO_NONE} --algorithm.dual-clip 3", f"algorithm.dual_clip: {UNUSED}"),
        ("--algorithm.gate-positive 1", f"algorithm.gate_positive: {UNUSED}"),
        ("--algorithm.gate-negative 1", f"algorithm.gate_negative: {UNUSED}"),
        ("--algorithm.surrogate soft_gate --algorithm.clip-low 0.1", f"algorithm.clip_low: {UNUSED}"),
        ("--algorithm.surrogate soft_gate --algorithm.clip-high 0.1", f"algorithm.clip_high: {UNUSED}"),
        (f"{RATIO_NONE} --algorithm.clip-low 0.1", f"algorithm.clip_low: {UNUSED}"),
        (f"{RATIO_NONE} --algorithm.clip-high 0.1", f"algorithm.clip_high: {UNUSED}"),
        ("--algorithm.overlong-buffer 10", f"algorithm.overlong_buffer: {UNUSED}"),
        ("--algorithm.truncated mask --algorithm.overlong-buffer 10", f"algorithm.overlong_buffer: {UNUSED}"),
        ("--algorithm.divergence k2", f"algorithm.divergence: {NO_KL}"),
        ("--algorithm.kl-in reward", f"algorithm.kl_in: {NO_KL}"),
        ("--algorithm.ratio sequence --algorithm.aggregation token",
         "algorithm.aggregation: with a ratio of whole answers 'token' counts long answers more; the papers take "
         "'sequence'"),
        ("--algorithm.surrogate geometric_mean --algorithm.aggregation token",
         "algorithm.aggregation: with a ratio of whole answers 'token' counts long answers more; the papers take "
         "'sequence'"),
        ("--rollout.group-schedule 50=8 100=9",
         "rollout.group_schedule: some of it begins after the stage's 100 steps"),
    ],
)  # fmt: skip
def test_settings_of_the_method_without_effect_are_warned_of(words, expected):
    assert warnings(QUIET, *words.split()) == [expected]


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_alone_can_run_and_says_only_that_it_keeps_a_reference(preset):
    coefficient = {"grpo": "0.04", "rloo": "0.03", "reinforce_pp": "0.01", "ppo": "0.01"}.get(preset)
    said = warnings("", "--algorithm.preset", preset)
    if coefficient is None:
        assert said == []
    else:
        (line,) = said
        assert line.startswith(f"algorithm.kl_coefficient: {coefficient} (from preset {preset!r}) without LoRA keeps")
    # With adapters no reference is kept, and nothing is left to say.
    assert warnings("", "--algorithm.preset", preset, "--model.lora-rank", "8") == []


def test_every_axis_of_a_method_can_be_set_in_a_recipe_to_the_same_names():
    names = {
        "baseline": presets.Baseline,
        "scale": presets.Scale,
        "ratio": presets.Ratio,
        "surrogate": presets.Surrogate,
        "divergence": presets.Divergence,
        "aggregation": presets.Aggregation,
        "correction": presets.Correction,
        "kl_in": presets.KlPlace,
        "uninformative": presets.Uninformative,
        "truncated": presets.Truncated,
    }
    for axis in fields(Method):
        setting = Algorithm.model_fields[axis.name]
        assert setting.default is None, axis.name
        if axis.name in names:
            (literal,) = [kind for kind in get_args(setting.annotation) if kind is not type(None)]
            assert set(get_args(literal)) == set(get_args(names[axis.name])), axis.name


def test_the_presets_that_the_settings_name_are_those_there_are():
    named = Algorithm.model_fields["preset"].description.partition(": ")[2].rstrip(".")
    assert named.split(", ") == list(PRESETS)


def table_of(module: str, name: str) -> dict[str, object]:
    """Another room's table, once that room is there; a room that is broken fails the test."""
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} does not exist yet")
    return getattr(importlib.import_module(module), name)


def test_task_names_are_those_of_the_task_table():
    assert set(checks.TASKS) == set(table_of("peerwise.tasks.base", "TASKS"))


def test_template_names_are_those_of_the_template_table():
    assert set(checks.TEMPLATES) == set(table_of("peerwise.tasks.prompts", "TEMPLATES"))


# Groups that are used again


@pytest.mark.parametrize("words", [RATIO_NONE, "--algorithm.preset rloo --model.lora-rank 8"])
def test_groups_of_earlier_steps_without_a_ratio_are_refused(words):
    (line,) = violations(QUIET, *words.split(), "--algorithm.replay-groups", "1")
    assert line == (
        "algorithm.replay_groups: groups of earlier steps need a ratio to the policy that sampled them, and ratio is "
        "'none'; set ratio to 'token' or replay_groups to 0"
    )


def test_how_long_groups_are_kept_is_moot_where_none_are():
    said = warnings(QUIET, "--algorithm.replay-steps", "3")
    assert said == ["algorithm.replay_steps: has no effect while replay_groups is 0"]


@pytest.mark.parametrize(
    "words",
    [
        "--algorithm.replay-groups 4",
        "--algorithm.replay-groups 4 --algorithm.replay-steps 1",
        "--algorithm.replay-groups 4 --algorithm.updates-per-batch 2 --algorithm.mini-batches 8",
        "--algorithm.replay-groups 0",
        f"{RATIO_NONE} --algorithm.replay-groups 0",
    ],
)
def test_groups_with_a_ratio_may_be_used_again(words):
    assert warnings(QUIET, *words.split()) == []


# A curriculum


@pytest.mark.parametrize("setting", ["start 0.5", "until 0.9", "easy high", "floor 0.2"])
def test_a_setting_of_a_curriculum_that_is_not_there_is_refused(setting):
    name, value = setting.split()
    (line,) = violations(QUIET, f"--curriculum.{name}", value)
    assert line == f"curriculum.{name}: has no effect without curriculum.by; name a column or 'measured'"


def test_every_setting_of_a_curriculum_that_is_not_there_is_named_where_it_stands():
    text = QUIET + "[curriculum]\nstart = 0.5\n[stage.g]\nmethod = 'grpo'\n[stage.g.curriculum]\nfloor = 0.2"
    assert [line.split(":")[0] for line in violations(text)] == ["curriculum.start", "stage.g.curriculum.floor"]


@pytest.mark.parametrize(
    ("by", "setting"),
    [("measured", "start 0.5"), ("measured", "until 0.9"), ("measured", "easy high"), ("level", "floor 0.2")],
)
def test_a_setting_that_this_curriculum_does_not_use_is_warned_of(by, setting):
    name, value = setting.split()
    said = warnings(QUIET, "--curriculum.by", by, f"--curriculum.{name}", value)
    assert said == [f"curriculum.{name}: curriculum.by = {by!r} does not use it"]


@pytest.mark.parametrize(
    "words",
    [
        "--curriculum.by measured",
        "--curriculum.by measured --curriculum.floor 1",
        "--curriculum.by level --curriculum.start 1 --curriculum.until 1 --curriculum.easy high",
    ],
)
def test_a_curriculum_with_its_own_settings_is_accepted_without_a_word(words):
    assert warnings(QUIET, *words.split()) == []


@pytest.mark.parametrize(
    "stage",
    [
        "[stage.s]\nmethod = 'sft'\n",
        "[stage.s]\nmethod = 'dpo'\n[stage.s.dpo]\npairs = 'x.jsonl'\n",
    ],
)
def test_a_curriculum_of_a_stage_that_samples_nothing_is_warned_of_and_one_it_inherits_is_not(stage):
    own = "[stage.s.curriculum]\nby = 'level'\n"
    assert warnings(QUIET + stage + own) == ["stage.s.curriculum: only stages that sample answers use it"]
    assert warnings(QUIET + stage, "--curriculum.by", "level") == []


@pytest.mark.parametrize("stage", ["method = 'dpo'", "method = 'sft'\nsft.source = 'own'"])
def test_every_stage_that_samples_may_have_a_curriculum(stage):
    assert warnings(f"{QUIET}[stage.s]\n{stage}\n[stage.s.curriculum]\nby = 'level'") == []


# Pairs of a file


PAIRS = QUIET + "[stage.d]\nmethod = 'dpo'\n[stage.d.dpo]\npairs = 'x.jsonl'\n"


def test_epochs_of_pairs_are_refused():
    expected = "stage.d.epochs: epochs count the task's problems, and pairs come from a file; set steps"
    assert violations(PAIRS, "--stage.d.epochs", "2") == [expected]
    assert warnings(PAIRS, "--stage.d.steps", "2") == []


def test_epochs_of_pairs_that_are_sampled_are_accepted_and_so_are_those_of_stages_that_read_no_pairs():
    assert warnings(QUIET + "[stage.d]\nmethod = 'dpo'\nepochs = 2\n") == []
    assert warnings(QUIET + "[dpo]\npairs = 'x.jsonl'\n[stage.g]\nmethod = 'grpo'\nepochs = 2\n") == []


def test_a_stage_on_pairs_is_not_judged_by_the_rules_of_group_sampling():
    words = ["--rollout.group-size", "1", "--rollout.temperature", "0", "--rollout.top-k", "5"]
    assert warnings(PAIRS, *words) == []
    assert len(violations(QUIET + "[stage.d]\nmethod = 'dpo'\n", *words)) == 3


def test_a_stage_on_pairs_needs_no_worked_solutions():
    assert warnings(PAIRS, "--task.name", "reasoning-gym", "--task.params", "dataset=chain_sum") == []


# Programs


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--task.name mbpp --task.template code", "task.reward: mbpp asks for programs; set reward = 'programs'"),
        ("--task.name humaneval --task.reward programs", "task.template: humaneval asks for programs"),
        ("--task.reward programs", "task.reward: arithmetic has no tests to run programs with"),
        ("--task.name programs --task.reward programs --task.template code", "task.path: programs needs one"),
    ],
)
def test_programs_need_a_task_that_has_tests_and_a_reward_that_runs_them(words, said):
    with pytest.raises(RecipeError, match=re.escape(said)):
        check(loads("", words.split()))


def test_programs_with_their_reward_or_ones_own_are_accepted():
    words = ["--task.name", "mbpp", "--task.template", "code-zh", "--task.params", "shown_tests=2", "--task.reward"]
    for reward in ("programs", "mine.py:judge"):
        assert not any("task." in line for line in check(loads("", [*words, reward])))
