"""Pins `peerwise compare`: one JSON object, recipes and seeds side by side, what is said of what is no run."""

import json

import pytest

from peerwise.cli.main import main
from peerwise.recipe.dump import dumps
from peerwise.recipe.load import loads

RECIPE = "[stage.grpo]\nmethod = 'grpo'\nsteps = {steps}\n[run]\nseed = {seed}\nout = '{out}'\n"


def made(folder, *, seed=0, steps=4, right=(1, 0, 1, 1)):
    folder.mkdir()
    (folder / "recipe.toml").write_text(dumps(loads(RECIPE.format(steps=steps, seed=seed, out=folder))))
    evaluations = [
        {
            "stage": "grpo", "step": step, "global_step": step, "at": at, "task": "toy", "n": len(outcome),
            "samples": 1,
            "accuracy": sum(outcome) / len(outcome), "interval": [0.1, 0.9], "mean_tokens": 5.0, "right": list(outcome),
            "settings": {}, "split": "test", "temperature": 0.0, "max_new_tokens": 8, "stop": [], "seed": seed,
        }
        for step, at, outcome in ((0, "before", [0] * len(right)), (steps, "after", right))
    ]  # fmt: skip
    (folder / "evals.jsonl").write_text("".join(json.dumps(row) + "\n" for row in evaluations))
    rows = [
        {"stage": "grpo", "step": n, "global_step": n, "time/step": 60.0, "memory/peak": 2**30}
        for n in range(1, steps + 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder)


def test_json_is_one_object_with_each_run_against_the_first(tmp_path, capsys):
    runs = [made(tmp_path / "a"), made(tmp_path / "b", steps=8, right=(1, 1, 1, 1)), made(tmp_path / "c", seed=1)]
    assert main(["compare", *runs, "--goal", "1.0", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [run["run"] for run in found["runs"]] == runs
    longer, seeded = found["against_first"]
    assert longer["recipe"] == {"stage.grpo.steps": [4, 8]}
    assert longer["tasks"][0]["difference"] == 0.25 and longer["tasks"][0]["paired"]
    assert seeded["recipe"] == {"run.seed": [0, 1]}
    assert not seeded["tasks"][0]["paired"]
    (seeds,) = found["seeds"]
    assert seeds["runs"] == [runs[0], runs[2]]
    assert seeds["tasks"]["toy"] == {"mean": 0.75, "lowest": 0.75, "highest": 0.75, "runs": 2}
    assert [run["tasks"]["toy"]["goal"] and run["tasks"]["toy"]["goal"]["steps"] for run in found["runs"]] == [
        None,
        8,
        None,
    ]


def test_people_read_cost_difference_and_settings(tmp_path, capsys):
    runs = [made(tmp_path / "a"), made(tmp_path / "b", steps=8, right=(1, 1, 1, 1))]
    assert main(["compare", *runs, "--goal", "0.9"]) == 0
    said = capsys.readouterr().out
    assert "a: 4 steps in 4.0 min, 0 tokens sampled, peak 1.0 GiB" in said
    assert "90% not reached" in said and "90% after 8 steps, 8.0 min" in said
    assert "+25.0 points" in said and "paired; 1 gained, 0 lost, sign test p = 1" in said
    assert "stage.grpo.steps: 4 -> 8" in said


@pytest.mark.parametrize("what", ["nothing", "no evaluation"])
def test_a_folder_that_is_no_run_or_has_no_evaluation_is_named(tmp_path, capsys, what):
    run = made(tmp_path / "a")
    other = tmp_path / "b"
    if what == "no evaluation":
        made(other)
        (other / "evals.jsonl").unlink()
    assert main(["compare", run, str(other)]) == 2
    said = capsys.readouterr().err
    assert str(other) in said and ("is not a run" if what == "nothing" else "has no evaluation yet") in said
