"""Pins the rules for a task's reward settings: names, weights, their schedules, and what form may weigh."""

import pytest

from peerwise.errors import RecipeError
from peerwise.recipe import reward
from peerwise.recipe.check import check
from peerwise.recipe.dump import dumps
from peerwise.recipe.load import loads
from peerwise.rewards.parts import LENGTH_PARTS, PARTS
from peerwise.rewards.rubric import NAMES

STAGE = "[stage.grpo]\nmethod = 'grpo'\nsteps = {steps}\n"


def findings(weights, *, steps=100, stages=None, **settings):
    """(whether it can run, what is said under the task's key)."""
    lines = [
        f"{name} = {value}" for name, value in {"reward": "'parts'", "reward_weights": weights, **settings}.items()
    ]
    if "programs" in f"{settings.get('reward')} {weights}":
        lines += ["name = 'mbpp'", "template = 'code'"]
    text = "[task]\n" + "\n".join(lines) + "\n" + (stages or STAGE.format(steps=steps))
    try:
        said, runs = check(loads(text)), True
    except RecipeError as error:
        said, runs = str(error).splitlines(), False
    return runs, [line.strip() for line in said if line.strip().startswith("task.")]


@pytest.mark.parametrize(
    "weights",
    [
        "{ correct = 1, format = 0.5, steps = 0.4 }",
        "{ levels = 1.0, format = 0.5 }",
        "{ shaped = 1.0, intermediate = 0.5, steps = 0.2 }",
        "{ cosine = 1.0, repetition = 0.5 }",
        "{ programs = 1.0, length = 0.9 }",
        '{ correct = { "0" = 0.5, "50" = 1.0 }, format = 0.2 }',
    ],
)
def test_weights_under_which_a_right_answer_wins_are_fine(weights):
    assert findings(weights) == (True, [])


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ("{ correct = 1.0, format = 0.6, steps = 0.5 }", "weigh 1.1, more than the 1 between"),
        ("{ format = 0.1 }", "weigh 0.1, more than the 0 between"),
        ("{ levels = 1.0, format = 0.9 }", "weigh 0.9, more than the 0.8 between"),
        ("{ shaped = 1.0, length = 0.6 }", "weigh 0.6, more than the 0.5 between"),
        ('{ correct = { "0" = 1.0, "50" = 0.1 }, format = 0.2 }', "weigh 0.2 at step 99, the last, more than the 0.1"),
        ('{ correct = 1.0, format = { "9" = 0.0, "20" = 3.0 } }', "weigh 3 at step 99, the last, more than the 1"),
        # The schedule would end well, but the run ends at step 99, where correct is 0.1 + 0.9 * 99 / 990.
        ('{ correct = { "0" = 0.1, "990" = 1.0 }, format = 0.5 }', "weigh 0.5 at step 99, the last, more than the 0.1"),
        ("{ correct = 1.0, lenght = 0.1 }", "reward_weights.lenght: unknown name 'lenght'; did you mean 'length'?"),
        ("{ correct = nan }", "task.reward_weights.correct: got nan"),
        ('{ correct = { "5" = -1.0 } }', "task.reward_weights.correct: got -1.0"),
        ("{ correct = {} }", "got steps none"),
        ('{ correct = { "x" = 1.0 } }', "got steps x; expected whole numbers"),
        ('{ correct = { "9" = 1.0, "5" = 1.0 } }', "got steps 9, 5; expected"),
        ('{ correct = { "5" = 1.0, "05" = 1.0 } }', "got steps 5, 05; expected"),
        ("{ correct = 0, format = 0 }", "reward 'parts' needs weights"),
        ('{ correct = { "0" = 0.0, "50" = 1.0 } }', "the weights sum to 0 at step 0"),
    ],
)  # fmt: skip
def test_weights_that_cannot_work_are_refused(weights, said):
    runs, lines = findings(weights)
    assert not runs
    assert any(said in line for line in lines), lines


def test_form_may_lead_at_first_and_is_warned_of():
    weights = '{ correct = { "0" = 0.2, "80" = 1.0 }, steps = { "0" = 0.8, "80" = 0.1 }, format = 0.1 }'
    runs, (line,) = findings(weights)
    assert runs
    assert line.startswith("task.reward_weights: at step 0 the other parts together weigh more than correctness")


def test_points_beyond_the_last_step_are_warned_of():
    runs, (line,) = findings('{ correct = { "0" = 0.5, "500" = 1.0 } }')
    assert runs
    assert "beyond the 100 steps" in line


def test_where_the_last_step_is_not_known_the_last_point_counts():
    stages = "[stage.a]\nmethod = 'grpo'\nepochs = 2.0\n"
    assert findings('{ correct = { "0" = 0.5, "500" = 1.0 }, format = 0.4 }', stages=stages) == (True, [])
    assert not findings('{ correct = { "0" = 0.5, "500" = 0.1 }, format = 0.4 }', stages=stages)[0]


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"reward_length": "64"}, "reward_length"),
        ({"reward_timeout": "5"}, "reward_timeout"),
        ({"reward_failures": "0.5"}, "reward_failures"),
        ({"all_or_nothing": "true"}, "all_or_nothing"),
    ],
)
def test_a_setting_that_the_reward_does_not_use_is_warned_of(settings, field):
    runs, lines = findings("{ correct = 1.0 }", **settings)
    assert (runs, lines) == (True, [f"task.{field}: reward 'parts' does not use it"])


def test_settings_are_used_by_the_rewards_they_are_for():
    assert findings("{ correct = 1.0, length = 0.1 }", reward_length="64") == (True, [])
    assert findings("{ programs = 1.0 }", all_or_nothing="true") == (True, [])
    assert findings("{}", reward="'mine.py:f'", reward_timeout="5", reward_failures="1") == (True, [])
    assert findings("{}", reward="'programs'", all_or_nothing="true") == (True, [])


@pytest.mark.parametrize(
    "line", ["reward_timeout = inf", "reward_timeout = 0", "reward_failures = 1.5", "reward_length = 0"]
)
def test_values_out_of_bounds_are_refused(line):
    with pytest.raises(RecipeError, match=line.partition(" ")[0]):
        loads(f"[task]\n{line}")


@pytest.mark.parametrize(
    ("weight", "said"),
    [
        ("'x'", "task.reward_weights.correct.number: got 'x', expected a valid number"),
        ("{ '9' = 'x' }", "task.reward_weights.correct.points.9: got 'x', expected a valid number"),
    ],
)
def test_a_weight_that_is_no_number_is_said_once(weight, said):
    with pytest.raises(RecipeError) as caught:
        loads(f"[task]\nreward_weights = {{ correct = {weight} }}")
    assert str(caught.value).endswith(said)
    assert str(caught.value).count("reward_weights") == 1


def test_scheduled_weights_survive_a_dump():
    recipe = loads('[task]\nreward = "parts"\nreward_weights = { correct = { "0" = 0.2, "100" = 1.0 }, steps = 0.1 }')
    assert recipe.task.reward_weights == {"correct": {"0": 0.2, "100": 1.0}, "steps": 0.1}
    assert loads(dumps(recipe)) == recipe


def test_names_of_rewards_and_parts_are_those_that_exist():
    assert set(reward.REWARDS) == set(NAMES)
    assert set(reward.PARTS) == set(PARTS)
    assert set(reward.LENGTH_PARTS) == LENGTH_PARTS
