"""Calls between the tests' process and the program's, as JSON lines over two pipes.

Only data crosses. Values of the standard types arrive as fresh values of these very types, so that a comparison in the
tests' process runs no code of the program. Everything else stays where it is and is stood for by a `Remote`. A list,
dict, set, deque or bytearray given as an argument is brought up to date after the call. Not kept: which of two equal
values was the same object, and the class of a tuple, dict, list, int or str of a subclass.
"""

from __future__ import annotations

import builtins
import datetime
import json
import operator
import os
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

LONGEST_MESSAGE = 16 * 2**20
"""Bytes; a longer message ends the conversation."""
_SMALL = 2**53


class Gone(Exception):
    """The other side has ended, or what it sent is no message."""


class ProgramError(Exception):
    """The program raised something that is not a built-in exception."""


def _build(kind: Callable[[Any], Any]) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    return list, kind


def _mapping(kind: Callable[[Any], Any]) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    return lambda value: [list(pair) for pair in value.items()], lambda pairs: kind((k, v) for k, v in pairs)


# For each type: what to send (its parts are encoded in turn) and how to build it again.
_TYPES: dict[type, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    tuple: _build(tuple),
    set: _build(set),
    frozenset: _build(frozenset),
    dict: _mapping(dict),
    OrderedDict: _mapping(OrderedDict),
    Counter: _mapping(lambda pairs: Counter(dict(pairs))),
    defaultdict: _mapping(lambda pairs: defaultdict(None, pairs)),
    deque: (lambda value: [list(value), value.maxlen], lambda parts: deque(*parts)),
    range: (lambda value: [value.start, value.stop, value.step], lambda parts: range(*parts)),
    complex: (lambda value: [value.real, value.imag], lambda parts: complex(*parts)),
    bytes: (bytes.hex, bytes.fromhex),
    bytearray: (bytearray.hex, bytearray.fromhex),
    Fraction: (lambda value: [value.numerator, value.denominator], lambda parts: Fraction(*parts)),
    Decimal: (str, Decimal),
    datetime.datetime: (datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    datetime.date: (datetime.date.isoformat, datetime.date.fromisoformat),
    datetime.time: (datetime.time.isoformat, datetime.time.fromisoformat),
    datetime.timedelta: (
        lambda value: [value.days, value.seconds, value.microseconds],
        lambda parts: datetime.timedelta(*parts),
    ),
}
_BY_NAME = {kind.__name__: kind for kind in _TYPES}
_WIDER: tuple[Any, ...] = (int, float, str, tuple, list, dict)
"""A value of a subclass travels as the first of these that it is."""
_PURE = frozenset((
    "abs", "all", "any", "ascii", "bin", "callable", "chr", "divmod", "format", "hash", "hex", "id", "isinstance",
    "issubclass", "len", "max", "min", "oct", "ord", "pow", "repr", "round", "sorted", "sum",
))  # fmt: skip
"""Built-in functions that the tests' process takes from the program; types are taken too, all others refused."""
_CHANGING = (list, dict, set, bytearray, deque, OrderedDict, Counter, defaultdict)


class Remote:
    """An object that lives in the other process.

    Nothing that would hand a value of the tests to the program's own comparison is passed on: a Remote equals no plain
    value, has no order and no arithmetic with one; `in` looks through what it yields.
    """

    def __init__(self, peer: Peer, number: int) -> None:
        object.__setattr__(self, "_peer", peer)
        object.__setattr__(self, "_number", number)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._peer.call(self, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return self._peer.call("getattr", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._peer.call("setattr", self, name, value)

    def __getitem__(self, key: Any) -> Any:
        return self._peer.call("getitem", self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._peer.call("setitem", self, key, value)

    def __iter__(self) -> Iterator[Any]:
        iterator: Iterator[Any] = self._peer.call("iter", self)
        return iterator

    def __next__(self) -> Any:
        return self._peer.call("next", self)

    def __len__(self) -> int:
        return int(self._peer.call("len", self))

    def __bool__(self) -> bool:
        return self._peer.call("bool", self) is True

    def __str__(self) -> str:
        return str(self._peer.call("str", self))

    def __repr__(self) -> str:
        return str(self._peer.call("repr", self))

    def __instancecheck__(self, value: Any) -> bool:
        return isinstance(value, Remote) and self._peer.call("isinstance", value, self) is True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Remote) and self._peer.call("eq", self, other) is True

    def __hash__(self) -> int:
        return hash(self._number)

    def __add__(self, other: Any) -> Any:
        return self._peer.call("add", self, other) if isinstance(other, Remote) else NotImplemented

    def __sub__(self, other: Any) -> Any:
        return self._peer.call("sub", self, other) if isinstance(other, Remote) else NotImplemented

    def __lt__(self, other: Any) -> bool:
        return isinstance(other, Remote) and self._peer.call("lt", self, other) is True


class Peer:
    """One end of the conversation. `names` are the functions that the other side may call by name; objects of this
    side can be called by the other only once they have been sent to it.
    """

    def __init__(self, reading: int, writing: int, names: Callable[[str], Any] | None = None) -> None:
        self._reading, self._writing = reading, writing
        self._names = names
        self._buffer = bytearray()
        self._objects: list[Any] = []
        self.over = False
        """Whether the conversation has ended, which code that catches every exception may have hidden."""

    def send(self, message: dict[str, Any]) -> None:
        """Raises Gone when nobody reads."""
        data = memoryview(json.dumps(message).encode() + b"\n")
        try:
            while data:
                data = data[os.write(self._writing, data) :]
        except OSError:
            raise Gone("the other process has ended") from None

    def receive(self) -> dict[str, Any]:
        """The next message. Raises Gone at the end, and for anything that is no message."""
        start = 0
        while (end := self._buffer.find(b"\n", start)) < 0:
            start = len(self._buffer)
            chunk = os.read(self._reading, 65536) if start <= LONGEST_MESSAGE else b""
            if not chunk:
                raise Gone("the other process has ended or sent too much")
            self._buffer += chunk
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            raise Gone("the other process sent no message") from None
        if not isinstance(message, dict):
            raise Gone("the other process sent no message")
        return message

    def call(self, function: Remote | str, *args: Any, **kwargs: Any) -> Any:
        """What the other side's function (its own, or one it offers by name) returns; raises what it raised."""
        if self.over:
            raise Gone("the other process has ended or sent no message")
        try:
            return self._answered(function, args, kwargs)
        except Gone:
            self.over = True
            raise

    def _answered(self, function: Remote | str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.send(
            {
                "call": function if isinstance(function, str) else self.encode(function),
                "args": [self.encode(value) for value in args],
                "kwargs": {name: self.encode(value) for name, value in kwargs.items()},
            }
        )
        while "call" in (answer := self.receive()):
            self.answer(answer)
        if "raised" in answer:
            raise _exception(answer["raised"], answer.get("text", ""))
        for index, new in answer.get("changed", []):
            _update(args[index], self.decode(new))
        return self.decode(answer.get("result"))

    def answer(self, request: dict[str, Any]) -> None:
        """Do one call that the other side asks for; whatever it raises is sent back."""
        try:
            function = self._function(request["call"])
            args = [self.decode(value) for value in request["args"]]
            kwargs = {name: self.decode(value) for name, value in request["kwargs"].items()}
            result = self.encode(function(*args, **kwargs))
            sent = zip(range(len(args)), request["args"], args, strict=True)
            changing = [(i, old, self.encode(new)) for i, old, new in sent if type(new) in _CHANGING]
            reply = {"result": result, "changed": [(i, new) for i, old, new in changing if new != old]}
        except Gone:
            raise
        except BaseException as error:
            reply = {"raised": type(error).__name__, "text": _text(error)}
        self.send(reply)

    def _function(self, asked: Any) -> Any:
        if isinstance(asked, dict) and asked.keys() == {"yours"}:
            return self.decode(asked)
        if self._names is None:
            # Anything else, `exec` among them, would let the program write its own verdict.
            raise TypeError("only functions given to the program can be called")
        return self._names(asked) if isinstance(asked, str) else self.decode(asked)

    def _builtin(self, name: str) -> Any:
        value = getattr(builtins, name)
        if self._names is None and not (isinstance(value, type) or name in _PURE):
            raise Gone("the program gave a function that can act on the tests")
        return value

    def encode(self, value: Any) -> Any:
        """JSON for `value`; an object that is no plain data is kept and numbered."""
        kind = type(value)
        if value is None or kind in (bool, float, str) or (kind is int and abs(value) < _SMALL):
            return value
        if kind is int:
            return {"int": hex(value)}
        if kind is list:
            return [self.encode(item) for item in value]
        if kind in _TYPES:
            return {kind.__name__: self.encode(_TYPES[kind][0](value))}
        if kind is Remote:
            return {"yours": value._number}
        name = getattr(value, "__name__", None)
        if isinstance(name, str) and getattr(builtins, name, None) is value:
            return {"builtin": name}
        if kind.__module__ == "numpy" and getattr(value, "ndim", 1) == 0:
            return self.encode(value.item())
        for wider in _WIDER:
            if isinstance(value, wider):
                return self.encode(wider(value))
        if self._names is None and not callable(value):
            raise TypeError(f"a {kind.__name__} cannot be given to the program")
        self._objects.append(value)
        return {"mine": len(self._objects) - 1}

    def decode(self, value: Any) -> Any:
        """The value that `encode` of the other side was given. Raises Gone for what it cannot have sent."""
        if isinstance(value, list):
            return [self.decode(item) for item in value]
        if not isinstance(value, dict):
            return value
        try:
            ((tag, content),) = value.items()
            if tag == "int":
                return int(content, 16)
            if tag == "mine":
                return Remote(self, int(content))
            if tag == "yours":
                return self._objects[content]
            if tag == "builtin":
                return self._builtin(content)
            return _TYPES[_BY_NAME[tag]][1](self.decode(content))
        except Gone:
            raise
        except Exception:
            raise Gone("the other process sent no message") from None


def offered(name: str) -> Any:
    """What a program's process offers by name: the built-in functions and those of `operator`."""
    return getattr(builtins, name, None) or getattr(operator, name)


def _update(old: Any, new: Any) -> None:
    """Give `old` the content of `new`, which is of the same type."""
    if type(old) is not type(new) or type(old) not in _CHANGING:
        raise Gone("the other process sent no message")
    if isinstance(old, list | bytearray):
        old[:] = new
        return
    old.clear()
    if isinstance(old, deque):
        old.extend(new)
    else:
        old.update(new)


def _text(error: BaseException) -> str:
    try:
        return str(error)[:1000]
    except BaseException:
        return ""


def _exception(name: Any, text: Any) -> BaseException:
    kind = getattr(builtins, name, None) if isinstance(name, str) else None
    if isinstance(kind, type) and issubclass(kind, BaseException):
        try:
            return kind(text)
        except TypeError:
            pass
    return ProgramError(f"{name}: {text}")
