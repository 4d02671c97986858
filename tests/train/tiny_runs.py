"""A run of seven steps on a tiny model, in several variants; how to start, kill, resume and compare it."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from peerwise.metrics.console import Console
from peerwise.metrics.write import ROW_FILES, read_rows
from peerwise.recipe.load import loads
from peerwise.train.grpo import Grpo
from peerwise.train.stages import resume, train

RECIPE = """
[run]
seed = 3
checkpoint_every = 2
samples_every = 0
[model]
path = "{model}"
dtype = "float32"
[task]
name = "arithmetic"
template = "plain"
reward = "{reward}:odd"
[task.params]
size = 60
max_ops = 2
[rollout]
problems = 2
group_size = 4
max_new_tokens = 8
max_prompt_tokens = 64
max_branches = 5
[algorithm]
kl_coefficient = 0.0
[evaluation]
every = 2
problems = 8
[sft]
batch_size = 4
[stage.sft]
method = "sft"
steps = 3
optimizer.learning_rate = 1e-3
rollout.max_new_tokens = 64
[stage.grpo]
method = "grpo"
steps = 4
optimizer.learning_rate = 1e-3
"""
"""Checkpoints after steps 2 and 3 (the end of sft), 5 and 7 (the end); evaluations at 0, 2, 3, 5 and 7."""

REWARD = """
import os, signal, time

calls = 0

def odd(problem, completion):
    global calls
    # Only sampled answers count: those with which a run tries the reward out have log-probs of 0.
    calls += any(completion.logprobs)
    name, _, at = os.environ.get("TEST_SIGNAL", "").partition("@")
    if at and calls == int(at):
        for _ in range(1 + name.endswith("+")):
            os.kill(os.getpid(), getattr(signal, name.rstrip("+")))
            time.sleep(0.2)  # this is not the main thread: it must have taken the first before the second comes
    return {"correct": float(sum(map(ord, completion.text)) % 2)}
"""
"""About half of a random model's answers are right, so that there is something to follow from the first step on.
TEST_SIGNAL = NAME@N sends this process a signal while the N-th answer is scored, NAME+@N two of them."""

VARIANTS = {
    "full": [],
    "kl": ["--algorithm.kl-coefficient", "0.1", "--algorithm.updates-per-batch", "2"],
    "lora": ["--model.lora-rank", "2"],
    "lora-kl": ["--model.lora-rank", "2", "--algorithm.kl-coefficient", "0.1"],
    "bfloat16": ["--model.dtype", "bfloat16"],
}
EVALUATION_CALLS = 8
"""Answers scored by one evaluation, and by one step of grpo."""


def start(files: Path, folder: Path, variant: str = "full", *words: str) -> str:
    """Train in this process; what was said on the way."""
    said = io.StringIO()
    recipe = loads((files / "recipe.toml").read_text(), [*VARIANTS[variant], *words])
    train(recipe, folder, Console(file=said))
    return said.getvalue()


def go_on(folder: Path) -> str:
    said = io.StringIO()
    resume(folder, Console(file=said))
    return said.getvalue()


def rows(folder: Path, name: str) -> list[dict[str, Any]]:
    """The rows of a file without what a clock or the machine decides."""
    return [
        {key: value for key, value in row.items() if not key.startswith(("time/", "speed/", "memory/"))}
        for row in read_rows(folder / name)
    ]


def digests(folder: Path) -> dict[str, str]:
    """Every file below a folder with a digest of its bytes."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def assert_same_run(folder: Path, expected: Path) -> None:
    for name in ROW_FILES:
        assert rows(folder, name) == rows(expected, name)
    assert digests(folder / "checkpoints") == digests(expected / "checkpoints")


class Killed(BaseException):
    """Stands in for SIGKILL: nothing of ours may catch it."""


@contextlib.contextmanager
def killed_at(owner: Any, method: str, call: int, *, after: bool, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The process "dies" at the given call of a method, before or after the call does its work."""
    calls = 0
    original = getattr(owner, method)

    @functools.wraps(original)
    def dying(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call and not after:
            raise Killed
        result = original(*args, **kwargs)
        if calls == call:
            raise Killed
        return result

    with monkeypatch.context() as patch:
        patch.setattr(owner, method, dying)
        with pytest.raises(Killed):
            yield


class Opened(BaseException):
    """Carries a stage out of the run that made it."""


def opened(files: Path, folder: Path, *words: str) -> Grpo:
    """The grpo stage as a run without an sft stage makes it, ready for its first step."""

    def caught(self: Grpo, step: int) -> Any:
        raise Opened(self)

    text = (files / "recipe.toml").read_text()
    recipe = loads(text[: text.index("[stage.sft]")] + text[text.index("[stage.grpo]") :], words)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Opened) as found:
        patch.setattr(Grpo, "step", caught)
        train(recipe, folder, Console(file=io.StringIO()))
    return found.value.args[0]
