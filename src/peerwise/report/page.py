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
from collections.abc import Sequence
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from peerwise.report.inert import harmless
from peerwise.report.tokens import Trace, laid_over
from peerwise.report.verdict import interval
from peerwise.report.words import change, duration, p_value, points, setting, share

COMMON = ("data.js", "plots.js")
REPORT = (*COMMON, "charts.js", "tokens.js", "samples.js", "start.js")
COMPARISON = (*COMMON, "overlay.js")
FIGURE_NAMES = {"logprobs": "log-prob", "entropies": "entropy", "ratios": "ratio"}
_LOADER = PackageLoader("peerwise.report", "page")


def render(tree: dict[str, Any], groups: Sequence[dict[str, Any]]) -> str:
    """The HTML of one run's page. `tree` is what the JSON twin holds; `groups` are its groups with their texts."""
    shown, traces = _apart(groups)
    known = {name for of_group in traces.values() for trace in of_group if trace for name in trace}
    drawn = {key: tree[key] for key in ("curves", "evaluations", "checkpoints", "rewards")}
    return _page(
        "report.html.j2",
        REPORT,
        tree,
        {"tree": harmless(drawn), "groups": shown, "traces": traces},
        shown_charts={chart["id"] for chart in tree["curves"]["charts"]},
        sampled_steps={group["global_step"] for group in tree["groups"]},
        figures={name: words for name, words in FIGURE_NAMES.items() if name in known},
    )


def render_comparison(tree: dict[str, Any]) -> str:
    """The HTML of several runs' page. `tree` is what the JSON twin holds."""
    drawn = {key: tree[key] for key in ("curves", "lines")}
    return _page("compare.html.j2", COMPARISON, tree, {"tree": harmless(drawn)})


def _apart(groups: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, list[Trace | None]]]:
    """The groups, harmless, without the figures of their tokens, which are unpacked only when someone looks; and
    these by the id of the group, in the order of its answers."""
    shown, traces = [], {}
    for group in groups:
        laid = [laid_over(answer) for answer in group["answers"]]
        of_group = [answer.pop("trace") for answer in laid]
        if any(of_group):
            traces[group["id"]] = of_group
        shown.append(harmless({**group, "answers": laid}))
    return shown, traces


def _page(
    template: str, scripts: Sequence[str], tree: dict[str, Any], packed: dict[str, object], **context: object
) -> str:
    """A page of its own scripts and `packed` data, what the document itself shows being harmless."""
    script = "\n".join(map(_source, scripts))
    return (
        _environment()
        .get_template(template)
        .render(
            tree=harmless(tree),
            policy=policy(script, get_plotlyjs()),
            style=Markup(_source("report.css")),
            script=Markup(script),
            packed={
                "plotly": _packed_plotly(),
                **{name: pack(json.dumps(value, allow_nan=False)) for name, value in packed.items()},
            },
            **context,
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


def _environment() -> Environment:
    made = Environment(loader=_LOADER, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.filters["fixed"] = lambda value, digits: "–" if value is None else f"{value:.{digits}f}"
    made.filters["percent"] = lambda value: "–" if value is None else share(value, None)
    made.filters["points"] = lambda gain: "–" if gain is None else points(gain)
    made.filters["accuracy"] = lambda row: share(row["accuracy"], interval(row["interval"]))
    made.filters["gain"] = lambda value: f"{100 * value:+.1f}"
    made.filters["whole"] = lambda value: f"{value:,.0f}"
    made.filters["gibibytes"] = lambda value: "–" if value is None else f"{value / 2**30:.1f} GiB"
    made.filters["change"] = lambda found: change(found["difference"], found["interval"])
    made.filters.update(duration=duration, p_value=p_value, setting=setting)
    return made


def _source(name: str) -> str:
    return _LOADER.get_source(Environment(), name)[0]


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")


@cache
def _packed_plotly() -> str:
    return pack(get_plotlyjs())
