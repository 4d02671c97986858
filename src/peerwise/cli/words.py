"""What command parsers share: errors as RequestError instead of argparse's own exit."""

from __future__ import annotations

import argparse
from typing import NoReturn

from peerwise.errors import RequestError


class Parser(argparse.ArgumentParser):
    """argparse with one message and exit code 2, like every other wrong request."""

    def error(self, message: str) -> NoReturn:
        raise RequestError(f"{message} ({self.prog} --help tells what is there)")


def positive(text: str) -> int:
    """An argparse type: a whole number above 0."""
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a whole number above 0")
    return int(text)
