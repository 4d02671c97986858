"""The allocator's settings: a command starts anew with them, once, and its work sees the environment it was given."""

import json
import os
import platform
import subprocess
import sys

import pytest

from peerwise.cli import main as cli
from peerwise.cli.main import COMMANDS, WITH_A_MODEL

PROGRAM = """
import json, os, sys
from pathlib import Path
from peerwise.cli.process import start_without_thread_cache
print("begun", flush=True)
start_without_thread_cache()
print(json.dumps([Path("/proc/self/environ").read_text(), dict(os.environ), sys.argv[1:]]))
raise SystemExit(7)
"""

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")


def started(tunables: str | None) -> tuple[int, list, dict[str, str]]:
    """How often it began, what it found, and the environment it was given."""
    environment = {k: v for k, v in os.environ.items() if k != "GLIBC_TUNABLES"}
    if tunables is not None:
        environment["GLIBC_TUNABLES"] = tunables
    words = [sys.executable, "-c", PROGRAM, "a word", "--flag"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert done.returncode == 7, done.stderr
    *begun, found = done.stdout.splitlines()
    assert set(begun) == {"begun"}
    return len(begun), json.loads(found), environment


@glibc
@pytest.mark.parametrize("given", [None, "glibc.malloc.mxfast=64"])
def test_it_starts_anew_once_with_its_words_and_the_environment_it_was_given(given: str | None) -> None:
    begun, (at_start, environment, words), before = started(given)
    # The loader cuts its settings apart where the process can see them.
    assert begun == 2 and "glibc.malloc.tcache_count=0" in at_start and (given or "") in at_start
    assert words == ["a word", "--flag"]
    assert environment == before


@glibc
def test_a_size_of_the_cache_that_somebody_chose_is_left_alone() -> None:
    begun, (at_start, _, _), _ = started("glibc.malloc.tcache_count=3")
    assert begun == 1 and "glibc.malloc.tcache_count=3" in at_start


@glibc
@pytest.mark.parametrize("command", WITH_A_MODEL)
def test_commands_with_a_model_say_what_they_say_after_starting_anew(command: str) -> None:
    done = subprocess.run([sys.executable, "-m", "peerwise", command, "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith(f"usage: peerwise {command}") and not done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_only_the_process_of_a_command_with_a_model_starts_anew(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[None] = []
    monkeypatch.setattr(cli, "start_without_thread_cache", lambda: starts.append(None))
    monkeypatch.setattr(sys, "argv", ["peerwise", command, "--help"])
    cli.main()
    assert len(starts) == (command in ("train", "eval", "sample"))
    # Called with words it is somebody else's process.
    cli.main([command, "--help"])
    assert len(starts) == (command in ("train", "eval", "sample"))
