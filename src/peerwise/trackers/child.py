"""The process that one tracker lives in: `python -m peerwise.trackers.child NAME`, told by JSON lines on its input.

Whatever a tracker's package does (print, ask, hang, fail, take the interpreter down) happens here and not in the run.
The first line begins the run; the input's end is the end of this process's part of it. The last line of output says
why it failed. Knows nothing of what the lines are about.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from peerwise.trackers.base import Run, Tracker
from peerwise.trackers.known import tracker

IDENTITY = "{name}.json"
"""In RUN/trackers: how the tracker itself calls the run."""


def serve(name: str, lines: Iterable[str]) -> None:
    """Tell a tracker what the lines say. Raises whatever the tracker raises."""
    told = map(json.loads, lines)
    run = Run(**next(told))
    found = tracker(name)(run)
    _remember(Path(run.folder) / "trackers" / IDENTITY.format(name=name), found.known_as)
    done = False
    for event in told:
        done = done or event["kind"] == "done"
        _tell(found, event)
    found.close(done)


def _tell(found: Tracker, event: dict[str, Any]) -> None:
    match event["kind"]:
        case "scalars":
            found.scalars(event["step"], event["values"])
        case "table":
            found.table(event["step"], event["name"], event["rows"])
        case "mark":
            found.mark(event["step"], event["name"], event["text"])


def _remember(path: Path, known_as: str) -> None:
    path.write_text(json.dumps({"known_as": known_as}), encoding="utf-8")


def main() -> None:
    """Serve standard input; exit code 1 when the tracker failed."""
    try:
        serve(sys.argv[1], sys.stdin)
    except BaseException as error:
        traceback.print_exc()
        print(f"{type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
        # Threads that the package has left behind must not keep a failed tracker alive.
        os._exit(1)


if __name__ == "__main__":
    main()
