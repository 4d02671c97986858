"""`peerwise watch RUN`: the terminal view of a run that another process writes, or that is over."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peerwise.cli.words import Parser
from peerwise.errors import RunFolderError

if TYPE_CHECKING:
    from peerwise.metrics.console import Console
    from peerwise.recipe.schema import Recipe

SUMMARY = "the terminal view of a run in another process"
POLL_S = 1.0


def run(argv: Sequence[str]) -> int:
    """Show what the run has done and go on as it does, until it is over or Ctrl-C; with --once only what is there.

    Raises:
        RunFolderError: the folder is not a run.
    """
    options = _parser().parse_args(argv)
    folder = Path(options.run)
    from peerwise.metrics.console import Console
    from peerwise.metrics.write import RECIPE_FILE
    from peerwise.recipe.load import load

    if not (folder / RECIPE_FILE).is_file():
        raise RunFolderError(f"{folder} is not a run: it has no recipe.toml; give the folder that a run is written to")
    console = Console()
    watched = _Watched(folder, load(folder / RECIPE_FILE), console)
    try:
        while not watched.show() and not options.once:
            time.sleep(POLL_S)
    finally:
        console.close()
    console.table(watched.milestones)
    return 0


class _Watched:
    """What has been shown of a run."""

    def __init__(self, folder: Path, recipe: Recipe, console: Console) -> None:
        from peerwise.metrics.follow import Follow
        from peerwise.metrics.write import EVALS_FILE, METRICS_FILE

        self.recipe, self.console = recipe, console
        self.steps, self.evaluations = Follow(folder / METRICS_FILE), Follow(folder / EVALS_FILE)
        self.log = Follow(folder / "run.log")
        self.milestones: list[dict[str, Any]] = []
        self.stage = ""

    def show(self) -> bool:
        """Show what is new; whether the run's last stage is over."""
        # Evaluations of a step follow it, the first one comes before all steps.
        steps = [(row["global_step"], 0, row) for row in self.steps.rows()]
        evaluations = [(row["global_step"], 1, row) for row in self.evaluations.rows()]
        for _, is_evaluation, row in sorted([*steps, *evaluations], key=lambda found: found[:2]):
            if is_evaluation:
                self.console.evaluation(row)
                if row.get("at") in ("before", "after"):
                    self.milestones.append(row)
            else:
                self._step(row)
        for line in self.log.lines():
            _, mark, text = line.partition(" warning: ")
            if mark:
                self.console.warn(text)
        last = list(self.recipe.stage)[-1]
        return any(row["at"] == "after" and row["stage"] == last for row in self.milestones)

    def _step(self, row: dict[str, Any]) -> None:
        name = row["stage"]
        stage = self.recipe.stage.get(name)
        steps = stage.steps if stage else row["step"]
        if name != self.stage and stage:
            self.console.stage(name, stage.method, steps)
        self.stage = name
        values = {key: value for key, value in row.items() if isinstance(value, int | float)}
        self.console.step(name, row["step"], steps, values)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="peerwise watch", description=SUMMARY, allow_abbrev=False)
    parser.add_argument("run", metavar="RUN", help="folder that a run is written to")
    parser.add_argument("--once", action="store_true", help="show what is there and end")
    return parser
