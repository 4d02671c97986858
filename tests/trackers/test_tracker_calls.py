"""Pins what each tracker's package is asked to do, on stand-ins for the packages: begin, figures, tables, marks."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from peerwise.trackers.base import Run, as_text, flat

pytest.register_assert_rewrite("fakes")

from fakes import recorded  # noqa: E402

ROWS = [{"text": "so 42", "reward": 1.0, "extracted": "42"}, {"text": "so\n41", "reward": 0.0, "extracted": None}]
TEXT = "text: so 42\nreward: 1.0\nextracted: 42\n\ntext: so\n41\nreward: 0.0\nextracted: "


@pytest.fixture
def run(tmp_path: Path) -> Run:
    folder = tmp_path / "demo"
    folder.mkdir()
    return Run(name="demo", folder=str(folder), project="sums", settings={"run": {"seed": 1}})


def again(run: Run) -> Run:
    return replace(run, known_as="abc", from_step=7)


def told(tracker: Any) -> None:
    tracker.mark(0, "stage", "grpo")
    tracker.scalars(3, {"reward/mean": 0.5})
    tracker.table(3, "samples", ROWS)
    tracker.close(True)


def test_wandb_is_kept_in_the_run_folder_and_leaves_the_output_alone(run: Run, monkeypatch) -> None:
    module, calls = recorded("wandb", monkeypatch, "wandb", id="xyz")
    tracker = module.Wandb(run)
    assert tracker.known_as == "xyz"
    told(tracker)
    settings, init, mark, scalars, table, log, finish = calls
    assert settings == ("Settings", (), {"console": "off", "disable_git": True, "disable_code": True})
    assert init[0] == "init" and init[2] | {"settings": None} == {
        "project": "sums", "name": "demo", "dir": run.folder, "config": {"run": {"seed": 1}}, "id": None,
        "resume": None, "settings": None,
    }  # fmt: skip
    assert mark == ("init().summary", "stage/grpo", 0)
    assert scalars == ("init().log", ({"reward/mean": 0.5},), {"step": 3})
    assert table[0] == "Table" and table[2]["columns"] == ["text", "reward", "extracted"]
    assert table[2]["data"] == [["so 42", 1.0, "42"], ["so\n41", 0.0, None]]
    assert log[2] == {"step": 3} and list(log[1][0]) == ["samples"]
    assert finish == ("init().finish", (), {"exit_code": 0})


def test_wandb_goes_on_with_the_run_it_knows(run: Run, monkeypatch) -> None:
    module, calls = recorded("wandb", monkeypatch, "wandb", id="abc")
    module.Wandb(again(run)).close(False)
    assert (calls[1][2]["id"], calls[1][2]["resume"]) == ("abc", "allow")
    assert calls[-1] == ("init().finish", (), {"exit_code": 1})


def test_trackio_is_told_everything_by_step(run: Run, monkeypatch) -> None:
    module, calls = recorded("trackio", monkeypatch, "trackio")
    told(module.Trackio(run))
    assert calls[0] == ("init", (), {
        "project": "sums", "name": "demo", "config": {"run": {"seed": 1}}, "resume": "never", "embed": False
    })  # fmt: skip
    assert calls[1] == ("init().log", ({"stage/grpo": 1},), {"step": 0})
    assert calls[2] == ("init().log", ({"reward/mean": 0.5},), {"step": 3})
    assert calls[3][0] == "Table" and calls[4][2] == {"step": 3}
    assert calls[5] == ("init().finish", (), {})
    module.Trackio(again(run))
    assert (calls[6][2]["name"], calls[6][2]["resume"]) == ("abc", "allow")


def test_swanlab_gets_each_sample_as_a_text(run: Run, monkeypatch) -> None:
    module, calls = recorded("swanlab", monkeypatch, "swanlab", id="xyz")
    tracker = module.SwanLab(run)
    told(tracker)
    assert tracker.known_as == "xyz"
    assert calls[0] == ("init", (), {
        "project": "sums", "name": "demo", "config": {"run": {"seed": 1}}, "log_dir": f"{run.folder}/swanlab",
        "id": None, "resume": None,
    })  # fmt: skip
    assert [call[:2] for call in calls if call[0] == "Text"] == [
        ("Text", ("grpo",)), ("Text", (as_text(ROWS[:1]),)), ("Text", (as_text(ROWS[1:]),))
    ]  # fmt: skip
    assert ("init().log", ({"reward/mean": 0.5},), {"step": 3}) in calls
    assert calls[-1] == ("init().finish", (), {"state": "success"})
    module.SwanLab(again(run)).close(False)
    assert calls[-1] == ("init().finish", (), {"state": "aborted"})


def test_tensorboard_shows_texts_as_they_are(run: Run, monkeypatch) -> None:
    module, calls = recorded("tensorboard", monkeypatch, "tensorboardX")
    told(module.TensorBoard(run))
    assert calls[0] == ("SummaryWriter", (f"{run.folder}/tensorboard",), {"purge_step": None})
    assert calls[1][1] == ("recipe", '    {\n     "run": {\n      "seed": 1\n     }\n    }', 0)
    assert calls[2][1] == ("stage", "    grpo", 0)
    assert calls[3][1] == ("reward/mean", 0.5, 3)
    assert calls[5][1] == ("samples", "    " + TEXT.replace("\n", "\n    "), 3)
    assert calls[-1][0] == "SummaryWriter().close"


def test_tensorboard_leaves_out_what_a_resumed_run_says_again(run: Run, monkeypatch) -> None:
    module, calls = recorded("tensorboard", monkeypatch, "tensorboardX")
    module.TensorBoard(again(run))
    assert calls == [("SummaryWriter", (f"{run.folder}/tensorboard",), {"purge_step": 8})]


def mlflow(monkeypatch) -> tuple[Any, list[Any]]:
    # Set first, so that what the adapter sets is undone after the test.
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "")
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE")
    return recorded("mlflow", monkeypatch, "mlflow", "mlflow.entities", run_id="xyz", experiment_id="9")


def test_mlflow_without_an_address_keeps_a_store_beside_the_run(run: Run, monkeypatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    module, calls = mlflow(monkeypatch)
    tracker = module.MLflow(run)
    assert tracker.known_as == "xyz"
    assert calls[0] == ("MlflowClient", (), {"tracking_uri": (Path(run.folder).parent / "mlruns").as_uri()})
    assert os.environ["MLFLOW_ALLOW_FILE_STORE"] == "true"
    names = [call[0].removeprefix("MlflowClient().") for call in calls]
    assert names[1:] == ["get_experiment_by_name", "create_run", "Param", "log_batch"]
    assert calls[2][1:] == (("9",), {"run_name": "demo"})
    assert calls[3][1] == ("run.seed", "1")


def test_mlflow_takes_its_address_and_goes_on_with_a_run(run: Run, monkeypatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    module, calls = mlflow(monkeypatch)
    tracker = module.MLflow(again(run))
    told(tracker)
    assert calls[0] == ("MlflowClient", (), {"tracking_uri": "http://127.0.0.1:1"})
    assert calls[1] == ("MlflowClient().update_run", ("abc",), {"status": "RUNNING"})
    assert calls[2] == ("MlflowClient().set_tag", ("abc", "stage.grpo", "0"), {})
    assert calls[3][0] == "Metric" and calls[3][1][:2] == ("reward/mean", 0.5) and calls[3][1][3] == 3
    assert calls[5] == ("MlflowClient().log_text", ("abc", TEXT, "samples/step-000003.txt"), {})
    assert calls[6] == ("MlflowClient().set_terminated", ("abc", "FINISHED"), {})


def test_mlflow_gets_no_name_that_it_refuses_and_no_more_than_it_takes_at_once(run: Run, monkeypatch) -> None:
    module, calls = mlflow(monkeypatch)
    many = {f"setting {number}": "x" * 7000 for number in range(250)}
    tracker = module.MLflow(Run(name="demo", folder=run.folder, project="sums", settings=many))
    tracker.scalars(1, {"reward/part/ist es wahr?": 1.0})
    assert [call[1][0] for call in calls if call[0] == "Metric"] == ["reward/part/ist es wahr_"]
    assert [len(call[2]["params"]) for call in calls if "params" in call[2]] == [100, 100, 50]
    assert {len(call[1][1]) for call in calls if call[0] == "Param"} == {6000}


def test_tables_and_settings_become_texts() -> None:
    assert as_text(ROWS) == TEXT
    assert flat({"a": {"b": [1, 2], "c": {}}, "d": None, "e": "t", "f": {"g": True}}) == {
        "a.b": "[1, 2]", "a.c": "{}", "d": "null", "e": "t", "f.g": "true"
    }  # fmt: skip
