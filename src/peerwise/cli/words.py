"""What command parsers share: errors as RequestError instead of argparse's own exit."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import NoReturn

from peerwise.errors import RequestError


class Parser(argparse.ArgumentParser):
    """argparse with one message and exit code 2, like every other wrong request."""

    def error(self, message: str) -> NoReturn:
        raise RequestError(f"{message} ({self.prog} --help tells what is there)")


def share(text: str) -> float:
    """An argparse type: a number above 0 and at most 1."""
    return _number(text, lambda value: 0 < value <= 1, "a number above 0 and at most 1")


def from_0_to_1(text: str) -> float:
    """An argparse type: a number from 0 to 1."""
    return _number(text, lambda value: 0 <= value <= 1, "a number from 0 to 1")


def not_negative(text: str) -> float:
    """An argparse type: a finite number of 0 or more."""
    return _number(text, lambda value: 0 <= value < math.inf, "a number of 0 or more")


def pair(text: str) -> tuple[str, str]:
    """An argparse type: name=value."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected name=value")
    return name, value


def whole(text: str) -> int:
    """An argparse type: a whole number of 0 or more."""
    return int(text) if text == "0" else positive(text)


def _number(text: str, allowed: Callable[[float], bool], expected: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not allowed(value):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected {expected}")
    return value


def positive(text: str) -> int:
    """An argparse type: a whole number above 0."""
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a whole number above 0")
    return int(text)
