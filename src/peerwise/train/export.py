"""A run's best model as a plain Hugging Face folder with a model card, for use without peerwise.

Copies a checkpoint and writes what the run's files say of it; computes nothing.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from peerwise import __version__
from peerwise.errors import RunFolderError
from peerwise.metrics.write import EVALS_FILE, RECIPE_FILE, read_rows
from peerwise.recipe.dump import diff
from peerwise.recipe.load import load
from peerwise.train.checkpoint import checkpoints
from peerwise.train.standing import mean_accuracy

TRAINER = "trainer"
"""The part of a checkpoint that only training reads."""


def is_run(folder: Path) -> bool:
    """Whether a run was written there."""
    return (folder / RECIPE_FILE).is_file()


def best_checkpoint(run: Path) -> Path:
    """The checkpoint with the best held-out accuracy among those that were evaluated, the earliest of equals; the
    latest where none was.

    Raises:
        RunFolderError: the run has no checkpoint yet.
    """
    found = checkpoints(run)
    if not found:
        raise RunFolderError(f"{run} has no checkpoint yet; wait for the first one or lower run.checkpoint_every")
    accuracy = {step: mean_accuracy(rows) for step, rows in _evaluations(run).items()}
    measured = [(folder, state) for folder, state in found if state.global_step in accuracy]
    if not measured:
        return found[-1][0]
    return max(measured, key=lambda one: (accuracy[one[1].global_step], -one[1].global_step))[0]


def export(run: Path, target: Path) -> Path:
    """Copy the best model of a run to a new folder, with a README.md; returns the checkpoint it was.

    The folder is made beside its place and renamed, so it is whole or not there.

    Raises:
        RunFolderError: no run, no checkpoint, or the target exists or cannot be written.
    """
    if not is_run(run):
        raise RunFolderError(f"{run} is not a run: it has no {RECIPE_FILE}")
    if target.exists():
        raise RunFolderError(f"{target} exists and is not overwritten; give a new folder")
    source = best_checkpoint(run)
    card = _card(run, source)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        try:
            shutil.copytree(source, beside, ignore=shutil.ignore_patterns(TRAINER), dirs_exist_ok=True)
            (beside / "README.md").write_text(card, encoding="utf-8")
            beside.chmod(0o755)
            beside.rename(target)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    except OSError as error:
        raise RunFolderError(f"{target} cannot be written ({error.strerror or error})") from error
    return source


def _evaluations(run: Path) -> dict[int, list[dict[str, Any]]]:
    """The records of evaluations by global step."""
    path = run / EVALS_FILE
    found: dict[int, list[dict[str, Any]]] = {}
    for row in read_rows(path) if path.exists() else ():
        found.setdefault(row["global_step"], []).append(row)
    return found


def _card(run: Path, checkpoint: Path) -> str:
    recipe = load(run / RECIPE_FILE)
    evaluations = _evaluations(run)
    step = next(state.global_step for folder, state in checkpoints(run) if folder == checkpoint)
    before, now = evaluations.get(0, []), evaluations.get(step, [])
    rows = "".join(_result(row, before) for row in now) or "| not measured at this step | | | |\n"
    settings = "".join(f"{key} = {value!r}\n" for key, (_, value) in diff(recipe).items() if key != "run.out")
    tasks = "".join(f"- {task.name}" + (f", from {task.path}" if task.path else "") + "\n" for task in recipe.tasks)
    return (
        f"---\nlibrary_name: transformers\nbase_model: {recipe.model.path}\ntags: [grpo, peerwise]\n---\n\n"
        f"# {run.resolve().name}\n\n"
        f"`{recipe.model.path}`, trained with peerwise {__version__} ({', '.join(recipe.stage)}); step {step} of the "
        "run, float32, adapters folded in.\n\n"
        "## Results\n\nHeld-out problems, 95 % intervals.\n\n"
        f"| task | before | this model | problems |\n|---|---|---|---|\n{rows}\n"
        f"## Data\n\n{tasks}\n"
        f"## Recipe\n\nWhat departs from the defaults:\n\n```\n{settings}```\n\n"
        "## Licence\n\nThat of the base model and of the data; fill in before you publish.\n"
    )


def _result(row: Mapping[str, Any], before: list[dict[str, Any]]) -> str:
    earlier = next((old for old in before if old["task"] == row["task"]), None)
    return f"| {row['task']} | {_share(earlier)} | {_share(row)} | {row['n']} |\n"


def _share(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return ""
    low, high = row["interval"]
    return f"{row['accuracy']:.1%} [{low:.1%}, {high:.1%}]"
