"""Pins `peerwise compare`: one JSON object, recipes and seeds side by side, a page, runs that miss something."""

import json
import subprocess
import sys

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
    assert "90.0% not reached" in said and "90.0% after 8 steps, 8.0 min, 0 tokens" in said
    assert "+25.0 points" in said and "paired; 1 gained, 0 lost, sign test p = 1" in said
    assert "stage.grpo.steps: 4 -> 8" in said


def test_without_a_goal_the_cost_is_that_of_what_every_run_reached(tmp_path, capsys):
    runs = [made(tmp_path / "a"), made(tmp_path / "b", steps=8, right=(1, 1, 1, 1))]
    assert main(["compare", *runs, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["goals"] == {"toy": 0.75}
    assert [run["tasks"]["toy"]["goal"]["steps"] for run in found["runs"]] == [4, 8]


def test_a_setting_may_be_named_in_which_runs_of_one_recipe_differ(tmp_path, capsys):
    runs = [made(tmp_path / "a"), made(tmp_path / "b", steps=8, right=(1, 1, 1, 1))]
    assert main(["compare", *runs, "--json", "--apart", "stage.grpo.steps", "--apart", "model.pth"]) == 0
    told = capsys.readouterr()
    found = json.loads(told.out)
    assert [group["runs"] for group in found["seeds"]] == [runs]
    assert found["recipe"] == {"stage.grpo.steps": [4, 8]}
    assert told.err == "warning: --apart model.pth: the runs do not differ in it\n"


def test_a_page_and_its_twin_go_where_they_are_told(tmp_path, capsys):
    runs = [made(tmp_path / "a"), made(tmp_path / "b", steps=8, right=(1, 1, 1, 1))]
    assert main(["compare", *runs, "--json", "--out", str(tmp_path / "x" / "both.html")]) == 0
    told = capsys.readouterr()
    twin = json.loads((tmp_path / "x" / "both.json").read_text())
    assert json.loads(told.out).items() <= twin.items()
    assert told.err == f"the page is {tmp_path}/x/both.html\n"
    assert "2 runs side by side" in (tmp_path / "x" / "both.html").read_text()


def test_a_page_that_is_no_page_is_refused_before_anything_is_said(tmp_path, capsys):
    assert main(["compare", made(tmp_path / "a"), "--out", "both.json"]) == 2
    told = capsys.readouterr()
    assert "--out both.json should end in .html" in told.err and told.out == ""


def test_a_folder_that_is_no_run_is_named(tmp_path, capsys):
    assert main(["compare", made(tmp_path / "a"), str(tmp_path / "b")]) == 2
    said = capsys.readouterr().err
    assert str(tmp_path / "b") in said and "is not a run" in said


@pytest.mark.parametrize(
    ("gone", "expected"),
    [
        ("evals.jsonl", "it has no evaluation yet, so only its curves are compared."),
        ("metrics.jsonl", "metrics.jsonl cannot be read"),
        ("recipe.toml", "recipe.toml cannot be read"),
    ],
)
def test_a_run_that_misses_a_file_is_compared_by_the_others_and_it_is_said(tmp_path, capsys, gone, expected):
    runs = [made(tmp_path / "a"), made(tmp_path / "b", right=(1, 1, 1, 1))]
    (tmp_path / "b" / gone).unlink()
    assert main(["compare", *runs, "--out", str(tmp_path / "both.html")]) == 0
    said = capsys.readouterr().out
    assert f"{runs[1]}: {expected}" in said
    assert ("no task that both measured" in said) == (gone == "evals.jsonl")
    assert ("2 seeds of one recipe" in said) == (gone not in ("recipe.toml",))


def test_a_recipe_of_another_version_is_said_and_stands_alone(tmp_path, capsys):
    runs = [made(tmp_path / "a"), made(tmp_path / "b")]
    with (tmp_path / "b" / "recipe.toml").open("a") as file:
        file.write("never_heard_of = 1\n")
    assert main(["compare", *runs, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["seeds"] == [] and found["against_first"][0]["recipe"] is None
    assert any("recipe.toml cannot be read by this version" in sentence for sentence in found["missing"])


def test_a_run_that_goes_on_is_compared_as_far_as_it_got(tmp_path, capsys):
    runs = [made(tmp_path / "a"), made(tmp_path / "b")]
    (tmp_path / "a" / "run.log").write_text("2026-01-02 10:00:00 finished; the model is in x\n")
    with (tmp_path / "b" / "metrics.jsonl").open("a") as file:
        file.write('{"stage": "grpo", "global_st')
    assert main(["compare", *runs, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(run["finished"], run["steps"]) for run in found["runs"]] == [(True, 4), (False, 4)]
    assert any("is cut off: it was being written" in sentence for sentence in found["missing"])


def test_a_comparison_needs_no_torch(tmp_path):
    words = ["compare", made(tmp_path / "a"), made(tmp_path / "b"), "--out", str(tmp_path / "both.html")]
    code = f"import sys, peerwise.cli.main as m; m.main({words!r}); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"
