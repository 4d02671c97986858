"""One page that needs no network: template, style, scripts, the plotting library and the data in a single file.

Everything from a run is hostile. In the document it is escaped by the template; for the scripts it is packed (JSON,
gzip, base64), so that no byte of it is markup, and they show it as text nodes only. Characters that would reorder or
hide text are spelled out. The page's policy lets run two scripts, known by their hashes, and fetches nothing.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from peerwise.report.verdict import points, share

SCRIPTS = ("data.js", "charts.js", "samples.js", "start.js")
_LOADER = PackageLoader("peerwise.report", "page")
# Control characters but tab and newline, marks and overrides of direction, invisible characters, half surrogate pairs.
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")


def render(tree: dict[str, Any], groups: Sequence[dict[str, Any]]) -> str:
    """The page's HTML. `tree` is what the JSON twin holds; `groups` are its groups with their texts."""
    tree = harmless(tree)
    script = "\n".join(_source(name) for name in SCRIPTS)
    drawn = {key: tree[key] for key in ("curves", "evaluations", "checkpoints", "rewards")}
    shown_charts = {chart["id"] for chart in tree["curves"]["charts"]}
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            tree=tree,
            shown_charts=shown_charts,
            sampled_steps={group["global_step"] for group in tree["groups"]},
            policy=policy(script, get_plotlyjs()),
            style=Markup(_source("report.css")),
            script=Markup(script),
            plotly=_packed_plotly(),
            data=pack(json.dumps(drawn, allow_nan=False)),
            groups=pack(json.dumps(harmless(groups), allow_nan=False)),
        )
    )


def policy(*scripts: str) -> str:
    """A Content-Security-Policy under which only these scripts run and nothing is fetched.

    Style is open because the plotting library sets it on elements; without sources it can fetch nothing either.
    """
    allowed = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def pack(text: str) -> str:
    """gzip and base64; the same text always gives the same letters."""
    return base64.b64encode(gzip.compress(text.encode("utf-8"), compresslevel=6, mtime=0)).decode("ascii")


def harmless(value: Any) -> Any:
    """A copy with every hidden or reordering character of every text spelled out.

    >>> harmless({"a": ["right\\u202eleft"]})
    {'a': ['right⟨U+202E⟩left']}
    """
    if isinstance(value, str):
        return _HIDDEN.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", value.replace("\r\n", "\n"))
    if isinstance(value, dict):
        return {harmless(key): harmless(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [harmless(item) for item in value]
    return value


def _environment() -> Environment:
    made = Environment(loader=_LOADER, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.filters["fixed"] = lambda value, digits: "–" if value is None else f"{value:.{digits}f}"
    made.filters["percent"] = lambda value: "–" if value is None else share(value, None)
    made.filters["points"] = lambda gain: "–" if gain is None else points(gain)
    made.filters["accuracy"] = lambda row: share(row["accuracy"], row["interval"])
    return made


def _source(name: str) -> str:
    return _LOADER.get_source(Environment(), name)[0]


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")


@cache
def _packed_plotly() -> str:
    return pack(get_plotlyjs())
