"""Pins that what the tasks call a right solution is paid as one: every gold, in every template of mathematics,
scores 1."""

from pathlib import Path

import pytest

from peerwise.rewards.math import judge
from peerwise.rewards.shape import form, steps
from peerwise.tasks.base import load_task
from peerwise.tasks.prompts import TEMPLATES

GSM8K = Path(__file__).parents[2] / ".." / "shared" / "data" / "gsm8k"
MATHS = [name for name in TEMPLATES if not name.startswith("code")]
"""The templates that ask for an answer, and not for a program."""


@pytest.mark.parametrize("template", MATHS)
def test_every_arithmetic_solution_is_right_in_form_and_has_steps(template):
    for problem in load_task("arithmetic", template=template, params={"size": 300}, held_out=0).train.problems:
        assert judge(problem.solution, problem.answer) == (True, problem.answer)
        assert form(problem.solution) == 1.0 and steps(problem.solution) > 0
        assert not judge(problem.solution, str(int(problem.answer) + 1))[0]


@pytest.mark.skipif(not GSM8K.is_dir(), reason="needs shared/data/gsm8k")
@pytest.mark.parametrize("template", MATHS)
def test_every_gsm8k_solution_is_right_and_right_only_for_its_own_gold(template):
    problems = load_task("gsm8k", path=str(GSM8K), template=template, held_out=None).held_out.problems
    assert all(judge(p.solution, p.answer)[0] for p in problems)
    assert not any(judge(p.solution, str(int(p.answer) + 1))[0] for p in problems)
