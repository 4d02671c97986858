"""What a command line means by a model: a folder, a hub name, the embedded model, or a run."""

from __future__ import annotations

import sys
from pathlib import Path


def model_of(given: str) -> str:
    """Of a run its best checkpoint, which is said on stderr; everything else as it is given.

    Raises RunFolderError for a run without a checkpoint.
    """
    from peerwise.train.export import best_checkpoint, is_run

    if not is_run(Path(given)):
        return given
    checkpoint = best_checkpoint(Path(given))
    print(f"{given} is a run; its best checkpoint is {checkpoint}", file=sys.stderr)
    return str(checkpoint)
