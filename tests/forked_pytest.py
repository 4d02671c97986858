"""Runs pytest against copies of the package, each run in a fork of a process that has torch loaded already.

Reads one JSON object a line from stdin: `root` (the folder that holds the copy of peerwise), `log` (file for the
output), `limit` (seconds after which the run is killed) and `arguments` (of pytest); answers each with the exit code on
a line of stdout. It must not import peerwise itself: a fork takes the package from its own root.
"""

from __future__ import annotations

import json
import os
import signal
import sys

import hypothesis  # noqa: F401
import peft  # noqa: F401
import pytest
import torch  # noqa: F401
import transformers.models.gemma2.modeling_gemma2
import transformers.models.llama.modeling_llama
import transformers.models.mistral.modeling_mistral  # noqa: F401


def run(root: str, log: str, limit: int, arguments: list[str]) -> None:
    """In the fork: never returns."""
    signal.alarm(limit)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.path.insert(0, root)
    try:
        import peerwise

        print("tested:", peerwise.__file__, flush=True)
        code = int(pytest.main(arguments))
        sys.stdout.flush()
    except BaseException as error:
        os.write(2, f"{error!r}\n".encode())
        code = 3
    os._exit(code)


if __name__ == "__main__":
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            run(request["root"], request["log"], request["limit"], request["arguments"])
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
