"""What a task's settings mean for whoever runs or measures: its scorer, its problems checked, its reward tried out.

Brings `tasks`, which know no grading, and `rewards`, which know no data, together. Knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from peerwise.errors import DataError
from peerwise.recipe.schema import Task
from peerwise.records import Problem
from peerwise.rewards.math import judge
from peerwise.rewards.rubric import NAMES, Scorer, build, verifiable
from peerwise.rewards.selftest import selftest
from peerwise.tasks import inspect, prompts
from peerwise.tasks.base import ProblemSet

PROGRAMS = "programs"


def runs_programs(task: Task) -> bool:
    """Whether judging an answer means running it."""
    return PROGRAMS in (task.reward, *task.reward_weights)


def scorer_of(task: Task, *, longest: int, warn: Callable[[str], object], most_failures: float | None = None) -> Scorer:
    """The scorer that a task's settings ask for.

    Args:
        longest: tokens that an answer may have, where the settings do not say.
        warn: is told the first time that a reward of the user's own fails.
        most_failures: share of samples that may fail; None takes the task's.
    """
    return build(
        task.reward,
        task.reward_weights,
        last_number=task.last_number,
        longest=task.reward_length or longest,
        all_or_nothing=task.all_or_nothing,
        timeout_s=task.reward_timeout,
        most_failures=task.reward_failures if most_failures is None else most_failures,
        warn=warn,
    )


def checked(label: str, problems: ProblemSet, task: Task, *, solutions: bool) -> ProblemSet:
    """The problems whose gold can be graded, the others counted; all of them where the task's reward grades no gold.

    Args:
        solutions: leave out those whose worked solution comes to another answer than the gold, too.
    Raises:
        DataError: more than `task.max_faulty` of all rows are faulty.
    """
    if _compares_golds(task):
        grading = inspect.Grading(template=prompts.get(task.template), judge=judge, verifiable=verifiable)
        problems = inspect.graded(problems, grading, solutions=solutions)
    inspect.refuse_above(f"task {label!r}", problems, share=task.max_faulty)
    return problems


def try_reward(
    label: str, problems: Sequence[Problem], task: Task, *, longest: int, warn: Callable[[str], object]
) -> None:
    """Hand the reward right answers and empty ones before anything is trained on it.

    What a reward of the user's own wants is the user's to know, so of that only a warning is given.

    Raises:
        DataError: a named reward does not know them apart.
    """
    scorer = scorer_of(task, longest=longest, warn=lambda text: None, most_failures=1.0)
    template = prompts.get(task.template)
    programs = runs_programs(task)
    tried = [problem for problem in problems if not programs or problem.solution is not None]

    def right_answer(problem: Problem) -> str:
        # The gold of a program task is its tests; a program that passes them is the solution.
        return problem.solution or "" if programs else template.state(problem.answer)

    found = selftest(scorer, tried, right_answer) if tried else None
    if found is None:
        return
    if task.reward not in NAMES:
        warn(f"task {label}: {found}")
        return
    raise DataError(f"task {label!r}: {found}")


def _compares_golds(task: Task) -> bool:
    return task.reward in NAMES and not runs_programs(task)
