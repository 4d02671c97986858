"""A policy and real vLLM servers on loopback. `make test-vllm` sets PEERWISE_VLLM_PYTHON, the Python of vLLM's
environment; without it the tests of servers are skipped. What tests measured is shown at the end."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agreement import CONTEXT

from peerwise.models.load import Policy, load
from peerwise.models.lora import add_lora

MODEL = "smollm2-135m-instruct"
RANK = 8
MEASURED: list[str] = []


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for line in MEASURED:
        terminalreporter.write_line(line)


@pytest.fixture
def measured() -> Callable[[str], None]:
    """Takes a line that is shown when all tests have ended."""
    return MEASURED.append


@pytest.fixture(scope="session")
def policy() -> Policy:
    return load(MODEL, dtype="float32")


@pytest.fixture
def adapted() -> Policy:
    """A policy that trains adapters."""
    policy = load(MODEL, dtype="float32")
    add_lora(policy.model, rank=RANK, alpha=None, seed=0)
    return policy


@pytest.fixture(scope="session")
def start_server(policy: Policy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., tuple[str, Any]]]:
    """`start_server(port, lora_rank)` gives (URL, process) of a small server; all of them end with the tests."""
    from peerwise.rollout.vllm.launch import command, serving

    with contextlib.ExitStack() as running, pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
        patch.setenv("VLLM_NO_USAGE_STATS", "1")

        def start(port: int | None = None, lora_rank: int = 0) -> tuple[str, Any]:
            port = port or free_port()
            words = command(
                policy.source,
                python=os.environ["PEERWISE_VLLM_PYTHON"],
                port=port,
                dtype="float32",
                max_model_len=CONTEXT,
                lora_rank=lora_rank,
                more=("--enforce-eager", "--max-num-seqs", "16"),
            )
            log = tmp_path_factory.mktemp("server") / f"{port}.log"
            url = f"http://127.0.0.1:{port}"
            return url, running.enter_context(serving(words, url, log))

        yield start


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture(scope="session")
def pair(start_server: Callable[..., tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Two servers."""
    return [start_server(), start_server()]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder for what is written."""
    return tmp_path
