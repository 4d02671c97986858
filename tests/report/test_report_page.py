"""Pins that a page is safe to open: one file, no network, two known scripts, and hostile texts that stay texts."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from html.parser import HTMLParser

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from runs import answer, evaluation, group, lines, metrics, write_run

from peerwise.errors import PeerwiseError
from peerwise.report import build
from peerwise.report.inert import harmless

MARKUP = (
    "</script></pre><script>alert(1)</script><img src=http://evil.example/x onerror=alert(2)>"
    "<a href='//evil.example'>x</a>"
)
REVERSED = "\u202egnihton si siht\u2066\x00\x1b[31m\ud800"


class Seen(HTMLParser):
    """Every element with its attributes, and the content of every script, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.text = ""
        self.in_script = False

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.in_script = True
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag):
        self.in_script = self.in_script and tag != "script"

    def handle_data(self, data):
        if self.in_script:
            attributes, content = self.scripts[-1]
            self.scripts[-1] = (attributes, content + data)
        self.text += data


def seen(run, **options) -> Seen:
    page = Seen()
    page.feed(build(run, **options).html.read_text(encoding="utf-8"))
    return page


def unpacked(page: Seen, name: str) -> str:
    (content,) = [content for attributes, content in page.scripts if attributes.get("id") == f"data-{name}"]
    return gzip.decompress(base64.b64decode(content)).decode()


@pytest.fixture
def hostile(tmp_path):
    """A run whose every text is an attack."""
    text = MARKUP + REVERSED
    attack = answer(text, 1.0, 0.5, extracted=text, finish=text, failed=text, parts={text: 1.0})
    one = group(
        3, [attack, answer("a" * 2**20, 0.0, -0.5)],
        stage=text, problem=text, task=text, gold=text, messages=[{"role": text, "content": text}],
    )  # fmt: skip
    example = {"problem": text, "question": text, "gold": text, "text": text, "correct": True, "extracted": text}
    record = evaluation("after", text, 3, [1, 0], task=text, split=text, version=text, examples=[example])
    return write_run(
        tmp_path / "run",
        rollouts=lines([one]),
        evals=lines([record]),
        metrics=lines([metrics(3, text, loss=1.0, non_finite=[text]) | {text: 1.0, "reward/part/" + text: 1.0}]),
        recipe=f"[run]\nseed = {json.dumps(MARKUP)}\n",
        run=f"2026-01-02 10:00:00 warning: {MARKUP}\n2026-01-02 10:00:00 {MARKUP} on {MARKUP}; run folder x\n",
    )


def test_texts_of_a_run_add_no_element_and_no_attribute(hostile, tmp_path):
    changes = {MARKUP: (MARKUP, MARKUP)}
    page, clean = seen(hostile, changes=changes), seen(write_run(tmp_path / "clean"), changes={"a": (1, 2)})
    assert {tag for tag, _ in page.elements} <= {tag for tag, _ in clean.elements} | {"ul", "li"}
    names = {name for _, attributes in page.elements for name in attributes}
    assert not [name for name in names if name.startswith("on")]
    assert "src" not in names
    assert all(attributes["href"].startswith("#") for _, attributes in page.elements if "href" in attributes)
    assert "onerror=alert(2)" in page.text


def test_characters_that_hide_or_reorder_text_are_spelled_out(hostile):
    report = build(hostile)
    html = report.html.read_text(encoding="utf-8")
    assert not [character for character in "\u202e\u2066\x00\x1b" if character in html]
    assert "⟨U+202E⟩gnihton si siht⟨U+2066⟩⟨U+0000⟩⟨U+001B⟩[31m" in html


def test_the_groups_come_out_of_the_page_whole_and_with_nothing_that_reorders(hostile):
    (found,) = json.loads(unpacked(seen(hostile), "groups"))
    assert [len(shown["text"]) for shown in found["answers"]][1] == 2**20
    assert found["answers"][0]["text"] == harmless(MARKUP + REVERSED)
    assert found["gold"] == harmless(MARKUP + REVERSED)


def test_the_policy_lets_run_the_two_scripts_by_hash_and_fetches_nothing(tmp_path):
    page = seen(write_run(tmp_path))
    (policy,) = [
        attributes["content"] for tag, attributes in page.elements if "Security" in (attributes.get("http-equiv") or "")
    ]
    directives = dict(directive.strip().split(" ", 1) for directive in policy.split(";"))
    (own,) = [content for attributes, content in page.scripts if not attributes]
    hashes = [
        base64.b64encode(hashlib.sha256(code.encode()).digest()).decode() for code in (own, unpacked(page, "plotly"))
    ]
    assert directives.pop("script-src") == " ".join(f"'sha256-{code}'" for code in hashes)
    assert directives == {
        "default-src": "'none'", "style-src": "'unsafe-inline'", "img-src": "data: blob:",
        "base-uri": "'none'", "form-action": "'none'",
    }  # fmt: skip
    assert [attributes.get("type") for attributes, _ in page.scripts] == ["application/octet-stream"] * 4 + [None]


def test_every_label_and_description_of_the_page_points_at_something(tmp_path):
    page = seen(write_run(tmp_path), changes={"a": (1, 2)})
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    pointed = [a[name].lstrip("#") for _, a in page.elements for name in ("href", "aria-labelledby") if name in a]
    assert [name for name in pointed if name not in ids and not name.startswith("step-")] == []


def test_a_warning_links_to_the_chart_it_is_about(tmp_path):
    page = seen(write_run(tmp_path))
    assert {"href": "#chart-mismatch"} in [attributes for tag, attributes in page.elements if tag == "a"]


def test_the_twin_holds_the_numbers_and_says_where_the_texts_are(tmp_path):
    report = build(write_run(tmp_path), changes={"run.seed": (0, 7), "rollout.stop": (None, ["x"])})
    twin = json.loads(report.twin.read_text())
    assert twin == json.loads(json.dumps(report.tree))
    assert twin["changes"] == [
        {"key": "run.seed", "default": "0", "value": "7"},
        {"key": "rollout.stop", "default": "none", "value": '["x"]'},
    ]
    assert [(found["id"], found["line"], found["right"]) for found in twin["groups"]] == [("3-1", 1, 1), ("4-1", 2, 3)]
    assert twin["checkpoints"] == [2, 4]


def test_a_report_that_cannot_be_written_leaves_the_old_one_and_no_rubbish(tmp_path):
    run = write_run(tmp_path / "run")
    blocked = tmp_path / "page.html"
    blocked.mkdir()
    (blocked / "kept").write_text("old")
    with pytest.raises(PeerwiseError, match=r"cannot write .*page\.html: .*give a place with --out"):
        build(run, out=blocked)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "run"]
    assert (blocked / "kept").read_text() == "old"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
KEYS = sorted(
    {*metrics(1, "a"), *group(1, []), *evaluation("after", "a", 1, [1]), "non_finite", "loss", "pass_at_k"}
    - {"global_step"}
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_rows_of_any_shape_give_a_report(tmp_path, data):
    row = st.fixed_dictionaries({"global_step": st.integers(0, 9)}, optional=dict.fromkeys(KEYS, JSON))
    good = {
        "metrics": metrics(1, "a", loss=1.0),
        "rollouts": group(3, [answer("one 1", 0.0, -0.5)]),
        "evals": evaluation("after", "a", 4, [0, 1]),
    }
    files = {name: lines([whole | data.draw(row), data.draw(row)]) for name, whole in good.items()}
    inner = [
        answer("x", 1.0, 0.0) | {key: data.draw(JSON) for key in ("text", "tokens", "parts", "advantage", "reward")}
    ]
    files["rollouts"] += lines([group(5, inner)])
    report = build(write_run(tmp_path, **files))
    assert json.loads(report.twin.read_text())["run"] == tmp_path.name
