"""`peerwise report RUN`: one page that shows a run, and its JSON twin; `--watch` keeps both up to date."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from peerwise.cli.words import Parser
from peerwise.errors import RecipeError, RequestError
from peerwise.metrics.write import RECIPE_FILE
from peerwise.recipe.dump import diff
from peerwise.recipe.load import load
from peerwise.report import Report, build
from peerwise.report.folder import FILES

SUMMARY = "one page that shows a run: verdict, curves, every sampled answer"
SECONDS_BETWEEN_LOOKS = 5.0
"""How often --watch looks whether the run has written anything."""


def run(argv: Sequence[str]) -> int:
    """Write the report and tell where it is: a line, or one JSON object with --json.

    Raises:
        RequestError: wrong words, an --out that is not a page.
        RunFolderError: the folder holds nothing of a run.
    """
    options = _parser().parse_args(argv)
    if options.out is not None and options.out.suffix not in (".html", ".htm"):
        raise RequestError(f"--out {options.out} should end in .html; its numbers go beside it, in a .json")
    report = _build(options)
    _tell(report, as_json=options.json)
    if options.watch:
        _watch(options, report)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="peerwise report", description=SUMMARY, allow_abbrev=False)
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder that `peerwise train` wrote")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the page goes; RUN/report.html by default")
    parser.add_argument("--watch", action="store_true", help="write it again whenever the run goes on, until it ends")
    parser.add_argument(
        "--json", action="store_true", help="one JSON object on stdout: files, verdict, what is missing"
    )
    return parser


def _build(options: argparse.Namespace) -> Report:
    return build(options.run, out=options.out, changes=_changes(options.run))


def _changes(run: Path) -> dict[str, tuple[object, object]] | None:
    """The run's recipe against the defaults; None, with a line on stderr, when this version cannot read it."""
    path = run / RECIPE_FILE
    if not path.is_file():
        return None
    try:
        return diff(load(path))
    except RecipeError as error:
        print(f"warning: the recipe is shown without its differences from the defaults: {error}", file=sys.stderr)
        return None


def _tell(report: Report, *, as_json: bool) -> None:
    verdict = report.tree["verdict"]
    if as_json:
        told = {
            "report": str(report.html),
            "json": str(report.twin),
            "verdict": verdict,
            "missing": report.tree["missing"],
        }
        print(json.dumps(told, ensure_ascii=False))
        return
    print("\n".join([f"{report.html}: {verdict['headline'].lower()}", *verdict["sentences"], *report.tree["missing"]]))


def _watch(options: argparse.Namespace, report: Report) -> None:
    seen = _state(options.run)
    while not report.tree["finished"]:
        time.sleep(SECONDS_BETWEEN_LOOKS)
        if (now := _state(options.run)) != seen:
            seen, report = now, _build(options)
            print(
                f"{report.html}: written again, {len(report.tree['curves']['steps']['global_step'])} steps",
                file=sys.stderr,
            )


def _state(run: Path) -> list[tuple[str, int]]:
    return [(name, (run / name).stat().st_size) for name in FILES if (run / name).is_file()]
