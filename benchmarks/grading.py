"""How many GSM8K-style completions are graded a second on one core, beside math-verify on the same file.

    python benchmarks/grading.py ../shared/data/gsm8k/test.jsonl [--json] [--rounds 3] [--peer 1500]

The completions are the gold solutions themselves: a third as they are, a third with another final number, a third cut
off, and each of the four usual ways to state an answer in turn. What is right is therefore known. Times are processor
seconds of this process, the best of the rounds; math-verify grades the first `--peer` completions only.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

_STATEMENTS = ("#### {}", "\\boxed{{{}}}", "The answer is {}.", "**Final Answer:** ${}$")
_NOTES = re.compile(r"<<[^>]*>>")


class Case(NamedTuple):
    """One completion, its gold, and whether it is right."""

    text: str
    gold: str
    right: bool


def cases(path: Path) -> list[Case]:
    """One completion for each row of a GSM8K file."""
    made = []
    for index, line in enumerate(path.read_text(encoding="utf-8").splitlines()):
        solution, _, gold = json.loads(line)["answer"].partition("####")
        gold = gold.strip()
        statement = _STATEMENTS[index % len(_STATEMENTS)]
        steps = _NOTES.sub("", solution).strip()
        variant = index % 3
        if variant == 2:
            # Cut in the middle, and every number of it another one, so that none happens to be the gold.
            steps = re.sub(r"\d[\d,.]*", "1000003", steps[: len(steps) // 2])
            made.append(Case(steps, gold, False))
        else:
            number = gold if variant == 0 else str(int(gold.replace(",", "")) + 3)
            made.append(Case(f"{steps}\n{statement.format(number)}", gold, variant == 0))
    return made


def timed(verdict: Callable[[str, str], bool], completions: Sequence[Case]) -> tuple[float, float]:
    """(completions a processor second, share of verdicts that are as constructed)."""
    started = time.process_time()
    right = [verdict(case.text, case.gold) for case in completions]
    seconds = time.process_time() - started
    agree = sum(found == case.right for found, case in zip(right, completions, strict=True))
    return len(completions) / seconds, agree / len(completions)


def forget() -> None:
    """Empty the caches, so that every round reads every gold for the first time."""
    from peerwise.rewards import asking, numbers, plain

    for cached in (asking._ask, numbers._read, plain._remembered):
        cached.cache_clear()


def ours() -> Callable[[str, str], bool]:
    from peerwise.rewards.math import judge

    return lambda text, gold: judge(text, gold)[0]


def math_verify() -> Callable[[str, str], bool]:
    """As its own documentation does it, without its alarm, which costs time and works in the main thread only."""
    import logging

    from math_verify import parse, verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)

    def verdict(text: str, gold: str) -> bool:
        return bool(verify(parse(gold, parsing_timeout=None), parse(text, parsing_timeout=None), timeout_seconds=None))

    return verdict


def main() -> None:
    """Measure both and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?", default=Path("../shared/data/gsm8k/test.jsonl"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", type=int, default=1319, help="how many completions math-verify grades")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    completions = cases(options.file)
    found: dict[str, dict[str, float]] = {}
    for name, verdict, count in (
        ("peerwise", ours(), len(completions)),
        ("math-verify", math_verify(), options.peer),
    ):
        rounds = []
        for _ in range(options.rounds):
            forget()
            rounds.append(timed(verdict, completions[:count]))
        found[name] = {
            "n": min(count, len(completions)),
            "per_second": max(speed for speed, _ in rounds),
            "as_constructed": rounds[-1][1],
        }
    if options.json:
        print(json.dumps(found))
        return
    for name, figures in found.items():
        print(
            f"{name:12} {figures['per_second']:10,.0f} completions a second "
            f"({figures['n']:.0f} of them, {100 * figures['as_constructed']:.2f} % as constructed)"
        )


if __name__ == "__main__":
    main()
