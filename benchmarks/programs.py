"""Programs on this machine: reference solutions, wrong bodies, hostile programs, and how many are graded a second.

    python benchmarks/programs.py --data ../shared/data --workers 2 --json

Reads HumanEval and MBPP from `--data` in place. Exit code 1 when a reference fails, a wrong body passes, a hostile
program gets another reward than it must, or a process is left running.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from peerwise.records import Problem
from peerwise.rewards.programs import code_of
from peerwise.sandbox.programs import Outcome, Program, run_all
from peerwise.sandbox.walls import walls
from peerwise.tasks.base import load_evaluation

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "sandbox"))
from hostile_programs import NAMES, TESTS, hostile_programs

SETS = (("humaneval", "test"), ("mbpp", "test"), ("mbpp", "train"))
WRONG_BODIES = ("return None", "raise ValueError")
HOSTILE_DEADLINE_S = 4.0


def made(problem: Problem, body: str | None) -> Program:
    """The problem's reference program, every function's body replaced by `body` if given."""
    tests = json.loads(problem.answer)
    source = code_of(problem.solution or "") or ""
    if body:
        tree = ast.parse(source)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                node.body = ast.parse(f"def f():\n    {body}").body[0].body  # type: ignore[attr-defined]
        source = ast.unparse(tree)
    return Program(source=source, names=tuple(tests["names"]), tests=tuple(tests["tests"]), prelude=tests["prelude"])


def right(outcome: Outcome) -> bool:
    return outcome.compiled and all(outcome.passed)


def references(data: Path, name: str, split: str, workers: int) -> dict[str, Any]:
    """How many reference programs pass, which do not, and which wrong bodies pass."""
    problems = load_evaluation(name, path=str(data / name), split=split, template="code").problems
    begun = time.perf_counter()
    outcomes = run_all([made(problem, None) for problem in problems], workers=workers)
    seconds = time.perf_counter() - begun
    result: dict[str, Any] = {
        "programs": len(problems),
        "tests": sum(len(outcome.passed) for outcome in outcomes),
        "reference_passes": sum(map(right, outcomes)),
        "reference_fails": [p.meta["task_id"] for p, o in zip(problems, outcomes, strict=True) if not right(o)],
        "programs_per_second": round(len(problems) / seconds, 1),
    }
    for body in WRONG_BODIES:
        outcomes = run_all([made(problem, body) for problem in problems], workers=workers)
        passing = [p.meta["task_id"] for p, o in zip(problems, outcomes, strict=True) if right(o)]
        result[f"passes with {body!r}"] = passing
        result[f"single tests passed with {body!r}"] = sum(sum(outcome.passed) for outcome in outcomes)
    return result


def hostile(workers: int) -> dict[str, Any]:
    """Rewards of hostile programs beside those they must get, and what is left running."""
    os.environ["A_TOKEN"] = "SECRET"
    attacks = hostile_programs()
    programs = [Program(source=one.source, names=NAMES, tests=TESTS) for one in attacks]
    begun = time.perf_counter()
    outcomes = run_all(programs, deadline_s=HOSTILE_DEADLINE_S, workers=workers)
    shares = [sum(o.passed) / len(o.passed) if o.compiled else None for o in outcomes]
    children = [pid for task in Path("/proc/self/task").glob("*/children") for pid in task.read_text().split()]
    strays = [e.name for e in Path("/proc").glob("[0-9]*") if e.exists() and e.stat().st_uid >= 2**30]
    return {
        "programs": len(attacks),
        "other_reward": [(a.name, share) for a, share in zip(attacks, shares, strict=True) if share != a.share],
        "left_running": children + strays,
        "deadlines": sum(outcome.ending == "deadline" for outcome in outcomes),
        "seconds": round(time.perf_counter() - begun, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder with humaneval/ and mbpp/")
    parser.add_argument("--workers", type=int, default=2, help="programs side by side (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    options = parser.parse_args()
    results: dict[str, Any] = {"walls": walls().lines(), "workers": options.workers}
    for name, split in SETS:
        results[f"{name}/{split}"] = references(options.data, name, split, options.workers)
    results["hostile"] = hostile(options.workers)
    if options.json:
        print(json.dumps(results, indent=1))
    else:
        for key, value in results.items():
            print(f"{key}: {value}")
    sets = [results[f"{name}/{split}"] for name, split in SETS]
    bad = any(s["reference_fails"] or any(s[f"passes with {body!r}"] for body in WRONG_BODIES) for s in sets)
    return int(bad or bool(results["hostile"]["other_reward"] or results["hostile"]["left_running"]))


if __name__ == "__main__":
    sys.exit(main())
