"""A directory with a recipe, data and a tiny model, all of them good, for tests to spoil one at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_recipe import GOOD, RECIPE


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model as a Hugging Face folder."""
    from tiny_models import tiny_policy

    folder = tmp_path_factory.mktemp("models") / "model"
    policy = tiny_policy("llama")
    policy.model.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def here(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: recipe.toml, data.jsonl and model, all of them good."""
    (tmp_path / "model").symlink_to(model)
    (tmp_path / "recipe.toml").write_text(RECIPE)
    (tmp_path / "data.jsonl").write_text(GOOD)
    monkeypatch.chdir(tmp_path)
    return tmp_path
