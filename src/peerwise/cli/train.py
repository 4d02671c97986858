"""`peerwise train RECIPE [--section.key value ...]` and `peerwise train --resume RUN`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peerwise.cli.process import keep_freed_memory
from peerwise.errors import PeerwiseError, RequestError
from peerwise.recipe.check import check
from peerwise.recipe.load import load, loads
from peerwise.recipe.schema import Recipe

if TYPE_CHECKING:
    from peerwise.metrics.console import Console

SUMMARY = "train a model by a recipe, or go on with a run"
USAGE = """usage: peerwise train RECIPE [--section.key value ...] [--quiet] [--json]
       peerwise train --resume RUN [--quiet] [--json]

Every setting of a recipe can be given as --section.key value; `peerwise train RECIPE --help` lists them."""


def run(argv: Sequence[str]) -> int:
    """Train, or resume.

    Raises:
        RequestError: wrong words, a recipe, model or data that cannot be used.
    """
    words = [word for word in argv if word not in ("--quiet", "--json")]
    quiet, as_json = "--quiet" in argv, "--json" in argv
    if words and words[0] in ("-h", "--help"):
        print(USAGE)
        loads("", ["--help"])
        return 0
    if words and words[0] == "--resume":
        if len(words) != 2:
            raise RequestError("--resume takes the run folder and nothing else; a run goes on as it was begun")
        recipe, folder, warnings = None, Path(words[1]), []
    elif not words or words[0].startswith("-"):
        raise RequestError("give the recipe first: peerwise train RECIPE [--section.key value ...]")
    else:
        recipe = load(words[0], words[1:])
        folder = Path(recipe.run.out) if recipe.run.out else Path("runs") / Path(words[0]).stem
        warnings = check(recipe)
    result = _run(recipe, folder, warnings, quiet)
    if as_json:
        print(json.dumps(result, ensure_ascii=False))
    return 0


def _run(recipe: Recipe | None, folder: Path, warnings: Sequence[str], quiet: bool) -> dict[str, Any]:
    """A new run by its recipe, or with None the one in the folder."""
    _prepare()
    from peerwise.metrics.console import Console
    from peerwise.train.stages import resume, train

    console = Console(quiet=quiet)
    try:
        for warning in warnings:
            console.warn(warning)
        result = resume(folder, console) if recipe is None else train(recipe, folder, console)
        return result | {"report": _report(folder, console)}
    finally:
        console.close()


def _report(folder: Path, console: Console) -> str | None:
    """Write the page that shows the run; a full disk must not fail a run that is over."""
    from peerwise.metrics.write import RECIPE_FILE
    from peerwise.recipe.dump import diff
    from peerwise.report import build

    try:
        page = build(folder, changes=diff(load(folder / RECIPE_FILE))).html
    except PeerwiseError as error:
        console.warn(f"the report was not written: {error}; `peerwise report {folder}` writes it")
        return None
    console.note(f"the report is {page}")
    return str(page)


def _prepare() -> None:
    keep_freed_memory()
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.stderr.reconfigure(line_buffering=True)  # type: ignore[union-attr]
