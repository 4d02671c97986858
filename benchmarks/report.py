"""How long a report of many groups takes to build, to open and to search, and how large it is.

    python benchmarks/report.py [--groups 10000] [--json]

Groups of 8 answers of about 80 tokens, 8 groups a step, with figures by token for the first 4,096 tokens of a step, as
a run records them. The browser is a headless Chromium; without one only the build is measured.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from peerwise.report import build

SIZE, GROUPS_A_STEP, TOKENS, TRACED_A_STEP = 8, 8, 80, 4096


def rows(groups: int) -> Iterator[dict[str, object]]:
    """Lines of rollouts.jsonl."""
    numbers = random.Random(0)
    words = [f" {numbers.randrange(1000)}" for _ in range(3000)]
    for place in range(groups):
        step, left = 1 + place // GROUPS_A_STEP, TRACED_A_STEP - place % GROUPS_A_STEP * SIZE * TOKENS
        answers = [answer(numbers, words, traced=left > index * TOKENS) for index in range(SIZE)]
        yield {
            "stage": "grpo", "step": step, "global_step": step, "problem": f"p/{place}", "task": "sums", "gold": "2",
            "messages": [{"role": "user", "content": "What is 1 + 1?"}], "completions": answers,
        }  # fmt: skip


def answer(numbers: random.Random, words: list[str], *, traced: bool) -> dict[str, object]:
    """One completion, with figures as skewed as those of a model."""
    pieces = numbers.choices(words, k=TOKENS)
    reward = float(numbers.random() < 0.5)
    sure = [min(6.0, numbers.expovariate(1.5)) ** 2 / 3 for _ in pieces]
    trace = {
        "token_lengths": [len(piece) for piece in pieces],
        "logprobs": [-round(value, 2) for value in sure],
        "entropies": [round(value / 2, 2) for value in sure],
        "ratios": [round(numbers.gauss(1, 0.02), 3) for _ in pieces],
    }
    return {
        "text": "".join(pieces), "tokens": TOKENS, "finish": "stop", "reward": reward, "parts": {"correct": reward},
        "correct": reward > 0, "extracted": pieces[-1], "rule": "box, number", "advantage": reward - 0.5,
    } | (trace if traced else {})  # fmt: skip


def measure(groups: int) -> dict[str, float]:
    """Seconds and megabytes."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder)
        with (run / "rollouts.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows(groups))
        started = time.perf_counter()
        report = build(run)
        found = {
            "groups": float(groups),
            "rollouts_MB": (run / "rollouts.jsonl").stat().st_size / 1e6,
            "build_s": time.perf_counter() - started,
            "build_peak_MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
            "page_MB": report.html.stat().st_size / 1e6,
            "twin_MB": report.twin.stat().st_size / 1e6,
        }
        chromium = shutil.which("chromium")
        return found | (browse(report.html.as_uri(), chromium, groups) if chromium else {})


def browse(page_uri: str, chromium: str, groups: int) -> dict[str, float]:
    """Seconds until groups are shown, a filter, a search through all texts, and tokens are coloured."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()

        def seconds(act: Callable[[], object], shown: str) -> float:
            started = time.perf_counter()
            act()
            page.wait_for_selector(shown, state="attached")
            return time.perf_counter() - started

        found = {
            "open_s": seconds(lambda: page.goto(page_uri), "#groups article"),
            "filter_s": seconds(
                lambda: page.select_option("#kind", "disagreement"), f"text=/of {groups} groups, 1 to/"
            ),
            "search_s": seconds(lambda: page.fill("#search", "no such words"), f"text=/^0 of {groups} groups/"),
            "colour_s": seconds(
                lambda: (page.click("#clear"), page.select_option("#colouring", "logprobs")), "#groups pre span"
            ),
            "elements": float(page.locator("*").count()),
        }
        browser.close()
        return found


def main() -> None:
    """Print the measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=10_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options.groups)
    print(json.dumps(found) if options.json else "\n".join(f"{name:14} {value:.2f}" for name, value in found.items()))


if __name__ == "__main__":
    main()
