"""The tests' process: runs the tests against the program in the other process and reports each outcome.

The report goes through a pipe that only this process and its parent hold; its last line is the end marker. The tests
are the data's, so they stand behind the same walls as the program.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any

from .confine import arguments, confine, hidden
from .wire import Gone, Peer


def main(argv: list[str]) -> None:
    """Read the program and its tests from the first descriptor, run them, report to the second."""
    (asking, reporting, reading, writing), settings = arguments(argv)
    confine(settings)
    if "shared" in settings:
        hidden()
    with os.fdopen(asking, "rb") as file:
        asked = json.loads(file.readline())
    peer = Peer(reading, writing)

    def report(**line: Any) -> None:
        os.write(reporting, json.dumps(line).encode() + b"\n")

    peer.receive()
    report(ready=True)
    if _prepared(peer, asked, report):
        namespace = _namespace(peer, asked)
        for test in asked["tests"]:
            # A test that takes any exception for the one it expects would be passed by a program that ends itself.
            report(passed=_passes(test, namespace) and not peer.over)
    report(end=True)


def _prepared(peer: Peer, asked: dict[str, Any], report: Any) -> bool:
    """Whether the program compiled and ran to its end."""
    peer.send({"source": asked["source"], "prelude": asked["prelude"]})
    try:
        compiled = peer.receive().get("compiled") is True
        report(compiled=compiled)
        return compiled and peer.receive().get("loaded") is True
    except Gone:
        return False


def _namespace(peer: Peer, asked: dict[str, Any]) -> dict[str, Any]:
    """What the tests see: the prelude, and of the program only the names it was asked for.

    A name that is missing stays undefined, also where the prelude has it; the tests that use it fail by themselves.
    """
    namespace: dict[str, Any] = {"__name__": "tests"}
    _passes(asked["prelude"], namespace)
    for name in asked["names"]:
        namespace.pop(name, None)
        with contextlib.suppress(Exception):
            namespace[name] = peer.call(f"global {name}")
    return namespace


def _passes(test: str, namespace: dict[str, Any]) -> bool:
    """Whether `test` runs to its end."""
    try:
        exec(compile(test, "<test>", "exec", dont_inherit=True), namespace)
    except BaseException:
        return False
    return True
