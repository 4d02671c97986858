"""What runs inside vLLM: a weight transfer engine that reads safetensors files from a folder both sides see.

vLLM finds `register` through the entry point `vllm.general_plugins` where peerwise is installed in its environment.
It knows nothing of training and imports nothing else of peerwise, so that vLLM's environment needs no more of it.
The payload names a file within the folder that was agreed on at the start; nothing is ever unpickled.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

BACKEND = "peerwise_files"
"""The name to give vLLM: --weight-transfer-config '{"backend": "peerwise_files"}'."""
PREFIX = "peerwise-"
"""What names of our folders and adapters begin with."""


def register() -> None:
    """Make the engine known to vLLM in this process; doing it again changes nothing."""
    from vllm.distributed.weight_transfer import WeightTransferEngineFactory

    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, "peerwise.rollout.vllm.files_engine", "FilesEngine")


@dataclass
class FilesInit:
    """What both sides agree on once."""

    folder: str
    """Where the trainer writes, as the server sees it."""

    def path(self, name: str) -> Path:
        """The file of that name in the folder. Raises ValueError for a name that leads elsewhere."""
        if Path(name).name != name or name in ("", ".", ".."):
            raise ValueError(f"{name!r} is not the plain name of a file")
        return Path(self.folder) / name


@dataclass
class FilesUpdate:
    """One file of weights."""

    name: str
