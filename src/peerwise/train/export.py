"""A run's best model, or its adapters, as a plain Hugging Face folder with a model card, for use without peerwise.

Copies a checkpoint and computes nothing; what the card says is `card`'s.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file

from peerwise.errors import RequestError, RunFolderError
from peerwise.metrics.write import EVALS_FILE, RECIPE_FILE, read_rows
from peerwise.models.adapters import write_adapters
from peerwise.models.embedded import NAME, resolve
from peerwise.recipe.load import load
from peerwise.recipe.schema import Recipe
from peerwise.train.card import card
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


def export(run: Path, target: Path, *, merge_lora: bool = False) -> Path:
    """Write the best model of a run to a new folder, with a README.md; returns the checkpoint it was.

    A run that trained all weights gives the whole model. A run that trained adapters gives those, as peft has them,
    or with `merge_lora` the whole model with the adapters folded in. The folder is made beside its place and renamed,
    so it is whole or not there.

    Raises:
        RunFolderError: no run, no checkpoint, or the target exists or cannot be written.
        RequestError: adapters to merge in a run that has none.
    """
    if not is_run(run):
        raise RunFolderError(f"{run} is not a run: it has no {RECIPE_FILE}")
    if target.exists():
        raise RunFolderError(f"{target} exists and is not overwritten; give a new folder")
    recipe = load(run / RECIPE_FILE)
    if merge_lora and not recipe.model.lora_rank:
        raise RequestError(f"{run} trained all weights, so there are no adapters to merge; leave --merge-lora out")
    adapters_apart = bool(recipe.model.lora_rank) and not merge_lora
    source = best_checkpoint(run)
    with _whole(target) as beside:
        shutil.copytree(source, beside, ignore=_left_out(adapters_apart), dirs_exist_ok=True)
        if adapters_apart:
            _write_adapters(source / TRAINER / "weights.safetensors", recipe, beside)
        (beside / "README.md").write_text(_card(run, source, recipe, adapters_apart), encoding="utf-8")
    return source


def base_of(recipe: Recipe) -> str:
    """Where transformers finds the model that a run began with: an absolute folder, or a name on the hub."""
    path = resolve() if recipe.model.path == NAME else recipe.model.path
    return str(Path(path).resolve()) if Path(path).exists() else path


@contextmanager
def _whole(target: Path) -> Iterator[Path]:
    """A folder to write to that becomes the target at the end of the block, or is gone.

    Raises:
        RunFolderError: it cannot be written.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        try:
            yield beside
            beside.chmod(0o755)
            beside.rename(target)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RunFolderError(f"{target} cannot be written ({reason})") from error


def _left_out(adapters_apart: bool) -> Callable[[Any, list[str]], set[str]]:
    """What is not copied of a checkpoint: what only training reads, and beside adapters the model they are for."""
    model = ("model*.safetensors", "model.safetensors.index.json", "config.json", "generation_config.json")
    return shutil.ignore_patterns(TRAINER, *(model if adapters_apart else ()))


def _write_adapters(weights: Path, recipe: Recipe, folder: Path) -> None:
    """The adapters of a checkpoint in the form of peft."""
    write_adapters(
        folder,
        load_file(weights),
        rank=recipe.model.lora_rank,
        alpha=recipe.model.lora_alpha or 2 * recipe.model.lora_rank,
        base=base_of(recipe),
        revision=recipe.model.revision,
    )


def _card(run: Path, checkpoint: Path, recipe: Recipe, adapters_apart: bool) -> str:
    evaluations = _evaluations(run)
    step = next(state.global_step for folder, state in checkpoints(run) if folder == checkpoint)
    return card(
        run.resolve().name,
        recipe,
        step,
        evaluations.get(0, []),
        evaluations.get(step, []),
        base=base_of(recipe),
        adapters_apart=adapters_apart,
    )


def _evaluations(run: Path) -> dict[int, list[dict[str, Any]]]:
    """The records of evaluations by global step."""
    path = run / EVALS_FILE
    found: dict[int, list[dict[str, Any]]] = {}
    for row in read_rows(path) if path.exists() else ():
        found.setdefault(row["global_step"], []).append(row)
    return found
