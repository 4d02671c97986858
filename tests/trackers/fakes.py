"""Stand-ins for the packages of trackers: modules that write down how they are called."""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path
from typing import Any

import pytest

CALLS = "calls.txt"

TRACKIO = """
import os, sys, time
from pathlib import Path

def note(*words):
    with open(Path(os.environ["FAKE_FOLDER"]) / "calls.txt", "a") as file:
        print(*words, file=file)

class Table:
    def __init__(self, columns, data):
        self.data = data
    def __repr__(self):
        return f"table of {len(self.data)}"

class Run:
    def log(self, values, step):
        note("log", step, values)
        do("log")
    def finish(self):
        note("finish")
        do("finish")

def do(when):
    place, _, what = os.environ.get("FAKE_TROUBLE", "").partition(":")
    if place != when:
        return
    if what == "raise":
        raise ValueError("no room\\nleft")
    if what == "hang":
        time.sleep(60)
    if what == "exit":
        os._exit(3)

def init(**settings):
    print("hello from the tracker")
    note("init", settings["name"], settings["resume"], settings["config"])
    do("init")
    return Run()
"""
"""A module `trackio`. FAKE_TROUBLE = PLACE:WHAT makes it raise, hang or exit in init, log or finish."""


def installed(folder: Path, monkeypatch: pytest.MonkeyPatch, trouble: str = "") -> Path:
    """Put the stand-in for trackio where both this process and new ones find it; the file of its calls."""
    modules = folder / "modules"
    modules.mkdir()
    (modules / "trackio.py").write_text(TRACKIO)
    monkeypatch.syspath_prepend(str(modules))
    monkeypatch.setenv("PYTHONPATH", str(modules))
    monkeypatch.setenv("FAKE_FOLDER", str(folder))
    monkeypatch.setenv("FAKE_TROUBLE", trouble)
    return folder / CALLS


class Recorder:
    """Any object: attributes are recorders, calls are written down with the dotted name they were made by."""

    def __init__(self, calls: list[Any], name: str = "", **fixed: Any) -> None:
        self._calls, self._name, self._fixed = calls, name, fixed

    def __getattr__(self, name: str) -> Any:
        if name in self._fixed:
            return self._fixed[name]
        return Recorder(self._calls, f"{self._name}.{name}".lstrip("."), **self._fixed)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._calls.append((self._name, args, kwargs))
        return Recorder(self._calls, f"{self._name}()", **self._fixed)

    def __setitem__(self, key: str, value: Any) -> None:
        self._calls.append((self._name, key, value))

    def __repr__(self) -> str:
        return f"<{self._name}>"


def recorded(module: str, monkeypatch: pytest.MonkeyPatch, *inner: str, **fixed: Any) -> tuple[Any, list[Any]]:
    """The adapter module `peerwise.trackers.<module>` over a recorder of `inner[0]`, and the list of its calls."""
    calls: list[Any] = []
    for name in inner:
        fake = types.ModuleType(name)
        fake.__getattr__ = Recorder(calls, "", **fixed).__getattr__  # type: ignore[method-assign]
        monkeypatch.setitem(sys.modules, name, fake)
    monkeypatch.delitem(sys.modules, f"peerwise.trackers.{module}", raising=False)
    return importlib.import_module(f"peerwise.trackers.{module}"), calls
