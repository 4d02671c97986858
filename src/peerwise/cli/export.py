"""`peerwise export RUN --to DIR`: a run's best model as a Hugging Face folder with a model card."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from peerwise.cli.words import Parser

SUMMARY = "a run's best model as a Hugging Face folder"


def run(argv: Sequence[str]) -> int:
    """Write the folder and say which checkpoint it holds.

    Raises:
        RunFolderError: no run, no checkpoint, or the folder exists.
    """
    options = _parser().parse_args(argv)
    from peerwise.train.export import export

    checkpoint = export(Path(options.run), Path(options.to))
    record = {"run": options.run, "checkpoint": str(checkpoint), "to": options.to}
    print(json.dumps(record, ensure_ascii=False) if options.json else f"{checkpoint} is now in {options.to}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="peerwise export", description=SUMMARY, allow_abbrev=False)
    parser.add_argument("run", metavar="RUN", help="folder that a run was written to; its best checkpoint is taken")
    parser.add_argument("--to", required=True, metavar="DIR", help="a new folder")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    return parser
