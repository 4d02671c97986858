"""`peerwise export RUN --to DIR [--merge-lora]`: a run's best model as a Hugging Face folder with a model card."""

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
        RequestError: adapters to merge in a run that has none.
    """
    options = _parser().parse_args(argv)
    from peerwise.models.adapters import ADAPTERS_FILE
    from peerwise.train.export import export

    checkpoint, folder = export(Path(options.run), Path(options.to), merge_lora=options.merge_lora), Path(options.to)
    adapters = (folder / ADAPTERS_FILE).exists()
    if options.json:
        record = {"run": options.run, "checkpoint": str(checkpoint), "to": options.to, "adapters_only": adapters}
        print(json.dumps(record, ensure_ascii=False))
    elif adapters:
        print(
            f"the adapters of {checkpoint} are now in {folder}; they need the base model that adapter_config.json "
            "names. --merge-lora writes a folder that needs no other"
        )
    else:
        print(f"{checkpoint} is now in {folder}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="peerwise export", description=SUMMARY, allow_abbrev=False)
    parser.add_argument("run", metavar="RUN", help="folder that a run was written to; its best checkpoint is taken")
    parser.add_argument("--to", required=True, metavar="DIR", help="a new folder")
    parser.add_argument(
        "--merge-lora",
        action="store_true",
        help="of a run that trained adapters the whole model, adapters folded in, instead of the adapters",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    return parser
