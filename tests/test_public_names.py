"""Pins the public names of the package, and that what needs no torch does not import it."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import pkgutil
import subprocess
import sys
import types

import pytest

import peerwise

HEAVY = ("torch", "transformers", "datasets", "peft", "reasoning_gym")


def in_a_new_process(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_all_names_are_there_and_nothing_else_is():
    public = {
        name
        for name, value in vars(peerwise).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert public | {"__version__"} == set(peerwise.__all__)
    assert len(set(peerwise.__all__)) == len(peerwise.__all__)


def test_a_star_import_gives_exactly_the_public_names():
    names = in_a_new_process("before = set(dir()); from peerwise import *; print(*sorted(set(dir()) - before))").split()
    assert sorted({*names} - {"before"}) == sorted(peerwise.__all__)


@pytest.mark.parametrize("name", [name for name in peerwise.__all__ if name != "__version__"])
def test_every_public_name_is_documented(name):
    value = getattr(peerwise, name)
    text = inspect.getdoc(value)
    assert text
    # A dataclass without a docstring gets its signature for one.
    assert not text.startswith(f"{name}(")


def test_the_version_is_that_of_the_installed_package():
    assert peerwise.__version__ == importlib.metadata.version("peerwise")


def test_every_module_says_what_it_is():
    found = [module.name for module in pkgutil.walk_packages(peerwise.__path__, "peerwise.")]
    # Rooms are packages whose files speak for them; their __init__ may be empty.
    silent = []
    for name in found:
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        source = spec.loader.get_source(name)  # type: ignore[attr-defined]
        if source.strip() and not source.lstrip().startswith('"""'):
            silent.append(name)
    assert silent == []


@pytest.mark.parametrize("words", [["--help"], ["--version"]])
def test_help_and_version_answer_without_torch(words):
    code = (
        "import sys, peerwise.cli.main as m\n"
        f"code = m.main({words!r})\n"
        f"print('imported:', [name for name in {HEAVY!r} if name in sys.modules], code)"
    )
    assert in_a_new_process(code).splitlines()[-1] == "imported: [] 0"


@pytest.mark.parametrize(
    "modules",
    [
        "peerwise",
        "peerwise.recipe.schema peerwise.recipe.load peerwise.recipe.check peerwise.recipe.plan peerwise.recipe.dump",
        "peerwise.rewards.rubric peerwise.rewards.equal peerwise.rewards.extract",
        "peerwise.tasks.base peerwise.tasks.order",
        "peerwise.metrics.console peerwise.metrics.write peerwise.metrics.value",
        "peerwise.evaluate.estimate",
    ],
)
def test_rooms_without_tensors_import_no_torch(modules):
    code = f"import sys, {', '.join(modules.split())}\nprint([name for name in {HEAVY!r} if name in sys.modules])"
    assert in_a_new_process(code) == "[]\n"


def test_a_recipe_is_loaded_and_checked_without_torch(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text("[rollout]\nproblems = 2\ngroup_size = 4\n")
    code = (
        "import sys\nfrom peerwise.recipe.load import load, dumps\nfrom peerwise.recipe.check import check\n"
        f"check(load({str(path)!r}))\nprint(len(dumps(load({str(path)!r}))) > 0, 'torch' in sys.modules)"
    )
    assert in_a_new_process(code) == "True False\n"
