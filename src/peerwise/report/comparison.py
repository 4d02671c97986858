"""Several runs on one page, and its JSON twin: how far apart they are, their curves over each other, the same problems.

The numbers that compare them, and which of them are runs of one recipe, are handed in; this lays them out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from os.path import commonpath
from pathlib import Path
from typing import Any

from peerwise import __version__
from peerwise.report import page
from peerwise.report.build import Report, replace
from peerwise.report.folder import RunFolder
from peerwise.report.measured import answers_of
from peerwise.report.overlay import overlay
from peerwise.report.verdict import tasks_of


def build_comparison(
    folders: Sequence[RunFolder], groups: Sequence[Sequence[int]], record: Mapping[str, Any], out: Path
) -> Report:
    """Write the comparison of runs to `out` and its JSON twin beside it, each whole or not at all.

    Args:
        groups: places in `folders` of the runs that are one line: several seeds of one recipe, or a single run.
        record: what `peerwise compare --json` says of them; the twin holds it too.

    Raises PeerwiseError when the files cannot be written.
    """
    names = short_names([folder.path for folder in folders])
    tree: dict[str, Any] = {
        **record,
        "names": names,
        "lines": [_line_name([names[place] for place in group]) for group in groups],
        "members": [[names[place] for place in group] for group in groups],
        "version": __version__,
        "written": f"{datetime.now():%Y-%m-%d %H:%M:%S}",
        "curves": overlay([[folders[place] for place in group] for group in groups]),
        "side_by_side": _same_problems(folders, names),
    }
    replace(out, page.render_comparison(tree))
    twin = out.with_suffix(".json")
    replace(twin, json.dumps(tree, allow_nan=False) + "\n")
    return Report(out, twin, tree)


def short_names(paths: Sequence[Path]) -> list[str]:
    """What tells the runs apart: their paths without what all have in common."""
    whole = [path.absolute() for path in paths]
    root = Path(commonpath([path.parent for path in whole]))
    return [str(path.relative_to(root)) for path in whole]


def _line_name(members: Sequence[str]) -> str:
    return members[0] if len(members) == 1 else f"{len(members)} seeds: {', '.join(members)}"


def _same_problems(folders: Sequence[RunFolder], names: Sequence[str]) -> list[dict[str, Any]]:
    """The held-out examples of each run's last evaluation by task, problem by problem; those that several runs answered
    first."""
    tasks: dict[str, dict[str, dict[str, Any]]] = {}
    for folder, name in zip(folders, names, strict=True):
        for task, rows in tasks_of(folder.evals).items():
            shown = [row for row in rows if isinstance(row.get("examples"), list)]
            if shown:
                answers_of(tasks.setdefault(task, {}), shown[-1], name)
    return [
        {"task": task, "problems": sorted(problems.values(), key=lambda problem: -len(problem["answers"]))}
        for task, problems in tasks.items()
        if problems
    ]
