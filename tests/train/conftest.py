"""The files of a tiny run, and its undisturbed result."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from tiny_models import tiny_policy

pytest.register_assert_rewrite("tiny_runs")

from tiny_runs import RECIPE, REWARD, start  # noqa: E402


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, a reward and a recipe."""
    folder = tmp_path_factory.mktemp("files")
    policy = tiny_policy("llama")
    policy.model.save_pretrained(folder / "model")
    policy.tokenizer.save_pretrained(folder / "model")
    (folder / "reward.py").write_text(REWARD)
    (folder / "recipe.toml").write_text(RECIPE.format(model=folder / "model", reward=folder / "reward.py"))
    return folder


@pytest.fixture(scope="session")
def straight(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a run that nothing disturbed, by variant; made once."""

    @functools.cache
    def made(variant: str) -> Path:
        folder = tmp_path_factory.mktemp("straight") / variant
        start(files, folder, variant)
        return folder

    return made
