"""Pins the pages in a real browser: charts, click-through, filters, tokens, links, dark, narrow, inert texts, size.

Needs playwright (the extra `browser`) and a Chromium on the path; skipped by name where either is missing.
"""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

import pytest
from runs import answer, evaluation, group, lines, metrics, write_run

from peerwise.cli.main import main
from peerwise.report import build

playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed (pip install peerwise[browser])"
)
CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the path")

ATTACK = (
    "</pre><script>document.title = 'owned'</script>"
    "<img src=http://evil.example/x onerror=\"document.title = 'owned'\">"
)


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        # A container's root has no user namespaces for Chromium's own sandbox; the pages are our own.
        launched = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def opened(browser):
    """Opens a report; whatever the page complains about or asks the network for is in `page.troubles`."""
    contexts = []

    def open_report(report, anchor="", width=1200, scheme="light", ready="#groups article"):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.troubles = []
        page.on("console", lambda message: page.troubles.append(message.text))
        page.on("pageerror", lambda error: page.troubles.append(str(error)))
        page.on(
            "request",
            lambda sent: None if sent.url.startswith(("file:", "blob:", "data:")) else page.troubles.append(sent.url),
        )
        page.goto(report.html.as_uri() + anchor)
        page.wait_for_selector(ready, state="attached")
        return page

    yield open_report
    for context in contexts:
        context.close()


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Two stages, 30 steps of sampling with 2 groups each; the answers of step 20 are all cut off."""
    steps = range(3, 33)
    sampled = [
        metrics(step, "grpo", reward__mean=step / 40, accuracy__sampled=step / 40, length__mean=9.0 + step % 3)
        for step in steps
    ]
    wrong = [answer("no", 0.0, -0.5, finish="length" if step == 20 else "stop") for step in steps]
    found = [
        group(step, [answer(f"step {step} says 2", 1.0, 0.5), short])
        for step, short in zip(steps, wrong, strict=True)
        for _ in range(2)
    ]
    evals = [evaluation("before", "warm", 0, [0, 0, 1]), evaluation("after", "grpo", 32, [1, 1, 1])]
    run = write_run(
        tmp_path_factory.mktemp("small"),
        metrics=lines([metrics(1, "warm", loss=2.0), metrics(2, "warm", loss=1.0), *sampled]),
        rollouts=lines(found),
        evals=lines(evals),
    )
    return build(run)


def draw_all(page):
    for plot in page.locator(".plot").all():
        plot.scroll_into_view_if_needed()
        plot.locator("svg.main-svg").first.wait_for(state="attached")


def shown_ids(page):
    return [card.get_attribute("id") for card in page.locator("#groups article").all()]


def test_every_chart_is_drawn_and_described_and_the_page_complains_of_nothing(opened, small):
    page = opened(small)
    draw_all(page)
    labels = [plot.get_attribute("aria-label") for plot in page.locator(".plot").all()]
    assert len(labels) == len(small.tree["curves"]["charts"]) + 2
    assert all(labels)
    for axis in ("tokens", "seconds"):
        page.select_option("#axis", axis)
    page.fill("#smoothing", "0")
    page.check("#log")
    page.wait_for_timeout(200)
    assert page.troubles == []


def test_a_run_that_was_only_measured_once_has_its_charts(opened, tmp_path):
    record = evaluation("before", "warm", 0, [0, 1], pass_at_k={"1": {"value": 0.5, "interval": [0.1, 0.9]}})
    page = opened(build(write_run(tmp_path, metrics="", rollouts="", evals=lines([record]))), ready=".plot")
    draw_all(page)
    assert page.locator("#chart-pass .plot svg.main-svg").count() > 0
    assert page.troubles == []


def test_a_click_on_a_curve_opens_the_groups_of_its_step(opened, small):
    page = opened(small)
    plot = page.locator("#chart-reward .plot")
    plot.scroll_into_view_if_needed()
    area = plot.locator(".nsewdrag").first
    area.wait_for(state="attached")
    # Plotly takes a click for a point only where it has shown one under the pointer.
    area.hover()
    page.wait_for_timeout(150)
    area.click()
    playwright.expect(page.locator("#groups article")).to_have_count(2)
    step = page.input_value("#from")
    assert step == page.input_value("#to")
    assert 10 <= int(step) <= 24
    assert shown_ids(page) == [f"group-{step}-1", f"group-{step}-2"]


def test_filters_search_order_and_pages_narrow_what_is_shown(opened, small):
    page = opened(small)
    status = page.locator("#sample-status")
    assert status.inner_text() == "60 of 60 groups, 1 to 10 shown"
    page.click("#next")
    assert shown_ids(page)[0] == "group-8-1"
    page.select_option("#kind", "truncated")
    playwright.expect(status).to_have_text("2 of 60 groups, 1 to 2 shown")
    assert shown_ids(page) == ["group-20-1", "group-20-2"]
    page.click("#clear")
    page.fill("#search", "STEP 7 SAYS")
    playwright.expect(status).to_have_text("2 of 60 groups, 1 to 2 shown")
    page.click("#clear")
    page.select_option("#order", "latest")
    playwright.expect(page.locator("#groups article").first).to_have_attribute("id", "group-32-1")
    page.select_option("#kind", "right")
    playwright.expect(status).to_have_text("0 of 60 groups")


def test_a_link_opens_its_group_wherever_it_is(opened, small):
    page = opened(small, "#group-30-2")
    playwright.expect(page.locator("#group-30-2")).to_be_focused()
    page.goto(small.html.as_uri() + "#step-5")
    playwright.expect(page.locator("#sample-status")).to_have_text("2 of 60 groups, 1 to 2 shown")
    page.goto(small.html.as_uri() + "#group-999-1")
    playwright.expect(page.locator("#sample-status")).to_have_text("There is no group 999-1 in this run.")


def test_answers_stand_by_advantage_with_what_was_read(opened, small):
    first = opened(small).locator("#groups article").first.locator(".card")
    assert first.nth(0).inner_text().startswith("right advantage 0.5, reward 1, read 2")
    assert first.nth(1).inner_text().startswith("wrong advantage -0.5, reward 0, read o")


TRACED = {"token_lengths": [4, 2, 0], "logprobs": [-0.1, -2, 0], "entropies": [0.5, 3, 0], "ratios": [1, 2, 0.5]}


def test_tokens_are_coloured_by_the_figure_that_is_chosen_and_the_text_stays_the_same(opened, tmp_path):
    unread = answer("say 41", 0.0, -0.5, extracted=None, rule="cut off")
    answers = [answer("say 42", 1.0, 0.5, rule="box, number", **TRACED), unread]
    page = opened(build(write_run(tmp_path, rollouts=lines([group(3, answers)]))))
    texts = page.locator("#groups .card pre")
    spans = texts.first.locator("span")
    assert (
        page.locator("#groups .card")
        .first.inner_text()
        .startswith("right advantage 0.5, reward 1, read 2 (by box; compared as number)")
    )
    assert "no answer read (cut off)" in page.locator("#groups .card").nth(1).inner_text()
    assert spans.count() == 0
    page.select_option("#colouring", "logprobs")
    playwright.expect(spans).to_have_count(3)
    # -0.1 is nothing, -2 is half of the scale of 4 nats in five shades.
    assert [span.get_attribute("class").strip() for span in spans.all()] == ["", "shade odd-3", "end"]
    assert spans.nth(1).get_attribute("title") == "log-prob -2, entropy 3, ratio 2"
    assert texts.first.text_content() == "say 42"
    assert texts.nth(1).locator("span").count() == 0
    page.select_option("#colouring", "ratios")
    playwright.expect(spans.nth(1)).to_have_class("shade up-5")
    playwright.expect(spans.nth(2)).to_have_class("shade down-5 end")
    assert "0.67 and below" in page.locator("#legend").inner_text()
    page.click("#clear")
    assert page.input_value("#colouring") == "ratios"
    page.select_option("#colouring", "")
    playwright.expect(spans).to_have_count(0)
    assert page.troubles == []


def test_groups_with_a_disagreement_are_found_and_say_what_it_is(opened, tmp_path):
    paid = [answer("yes 2", 0.5, 0.5), answer("no 3", 0.5, 0.5, correct=False)]
    page = opened(build(write_run(tmp_path, rollouts=lines([group(3, [answer("is 2", 1.0, 0.5)]), group(4, paid)]))))
    page.select_option("#kind", "disagreement")
    playwright.expect(page.locator("#sample-status")).to_have_text("1 of 2 groups, 1 to 1 shown")
    told = page.locator("#groups .warn").all_inner_texts()
    assert told == ["Disagreement: wrong, and earned as much as a right answer of this group."]


def test_hostile_tokens_are_texts_too(opened, tmp_path):
    traced = {"token_lengths": [len(ATTACK) // 2] * 2, "logprobs": [-3, ATTACK], "ratios": [None, 1e308]}
    page = opened(
        build(write_run(tmp_path, rollouts=lines([group(3, [answer(ATTACK, 1.0, 0.5, rule=ATTACK, **traced)])])))
    )
    for figure in ("logprobs", "ratios"):
        page.select_option("#colouring", figure)
        playwright.expect(page.locator("#groups .card pre span")).to_have_count(2)
    assert page.locator("#groups .card pre").text_content() == ATTACK
    assert page.title() == f"{tmp_path.name} · peerwise report"
    assert page.locator("main img, main script").count() == 0
    assert page.troubles == []


def compared(folder, *runs):
    """What `opened` needs to know of a comparison's page."""
    html = folder / "compared.html"
    assert main(["compare", *map(str, runs), "--out", str(html)]) == 0
    return SimpleNamespace(html=html, tree=json.loads(html.with_suffix(".json").read_text()))


@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 360)])
def test_a_comparison_draws_every_chart_fits_and_complains_of_nothing(opened, tmp_path, scheme, width, capsys):
    recipe = "[run]\nseed = {seed}\n[model]\npath = '{path}'\n"
    runs = [
        write_run(tmp_path / f"{path}-{seed}", recipe=recipe.format(seed=seed, path=path))
        for path, seed in (("a", 0), ("a", 1), ("b", 0))
    ]
    report = compared(tmp_path, *runs)
    page = opened(report, ready=".plot", width=width, scheme=scheme)
    page.click("#more-curves > summary")
    draw_all(page)
    labels = [plot.get_attribute("aria-label") for plot in page.locator(".plot").all()]
    assert len(labels) == len(report.tree["curves"]["charts"]) + 1
    assert all(labels)
    # Two seeds of one recipe are one line with a band, the other run a line.
    names = page.evaluate("() => [...document.querySelectorAll('#chart-held-0 .legendtext')].map((x) => x.textContent)")
    assert names == ["2 seeds: a-0, a-1", "b-0"]
    accuracy = next(chart["id"] for chart in report.tree["curves"]["charts"] if chart["key"] == "reward/mean")
    assert page.locator(f"#chart-{accuracy} .scatterlayer .trace").count() == 4
    page.select_option("#axis", "seconds")
    page.check("#log")
    page.wait_for_timeout(200)
    assert page.evaluate("() => document.documentElement.scrollWidth") == width
    assert page.troubles == []


@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
def test_the_page_is_as_dark_as_the_reader_wants_it_and_fits_a_phone(opened, small, scheme, dark):
    page = opened(small, width=360, scheme=scheme)
    draw_all(page)
    ground = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, ground.removeprefix("rgb(").rstrip(")").split(","))) < 200) == dark
    assert page.evaluate("() => document.documentElement.scrollWidth") == 360
    assert page.troubles == []


def test_hostile_texts_do_nothing_but_stand_there(opened, tmp_path):
    answers = [answer(ATTACK, 1.0, 0.5, extracted=ATTACK, parts={ATTACK: 1.0}), answer("a" * 2**20, 0.0, -0.5)]
    asked = [{"role": ATTACK, "content": ATTACK}]
    hostile = group(3, answers, stage=ATTACK, problem=ATTACK, gold=ATTACK, messages=asked)
    run = write_run(
        tmp_path,
        rollouts=lines([hostile]),
        metrics=lines([metrics(3, ATTACK, loss=1.0) | {"reward/part/" + ATTACK: 1.0}]),
    )
    page = opened(build(run))
    draw_all(page)
    assert page.title() == f"{tmp_path.name} · peerwise report"
    assert page.troubles == []
    assert page.locator("main img, main script").count() == 0
    assert ATTACK in page.locator("#groups .card pre").first.inner_text()
    page.get_by_role("button", name="Show all 1,048,576 characters").click()
    assert len(page.locator("#groups .card pre").nth(1).inner_text()) == 2**20


def test_ten_thousand_groups_are_found_and_paged_with_a_small_document(opened, tmp_path):
    found = [
        group(step, [answer(f"answer {step} {place} {side} " + "x" * 100, side, side - 0.5) for side in (0.0, 1.0)])
        for step in range(3, 1253)
        for place in range(8)
    ]
    page = opened(build(write_run(tmp_path, rollouts=lines(found))))
    playwright.expect(page.locator("#sample-status")).to_have_text("10000 of 10000 groups, 1 to 10 shown")
    page.fill("#search", "answer 1252 7")
    playwright.expect(page.locator("#sample-status")).to_have_text("1 of 10000 groups, 1 to 1 shown")
    page.click("#clear")
    assert page.locator("#groups *").count() < 500
    assert page.troubles == []
