"""Pins which recipes are refused, which are warned of, that all of it is said at once, and that the names the recipe
room knows are the names the other rooms have."""

import importlib

import pytest

from peerwise.errors import RecipeError
from peerwise.recipe import check as checks
from peerwise.recipe.check import check, kl_coefficient, uniform_share
from peerwise.recipe.load import loads
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


def test_the_kl_coefficient_is_the_recipes_or_else_the_presets():
    assert kl_coefficient(Algorithm()) == 0.04
    assert kl_coefficient(Algorithm(preset="dr_grpo")) == 0.0
    assert kl_coefficient(Algorithm(kl_coefficient=0.0)) == 0.0
    assert kl_coefficient(Algorithm(preset="dr_grpo", kl_coefficient=0.5)) == 0.5


def table_of(module: str, name: str) -> dict[str, object]:
    """Another room's table, once that room is there; a room that is broken fails the test."""
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} does not exist yet")
    return getattr(importlib.import_module(module), name)


def test_task_names_are_those_of_the_task_table():
    assert set(checks.TASKS) == set(table_of("peerwise.tasks.base", "TASKS"))


def test_template_names_are_those_of_the_template_table():
    assert set(checks.TEMPLATES) == set(table_of("peerwise.tasks.prompts", "TEMPLATES"))


def test_presets_and_their_kl_coefficients_are_those_of_the_algorithm_room():
    presets = table_of("peerwise.algo.presets", "PRESETS")
    assert {name: method.kl_coefficient for name, method in presets.items()} == dict(checks.PRESET_KL)
