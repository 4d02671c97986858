"""`peerwise watch RUN`: the terminal view of a run that another process writes, or that is over."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from peerwise.cli.words import Parser
from peerwise.errors import RunFolderError

SUMMARY = "the terminal view of a run in another process"
POLL_S = 1.0


def run(argv: Sequence[str]) -> int:
    """Show what the run has done and go on as it does, until it is over or Ctrl-C; with --once only what is there.

    Raises:
        RunFolderError: the folder is not a run.
    """
    options = _parser().parse_args(argv)
    folder = Path(options.run)
    from peerwise.metrics.board import Planned
    from peerwise.metrics.console import Console
    from peerwise.metrics.replay import Replay
    from peerwise.metrics.write import RECIPE_FILE
    from peerwise.recipe.load import load

    if not (folder / RECIPE_FILE).is_file():
        raise RunFolderError(f"{folder} is not a run: it has no recipe.toml; give the folder that a run is written to")
    recipe = load(folder / RECIPE_FILE)
    stages = {name: Planned(name, stage.method, stage.steps) for name, stage in recipe.stage.items()}
    console = Console(quiet=options.quiet)
    replay = Replay(folder, stages, recipe.run.samples_every, console)
    try:
        console.plan(folder.resolve().name, list(stages.values()))
        while not replay.tell() and not options.once:
            time.sleep(POLL_S)
    finally:
        console.close()
    console.table(replay.milestones)
    if replay.passed_over:
        counts = ", ".join(f"{count} of {name}" for name, count in replay.passed_over.items())
        console.note(f"rows passed over because they are not what a run writes: {counts}", always=True)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="peerwise watch", description=SUMMARY, allow_abbrev=False)
    parser.add_argument("run", metavar="RUN", help="folder that a run is written to")
    parser.add_argument("--once", action="store_true", help="show what is there and end")
    parser.add_argument("--quiet", action="store_true", help="only warnings")
    return parser
