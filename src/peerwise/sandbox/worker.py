"""The process that `pool` starts and may kill: reads one JSON request a line, answers with JSON lines.

Knows nothing of who asks. It ends with its standard input, and by an alarm should its parent die during a call.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

MEMORY_BYTES = 4 * 2**30
"""Address space a worker may use; asking for more raises MemoryError inside it."""
ORPHAN_GRACE_S = 5.0


def main() -> None:
    """Serve requests until standard input closes."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    # What a function prints must not be read as an answer: answers get a descriptor of their own.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        for answer in _serve(json.loads(line)):
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


def _serve(request: dict[str, Any]) -> Any:
    """Yields {"loaded": true} once the function is imported, then {"result": ...}; or {"error": text}."""
    try:
        module, _, name = request["function"].partition(":")
        function: Callable[..., Any] = getattr(importlib.import_module(module), name)
        yield {"loaded": True}
        signal.setitimer(signal.ITIMER_REAL, request["deadline_s"] + ORPHAN_GRACE_S)
        result = function(*request["args"])
        signal.setitimer(signal.ITIMER_REAL, 0)
        json.dumps(result)
        yield {"result": result}
    except Exception as error:
        signal.setitimer(signal.ITIMER_REAL, 0)
        yield {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    main()
