"""Rows of a file that another process is writing: each call gives what has come since the last one.

Reads whole lines only, so a line that is being written is given when it is complete. Knows nothing of what rows mean.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Follow:
    """New lines of one file, from its beginning.

    A file that has become shorter was rewound by a resumed run; what it still holds has been given, so reading goes on
    behind it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0

    def lines(self) -> Iterator[str]:
        """Complete lines that were not given before; none while there is no file."""
        try:
            with self.path.open("rb") as file:
                self._offset = min(self._offset, file.seek(0, 2))
                file.seek(self._offset)
                for line in file:
                    if not line.endswith(b"\n"):
                        return
                    self._offset += len(line)
                    yield line.decode("utf-8", errors="replace").rstrip("\n")
        except FileNotFoundError:
            return

    def rows(self) -> Iterator[dict[str, Any]]:
        """The lines as JSON objects; what is none is passed over."""
        for line in self.lines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict):
                yield row
