"""Every error peerwise raises on purpose, on one page.

    PeerwiseError                 something went wrong that we can name (exit code 1)
     ├── RequestError             the request was wrong; nothing was started (exit code 2)
     │    ├── RecipeError         a recipe: unknown key, value out of bounds, settings that contradict
     │    ├── DataError           a data file: missing, unreadable, malformed row, missing column, empty
     │    ├── ModelError          a model: unknown name, broken folder, context too short, not supported
     │    └── RunFolderError      a run folder: exists already, is not a run, cannot be resumed
     ├── RewardError              a reward function raised or returned something that is not a score
     ├── EngineError              a sampling engine outside our code: not reachable, died, answers what was not asked
     ├── TrainingError            the run cannot go on: non-finite numbers several steps in a row
     └── CheckpointError          a checkpoint could not be written or read; the last good one is untouched

A message says what was given, what was expected and what to do. `cli` turns each into one line and the
exit code; a traceback appears only with `--debug`. `assert` is for our own invariants, never for users.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class PeerwiseError(Exception):
    """Root of the tree: a failure with a name. Exit code 1."""

    exit_code = 1


class RequestError(PeerwiseError):
    """The request was wrong and nothing was started. Exit code 2."""

    exit_code = 2


class RecipeError(RequestError):
    """One or more settings are wrong; the message lists every one of them."""


class DataError(RequestError):
    """A data set cannot be used as given; the message names the file and line or column."""


class ModelError(RequestError):
    """A model cannot be loaded or does not fit the recipe."""


class RunFolderError(RequestError):
    """A run folder exists already, is not a run, or cannot be resumed."""


class RewardError(PeerwiseError):
    """A reward function raised, or returned something that is not a score."""


class EngineError(PeerwiseError):
    """A sampling engine that is not ours cannot be reached, died, or answers something else than was asked."""


class TrainingError(PeerwiseError):
    """Training cannot go on; what is needed to find out why has been saved."""


class CheckpointError(PeerwiseError):
    """A checkpoint could not be written or read. The last good one is untouched."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A tail for 'unknown name' messages: the closest known name, or all of them when none is close.

    >>> nearest("gms8k", ["gsm8k", "math"])
    "did you mean 'gsm8k'?"
    """
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {close[0]!r}?" if close else "known: " + ", ".join(names)
