"""The program's process: compiles and runs the program, then calls what the tests ask for.

Holds no test and no expected value, so there is nothing here to read or to patch that would help a wrong program: all
it can do is give answers. Nothing it says is believed beyond that.
"""

from __future__ import annotations

import sys
import types
from typing import Any

from .confine import arguments, confine
from .wire import Gone, Peer, offered

MODULE = "program"


def main(argv: list[str]) -> None:
    """Serve one program until the tests' process ends."""
    (reading, writing), settings = arguments(argv)
    confine(settings)
    module = types.ModuleType(MODULE)
    sys.modules[MODULE] = module
    sys.argv = [MODULE]
    peer = Peer(reading, writing, lambda name: _find(module, name))
    peer.send({"ready": True})
    try:
        asked = peer.receive()
        code = _compiled(asked["source"])
        peer.send({"compiled": code is not None})
        if code is not None:
            peer.send({"loaded": _loaded(module, asked["prelude"], code)})
            while True:
                peer.answer(peer.receive())
    except Gone:
        return


def _compiled(source: str) -> types.CodeType | None:
    try:
        return compile(source, f"<{MODULE}>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError):
        return None


def _loaded(module: types.ModuleType, prelude: str, code: types.CodeType) -> bool:
    try:
        exec(compile(prelude, "<prelude>", "exec", dont_inherit=True), module.__dict__)
        exec(code, module.__dict__)
    except BaseException:
        return False
    return True


def _find(module: types.ModuleType, name: str) -> Any:
    """`global NAME`: a function that returns this global of the program; else one of those offered by name."""
    kind, _, own = name.partition(" ")
    if kind == "global":
        return lambda: module.__dict__[own]
    return offered(name)
