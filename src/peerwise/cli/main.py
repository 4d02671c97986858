"""The `peerwise` command: finds the command, runs it, and turns every error into one message and an exit code.

A command is a module with `SUMMARY` and `run(argv) -> exit code`, imported only when it is asked for, so that help
and version answer at once. Knows nothing of what the commands do.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
import traceback
from collections.abc import Sequence

from peerwise import __version__
from peerwise.cli.process import start_without_thread_cache
from peerwise.errors import PeerwiseError, RequestError, nearest

COMMANDS: dict[str, tuple[str, str]] = {
    "train": ("peerwise.cli.train", "train a model by a recipe, or go on with a run"),
    "eval": ("peerwise.cli.eval", "measure a model on a task's held-out problems"),
    "sample": ("peerwise.cli.sample", "show what a model answers"),
    "data": ("peerwise.cli.data", "what is wrong with a data set, and a clean copy of it"),
    "plan": ("peerwise.cli.plan", "what a recipe costs: updates, tokens, memory, time"),
    "compare": ("peerwise.cli.compare", "put runs side by side"),
    "report": ("peerwise.cli.report", "one page that shows a run: verdict, curves, every sampled answer"),
    "export": ("peerwise.cli.export", "a run's best model as a Hugging Face folder"),
    "watch": ("peerwise.cli.watch", "the terminal view of a run in another process"),
    "grade": ("peerwise.cli.grade", "grade the answers in a file against its gold answers"),
}
"""Command -> (its module, the module's SUMMARY)."""
WITH_A_MODEL = ("train", "eval", "sample")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; sys.argv when `argv` is None. 0 done, 1 the work failed, 2 the request was wrong, 130 Ctrl-C."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a character gets its number; an answer in Chinese is no reason to fail.
            stream.reconfigure(errors="backslashreplace")
    words = list(sys.argv[1:] if argv is None else argv)
    if argv is None and words and words[0] in WITH_A_MODEL:
        start_without_thread_cache()
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    try:
        return _dispatch(words)
    except PeerwiseError as error:
        return _fail(str(error), error.exit_code, debug)
    except KeyboardInterrupt:
        return _fail("interrupted", 130, debug)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BrokenPipeError:
        # Whoever read our output has left; the interpreter's own flush at exit must not fail on it again.
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
        return _fail("nobody reads the output any more", 1, debug)
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        return _fail(f"internal error: {type(error).__name__}: {reason} (run with --debug for the traceback)", 1, debug)


def _dispatch(words: list[str]) -> int:
    if not words:
        print(_help(), file=sys.stderr)
        return 2
    name, *rest = words
    if name in ("-h", "--help"):
        print(_help())
        return 0
    if name == "--version":
        print(f"peerwise {__version__}")
        return 0
    if name not in COMMANDS:
        raise RequestError(f"unknown command {name!r}; {nearest(name, COMMANDS)}")
    code: int = importlib.import_module(COMMANDS[name][0]).run(rest)
    return code


def _fail(message: str, code: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    print(f"peerwise: {message}", file=sys.stderr)
    return code


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {summary}" for name, (_, summary) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: peerwise COMMAND ... [--debug]",
            "",
            "Teach language models to reason with GRPO.",
            "",
            *lines,
            "",
            "peerwise COMMAND --help tells more; --version prints the version; --debug prints tracebacks.",
        ]
    )
