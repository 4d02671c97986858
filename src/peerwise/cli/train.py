"""`peerwise train RECIPE [--section.key value ...]` and `peerwise train --resume RUN`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from peerwise.cli.process import keep_freed_memory
from peerwise.errors import RequestError
from peerwise.recipe.check import check
from peerwise.recipe.load import load, loads

SUMMARY = "train a model by a recipe, or go on with a run"
USAGE = """usage: peerwise train RECIPE [--section.key value ...] [--quiet]
       peerwise train --resume RUN [--quiet]

Every setting of a recipe can be given as --section.key value; `peerwise train RECIPE --help` lists them."""


def run(argv: Sequence[str]) -> int:
    """Train, or resume.

    Raises:
        RequestError: wrong words, a recipe, model or data that cannot be used.
    """
    words = [word for word in argv if word != "--quiet"]
    quiet = len(words) < len(argv)
    if words and words[0] in ("-h", "--help"):
        print(USAGE)
        loads("", ["--help"])
        return 0
    if words and words[0] == "--resume":
        if len(words) != 2:
            raise RequestError("--resume takes the run folder and nothing else; a run goes on as it was begun")
        return _resume(Path(words[1]), quiet)
    if not words or words[0].startswith("-"):
        raise RequestError("give the recipe first: peerwise train RECIPE [--section.key value ...]")
    return _train(Path(words[0]), words[1:], quiet)


def _train(path: Path, overrides: Sequence[str], quiet: bool) -> int:
    recipe = load(path, overrides)
    warnings = check(recipe)
    folder = Path(recipe.run.out) if recipe.run.out else Path("runs") / path.stem
    _prepare()
    from peerwise.metrics.console import Console
    from peerwise.train.stages import train

    console = Console(quiet=quiet)
    try:
        for warning in warnings:
            console.warn(warning)
        train(recipe, folder, console)
    finally:
        console.close()
    return 0


def _resume(folder: Path, quiet: bool) -> int:
    _prepare()
    from peerwise.metrics.console import Console
    from peerwise.train.stages import resume

    console = Console(quiet=quiet)
    try:
        resume(folder, console)
    finally:
        console.close()
    return 0


def _prepare() -> None:
    keep_freed_memory()
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.stderr.reconfigure(line_buffering=True)  # type: ignore[union-attr]
