"""Start a vLLM server with the settings that training needs, and wait until it answers.

    python -m peerwise.rollout.vllm.launch MODEL --port 8000 --dtype bfloat16 --max-model-len 2048 [-- MORE VLLM FLAGS]

and with --lora-rank R where adapters of rank R are trained: the server then keeps its weights and takes adapters.

Runs the Python it is started with, so it is started with that of vLLM's environment. Knows nothing of training.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx2

from peerwise.errors import EngineError, ModelError
from peerwise.rollout.vllm.plugin import BACKEND

MODULE = "vllm.entrypoints.openai.api_server"
ENVIRONMENT = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
"""What gives a server the routes for new weights and for new adapters."""
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The largest ranks that vLLM can be told."""


def command(
    model: str,
    *,
    python: str = sys.executable,
    host: str = "127.0.0.1",
    port: int = 8000,
    dtype: str = "auto",
    max_model_len: int | None = None,
    lora_rank: int = 0,
    more: Sequence[str] = (),
) -> list[str]:
    """The words that start a server, to be run with ENVIRONMENT.

    Args:
        lora_rank: rank of the adapters that are trained; 0 where all weights are.
        more: further flags of vLLM.
    Raises:
        ModelError: vLLM takes no adapters of that rank.
    """
    length = () if max_model_len is None else ("--max-model-len", str(max_model_len))
    updates = adapter_flags(lora_rank) if lora_rank else ("--weight-transfer-config", json.dumps({"backend": BACKEND}))
    return [
        *(python, "-m", MODULE, "--model", model, "--host", host, "--port", str(port), "--dtype", dtype, *length),
        "--enable-scale-out",
        *("--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"),
        *updates,
        *more,
    ]


def adapter_flags(rank: int) -> tuple[str, ...]:
    """The flags with which a server takes adapters of that rank. Raises ModelError for one beyond what vLLM knows."""
    return ("--enable-lora", "--max-lora-rank", str(adapter_room(rank)))


def adapter_room(rank: int) -> int:
    """The least of vLLM's largest ranks that holds this one. Raises ModelError for one beyond what vLLM knows."""
    room = next((largest for largest in RANKS if largest >= rank), None)
    if room is None:
        raise ModelError(f"vLLM takes adapters of rank {RANKS[-1]} at most, got {rank}; set model.lora_rank")
    return room


@contextlib.contextmanager
def serving(words: Sequence[str], url: str, log: Path, *, patience: float = 300.0) -> Iterator[subprocess.Popen[bytes]]:
    """A server that answers at `url`, for the time of the block.

    Args:
        words: what `command` gave.
        log: where its output goes.
        patience: seconds that it may take to start.
    Raises:
        EngineError: it ended or did not answer in time; with the end of its output.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            words, stdout=output, stderr=subprocess.STDOUT, env=os.environ | ENVIRONMENT, start_new_session=True
        )
    try:
        _wait(process, url, log, patience)
        yield process
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes], *, patience: float = 15.0) -> None:
    """End a server and all that it started, kindly first."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)


def _wait(process: subprocess.Popen[bytes], url: str, log: Path, patience: float) -> None:
    until = time.monotonic() + patience
    while time.monotonic() < until:
        if process.poll() is not None:
            raise EngineError(f"vLLM ended while starting ({process.returncode}); the end of {log}:\n{_tail(log)}")
        with contextlib.suppress(httpx2.HTTPError):
            if httpx2.get(f"{url}/health", timeout=5.0, trust_env=False).status_code == 200:
                return
        time.sleep(0.5)
    raise EngineError(f"vLLM did not answer at {url} within {patience:g} s; the end of {log}:\n{_tail(log)}")


def _tail(log: Path, lines: int = 15) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


def main(argv: Sequence[str] | None = None) -> None:
    """Become the server."""
    parser = argparse.ArgumentParser(prog="python -m peerwise.rollout.vllm.launch", description=__doc__)
    parser.add_argument("model", metavar="MODEL", help="the folder or hub name that is trained")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (default %(default)s)")
    parser.add_argument("--port", type=int, default=8000, help="default %(default)s")
    parser.add_argument("--dtype", default="auto", help="as the trainer computes: float32 or bfloat16")
    parser.add_argument("--max-model-len", type=int, help="tokens of the longest prompt and answer")
    parser.add_argument("--lora-rank", type=int, default=0, help="model.lora_rank of the recipe; 0: no adapters")
    parser.add_argument("more", nargs="*", metavar="FLAG", help="after --: further flags of vLLM")
    given = vars(parser.parse_args(argv))
    words = command(given.pop("model"), **given)
    os.environ.update(ENVIRONMENT)
    os.execv(words[0], words)


if __name__ == "__main__":
    main()
