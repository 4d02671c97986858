"""Pins how a recipe file and the command line become one Recipe, and what every mistake is told."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peerwise.errors import RecipeError
from peerwise.recipe.load import diff, dumps, load, loads
from peerwise.recipe.schema import (
    Algorithm,
    Critic,
    Dpo,
    Evaluation,
    Model,
    Optimizer,
    Recipe,
    Rollout,
    Run,
    Sft,
    Stage,
    Task,
)

TWO_STAGES = """
[task]
name = "arithmetic"
[rollout]
problems = 4
group_size = 16
[stage.sft]
method = "sft"
steps = 24
[stage.sft.optimizer]
learning_rate = 6e-5
[stage.grpo]
method = "grpo"
steps = 150
[stage.grpo.rollout]
group_size = 4
"""


def message(text: str, *overrides: str) -> str:
    with pytest.raises(RecipeError) as caught:
        loads(text, overrides)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_reading_and_planning_a_recipe_imports_neither_torch_nor_transformers():
    code = (
        "import sys, peerwise.recipe.load, peerwise.recipe.check, peerwise.recipe.plan\n"
        "peerwise.recipe.load.loads('', ['--rollout.problems', '2'])\n"
        "print([name for name in ('torch', 'transformers', 'datasets') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_stage_inherits_the_base_sections_and_sets_its_own_on_top():
    recipe = loads(TWO_STAGES)
    assert list(recipe.stage) == ["sft", "grpo"]
    assert recipe.stage["sft"].optimizer.learning_rate == 6e-5
    assert recipe.stage["grpo"].optimizer.learning_rate == Optimizer().learning_rate
    assert (recipe.stage["grpo"].rollout.problems, recipe.stage["grpo"].rollout.group_size) == (4, 4)
    assert recipe.stage["sft"].rollout.group_size == 16


def test_an_empty_recipe_is_the_default_recipe():
    assert loads("") == Recipe()


def test_the_stage_of_a_recipe_without_stages_inherits_the_base_sections_too():
    assert loads("[rollout]\ngroup_size = 5").stage["grpo"].rollout.group_size == 5


def test_stages_run_in_the_order_of_the_file():
    text = "[stage.z]\nmethod = 'sft'\n[stage.a]\nmethod = 'grpo'\n[stage.m]\nmethod = 'sft'"
    assert list(loads(text).stage) == ["z", "a", "m"]


def test_flags_take_dashes_or_underscores_and_reach_stages():
    words = "--rollout.problems 2 --stage.grpo.steps=5 --stage.grpo.optimizer.learning-rate 2e-6 --model.lora_rank 8"
    recipe = loads(TWO_STAGES, words.split())
    assert recipe.stage["sft"].rollout.problems == recipe.stage["grpo"].rollout.problems == 2
    assert (recipe.stage["grpo"].steps, recipe.stage["grpo"].optimizer.learning_rate) == (5, 2e-6)
    assert (recipe.stage["sft"].steps, recipe.model.lora_rank) == (24, 8)


def test_flags_take_lists_tables_switches_none_and_numbered_tasks():
    text = "[task]\nparams = {a = 1}\n[[more_tasks]]\nname = 'gsm8k'\n[algorithm]\nclip_low = 0.1"
    words = ["--task.params", "b=2", "c=x y", "d=[1, 2]", "--rollout.stop", "A", "B", "--model.gradient-checkpointing"]
    words += ["--more-tasks.0.path", "../x", "--algorithm.clip-low", "None", "--task.columns", "prompt=a=b"]
    recipe = loads(text, words)
    assert recipe.task.params == {"a": 1, "b": 2, "c": "x y", "d": [1, 2]}
    assert recipe.task.columns == {"prompt": "a=b"}
    assert recipe.rollout.stop == ["A", "B"]
    assert recipe.model.gradient_checkpointing
    assert [task.path for task in recipe.more_tasks] == ["../x"]
    assert recipe.stage["grpo"].algorithm.clip_low is None


def test_a_base_flag_that_a_stage_would_ignore_is_refused_with_the_flag_to_use():
    text = message(TWO_STAGES, "--rollout.group-size", "8")
    assert "stage 'grpo'" in text
    assert "--stage.grpo.rollout.group-size" in text
    assert "'sft'" not in text


def test_a_base_flag_is_refused_even_when_it_repeats_the_default():
    text = message(TWO_STAGES, "--optimizer.learning-rate", str(Optimizer().learning_rate))
    assert "--stage.sft.optimizer.learning-rate" in text


def test_a_base_flag_may_stand_beside_the_stage_flag_that_replaces_the_recipe():
    words = ["--rollout.group-size", "8", "--stage.grpo.rollout.group-size", "6"]
    recipe = loads(TWO_STAGES, words)
    assert [stage.rollout.group_size for stage in recipe.stage.values()] == [8, 6]


def test_a_base_flag_that_every_stage_flag_replaces_is_refused():
    assert "every stage was given its own" in message(
        "", "--rollout.problems", "2", "--stage.grpo.rollout.problems", "3"
    )


@pytest.mark.parametrize("words", ["--sft.batch-size 4", "--stage.grpo.sft.batch-size 4"])
def test_a_flag_for_a_section_that_no_method_reads_is_refused(words):
    assert "no effect" in message("", *words.split())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--rollout.gruop-size 3", "did you mean '--rollout.group-size'?"),
        ("--group_size 3", "did you mean '--rollout.group-size'"),
        ("--stage.gpro.steps 3", "did you mean '--stage.grpo.steps'?"),
        ("--quite-unlike-anything 3", "--help lists every setting"),
        ("16", "unexpected '16'"),
        ("--rollout.problems", "takes one value, got 0"),
        ("--rollout.problems 3 4", "takes one value, got 2: 3 4"),
        ("--rollout.problems 3 --rollout.problems=4", "given more than once: --rollout.problems"),
        ("--task.params dataset", "expected one or more key=value"),
        ("--rollout.problems many", "rollout.problems: got 'many', expected a valid integer"),
        ("--rollout.problems -3", "rollout.problems: got -3, expected greater than or equal to 1"),
        (
            "--stage.grpo.method ppo",
            "stage.grpo.method: got 'ppo', expected 'sft', 'grpo' or 'dpo'; 'ppo' is a preset: "
            "method = 'grpo' with algorithm.preset = 'ppo'",
        ),
    ],
)
def test_a_wrong_flag_is_told_what_was_given_and_what_is_expected(words, expected, capsys):
    assert expected in message("", *words.split())
    assert capsys.readouterr() == ("", "")


def test_help_shows_the_docstrings_and_the_recipes_values_and_exits_with_0(capsys):
    with pytest.raises(SystemExit) as caught:
        loads(TWO_STAGES, ["--help"])
    assert caught.value.code == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "Answers sampled for each problem; at least 2, since a group is compared with itself." in text
    assert "(now: 16)" in text
    assert "--stage.sft.optimizer.learning-rate" in text
    assert "(now: 6e-05)" in text


def test_every_setting_has_a_docstring_for_the_help():
    for section in (Recipe, Run, Model, Task, Rollout, Algorithm, Optimizer, Critic, Dpo, Sft, Evaluation, Stage):
        assert section.__doc__
        assert [name for name, field in section.model_fields.items() if not field.description] == []


def test_every_violation_is_in_one_error_one_line_each():
    text = """
    speed = 3
    run = 5
    [rolout]
    problems = 2
    [rollout]
    problems = 0
    temperature = "warm"
    learning_rate = 1.0
    [[more_tasks]]
    nam = "gsm8k"
    [stage.grpo]
    steps = true
    [stage.grpo.algorithm]
    clip_lo = 0.1
    """
    lines = message(text).splitlines()
    assert lines[0] == "recipe: 10 settings are wrong:"
    assert len(lines) == 11
    for line in (
        "speed: unknown section or key; did you mean 'run.seed'?",
        "run: got 5, expected a table of settings",
        "rolout: unknown section or key; did you mean 'rollout'?",
        "rollout.problems: got 0, expected greater than or equal to 1",
        "rollout.temperature: got 'warm', expected a valid number",
        "rollout.learning_rate: unknown key; did you mean 'optimizer.learning_rate' or 'critic.learning_rate'?",
        "more_tasks.0.nam: unknown key; did you mean 'name'?",
        "stage.grpo.method: missing; sft learns from worked solutions or own right answers; grpo from rewards, by the "
        "method that [algorithm] names; dpo from pairs of right and wrong answers.",
        "stage.grpo.steps: got True, expected a valid integer",
        "stage.grpo.algorithm.clip_lo: unknown key; did you mean 'clip_low'?",
    ):
        assert f"  {line}" in lines


def test_a_base_setting_that_is_wrong_is_reported_once_however_many_stages_inherit_it():
    text = message(TWO_STAGES + "[evaluation]\nevery = 1\n[optimizer]\nbeta1 = 1.5")
    assert text.splitlines() == ["recipe: 1 setting is wrong:", "  optimizer.beta1: got 1.5, expected less than 1"]


@pytest.mark.parametrize(
    "text", ["stage = 3", "[stage]\nx = 3", "more_tasks = 3", "more_tasks = [3]", "[rollout]\nproblems = [1]"]
)
def test_a_value_of_the_wrong_kind_is_an_error_that_names_its_key(text):
    key = {"stage = 3": "stage:", "[stage]\nx = 3": "stage.x:"}.get(
        text, text.strip("[").split(" =")[0].split("]\n")[-1]
    )
    assert key in message(text)
    assert key in message(text, "--run.seed", "1")


def test_broken_toml_names_its_line():
    assert "line 2" in message("[rollout]\nproblems 3")


def test_toml_nested_without_end_is_an_error_not_a_crash():
    assert "not valid TOML" in message("a = " + "[" * 100_000)


def test_a_missing_file_names_the_nearest_recipe_beside_it(tmp_path):
    (tmp_path / "quickstart.toml").write_text("")
    with pytest.raises(RecipeError, match=r"did you mean 'quickstart\.toml'"):
        load(tmp_path / "quikstart.toml")


def test_a_folder_and_a_file_in_another_encoding_are_named(tmp_path):
    with pytest.raises(RecipeError, match="is a folder"):
        load(tmp_path)
    path = tmp_path / "latin.toml"
    path.write_bytes(b'[task]\nname = "\xe9"')
    with pytest.raises(RecipeError, match="not UTF-8 at byte 15"):  # "[task]\n" is 7 bytes, 'name = "' is 8
        load(path)


def test_a_file_with_a_byte_order_mark_loads(tmp_path):
    path = tmp_path / "bom.toml"
    path.write_bytes(b"\xef\xbb\xbf[run]\nseed = 3")
    assert load(path).run.seed == 3


def test_dumps_keeps_a_none_that_is_not_the_default():
    recipe = loads("[algorithm]\nclip_low = 0.1", ["--evaluation.problems", "None", "--stage.grpo.steps", "1"])
    stage = recipe.stage["grpo"].model_copy(update={"algorithm": Algorithm()})
    recipe = recipe.model_copy(update={"stage": {"grpo": stage}})
    again = loads(dumps(recipe))
    assert again == recipe
    assert again.evaluation.problems is None
    assert again.stage["grpo"].algorithm.clip_low is None


def test_a_dumped_recipe_still_takes_base_flags_for_what_its_stages_inherit():
    recipe = loads(dumps(loads(TWO_STAGES)), ["--rollout.problems", "3"])
    assert [stage.rollout.problems for stage in recipe.stage.values()] == [3, 3]


def test_a_recipe_without_any_stage_survives_a_dump():
    recipe = Recipe(stage={})
    assert loads(dumps(recipe)) == recipe


words = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
scalars = st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.booleans(), words)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3))
tasks = st.builds(
    Task,
    name=words,
    path=st.none() | words.filter(lambda text: text != "None"),
    params=st.dictionaries(words, values, max_size=3),
    reward_weights=st.dictionaries(words, st.floats(allow_nan=False), max_size=2),
    columns=st.dictionaries(words, words, max_size=2),
    limit=st.none() | st.integers(1, 9),
)
rollouts = st.builds(Rollout, problems=st.integers(1, 99), stop=st.lists(words, max_size=2))
algorithms = st.builds(
    Algorithm, scale=st.sampled_from([None, "group", "none"]), clip_low=st.none() | st.floats(0.01, 0.99)
)
optimizers = st.builds(Optimizer, learning_rate=st.floats(1e-12, 1.0))
sections = {"rollout": rollouts, "algorithm": algorithms, "optimizer": optimizers}
stages = st.dictionaries(words, st.builds(Stage, method=st.sampled_from(["sft", "grpo"]), **sections), max_size=3)
evaluations = st.builds(Evaluation, problems=st.none() | st.integers(1, 9))
recipes = st.builds(
    Recipe, task=tasks, more_tasks=st.lists(tasks, max_size=2), stage=stages, evaluation=evaluations, **sections
)


@settings(max_examples=60, deadline=None)
@given(recipes)
def test_any_recipe_is_read_back_equal_from_its_dump(recipe):
    again = loads(dumps(recipe))
    assert again == recipe
    assert list(again.stage) == list(recipe.stage)
    assert diff(again, recipe) == {}


def test_diff_of_the_default_recipe_is_empty():
    assert diff(Recipe()) == {}


def test_diff_lists_what_departs_and_an_inherited_base_setting_only_once():
    recipe = loads("[rollout]\nproblems = 4\n[task.params]\nlow = 1\n[stage.grpo]\nmethod = 'grpo'\nsteps = 7")
    assert diff(recipe) == {
        "task.params.low": (None, 1),
        "rollout.problems": (8, 4),
        "stage.grpo.steps": (100, 7),
    }


def test_diff_compares_a_stage_that_only_one_recipe_has_with_the_base_sections():
    recipe = loads("[stage.first]\nmethod = 'sft'\n[stage.first.optimizer]\nlearning_rate = 1e-3")
    assert diff(recipe) == {
        "stage": (["grpo"], ["first"]),
        "stage.first.method": (None, "sft"),
        "stage.first.optimizer.learning_rate": (1e-5, 1e-3),
    }


def test_diff_compares_the_same_stage_of_two_recipes():
    one, other = (loads(f"[stage.grpo]\nmethod = 'grpo'\n[stage.grpo.sft]\nbatch_size = {n}") for n in (2, 3))
    assert diff(one, other) == {"stage.grpo.sft.batch_size": (3, 2)}


@pytest.mark.parametrize("path", sorted((Path(__file__).parents[2] / "recipes").glob("*.toml")), ids=lambda p: p.name)
def test_a_shipped_recipe_survives_a_dump(path):
    recipe = load(path)
    assert loads(dumps(recipe)) == recipe
