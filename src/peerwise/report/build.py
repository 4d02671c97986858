"""Puts a report together from the files of a run and writes it beside them: the page and its JSON twin.

`build` is what `peerwise report` calls, and what a run calls when it ends.
"""

from __future__ import annotations

import json
import os
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from peerwise import __version__
from peerwise.errors import PeerwiseError
from peerwise.evaluate.pairing import number
from peerwise.report import curves, measured, page, samples, verdict
from peerwise.report.folder import RunFolder, read_folder
from peerwise.report.journal import Journal, read_journal
from peerwise.report.words import duration, setting

REPORT_FILE = "report.html"

_HEADLINES = {
    "better": "It learned",
    "worse": "It got worse",
    "unchanged": "No change beyond chance",
    "once": "Measured once so far",
    "unpaired": "Measured, but not comparable in pairs",
    "mixed": "Different by task",
    "none": "Not measured on held-out problems",
}


@dataclass(frozen=True, slots=True)
class Report:
    """A written report: its two files, and what the JSON one holds."""

    html: Path
    twin: Path
    tree: dict[str, Any]


def build(run: Path, *, out: Path | None = None, changes: Mapping[str, tuple[object, object]] | None = None) -> Report:
    """Write the report of a run folder to `out` (RUN/report.html when None) and its JSON twin beside it.

    `changes` is the recipe against the defaults, dotted key -> (default, value); None when that is not known. What is
    missing or broken in the folder is said in the report. Each file is replaced whole or not at all.

    Raises:
        RunFolderError: there is nothing of a run in the folder.
        PeerwiseError: the files cannot be written.
    """
    html = run / REPORT_FILE if out is None else out
    twin = html.with_suffix(".json")
    folder = read_folder(run)
    groups = samples.groups(folder.rollouts, folder.missing)
    tree = _tree(folder, groups, changes)
    replace(html, page.render(tree, groups))
    replace(twin, json.dumps(tree, allow_nan=False) + "\n")
    return Report(html, twin, tree)


def _tree(
    folder: RunFolder, groups: list[dict[str, Any]], changes: Mapping[str, tuple[object, object]] | None
) -> dict[str, Any]:
    journal = read_journal(folder.log)
    if folder.log and journal.began is None:
        folder.missing.append("run.log has no line with a time, so it tells nothing.")
    settings = _settings(folder)
    drawn = curves.curves(folder.metrics, folder.evals)
    return {
        "run": folder.path.resolve().name,
        "version": __version__,
        "written": f"{datetime.now():%Y-%m-%d %H:%M:%S}",
        "finished": journal.finished,
        "verdict": _verdict(folder),
        "facts": _facts(folder, journal, settings, drawn["steps"]),
        "warnings": [{"text": w.text, "times": w.times, "chart": w.chart} for w in journal.warnings],
        "missing": [*folder.missing, *curves.gaps(folder.metrics)],
        "curves": drawn,
        "checkpoints": folder.checkpoints,
        "evaluations": measured.evaluations(folder.evals),
        "table": measured.table(folder.metrics, folder.evals),
        "side_by_side": measured.side_by_side(folder.evals),
        "rewards": samples.reward_map(groups),
        "groups": samples.index(groups),
        "changes": None
        if changes is None
        else [{"key": key, "default": setting(old), "value": setting(new)} for key, (old, new) in changes.items()],
        "recipe": folder.recipe,
    }


def _verdict(folder: RunFolder) -> dict[str, Any]:
    outcomes = {label: verdict.outcome(rows) for label, rows in verdict.tasks_of(folder.evals).items()}
    kinds = {result["kind"] for result in outcomes.values()}
    kind = kinds.pop() if len(kinds) == 1 else "mixed" if kinds else "none"
    sentences = [verdict.sentence(label, result) for label, result in outcomes.items()]
    return {"kind": kind, "headline": _HEADLINES[kind], "sentences": sentences, "tasks": outcomes}


def _facts(
    folder: RunFolder, journal: Journal, settings: dict[str, Any], steps: dict[str, list[Any]]
) -> list[dict[str, str]]:
    seconds = steps["seconds"][-1] if steps["seconds"] else 0.0
    sampled = sum(number(row.get("tokens/sampled")) or 0.0 for row in folder.metrics)
    wall = (journal.last - journal.began).total_seconds() if journal.began and journal.last else None
    versions = {str(row["version"]) for row in folder.evals if row.get("version")}
    facts = {
        "State": "finished" if journal.finished else "not finished: running, stopped or killed",
        "Steps done": str(len(folder.metrics)),
        "Time in steps": duration(seconds),
        "From first to last log line": None if wall is None else duration(wall),
        "Tokens sampled": f"{sampled:,.0f}",
        "Groups recorded": f"{len(folder.rollouts):,}",
        "Model": _model(journal, settings),
        "Machine": journal.machine,
        "Seed": _setting(settings, "run", "seed"),
        "Version": ", ".join(sorted(versions)) or None,
    }
    return [{"name": name, "value": value} for name, value in facts.items() if value is not None]


def _model(journal: Journal, settings: dict[str, Any]) -> str | None:
    """The model by the recipe's name, with its size and number format where the log tells them."""
    name, _, size = (journal.model or "").rpartition(" (")
    name = _setting(settings, "model", "path") or name
    return (f"{name} ({size}" if size else name) or None


def _settings(folder: RunFolder) -> dict[str, Any]:
    try:
        return tomllib.loads(folder.recipe)
    except (ValueError, RecursionError) as error:
        folder.missing.append(f"recipe.toml is not TOML ({error}).")
        return {}


def _setting(settings: dict[str, Any], section: str, name: str) -> str | None:
    table = settings.get(section)
    value = table.get(name) if isinstance(table, dict) else None
    return None if value is None else str(value)


def replace(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            Path(beside).chmod(0o644)
            Path(beside).replace(path)
        finally:
            Path(beside).unlink(missing_ok=True)
    except OSError as error:
        raise PeerwiseError(f"cannot write {path}: {error.strerror}; make room, or give a place with --out") from error
