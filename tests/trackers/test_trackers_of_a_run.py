"""Pins that a tracker is told what happens and that nothing it does, or fails to do, stops, slows or soils the run."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.register_assert_rewrite("fakes")

from fakes import installed  # noqa: E402

import peerwise.trackers.link as link  # noqa: E402
import peerwise.trackers.run as trackers_run  # noqa: E402
from peerwise.errors import RequestError  # noqa: E402
from peerwise.metrics.sample import Answer, Sample  # noqa: E402
from peerwise.trackers.known import KNOWN, require  # noqa: E402
from peerwise.trackers.run import Trackers, open_trackers  # noqa: E402

RECORD = {
    "task": "toy", "global_step": 4, "accuracy": 0.5, "interval": [0.25, 0.75], "mean_tokens": 3.0,
    "pass_at_k": {2: {"value": 0.75, "interval": [0.5, 1.0]}},
    "examples": [{
        "problem": "toy/1", "question": "?", "gold": "42", "text": "so \ud800\x00 42", "correct": True, "reward": 1.0,
        "extracted": None,
    }],
}  # fmt: skip


def opened(folder: Path, warned: list[str], from_step: int = 0) -> Trackers:
    folder.mkdir(exist_ok=True)
    return open_trackers(
        ["trackio"], folder=folder, project="p", settings={"a": 1}, from_step=from_step, warn=warned.append
    )


def test_what_happens_is_told_in_order_and_the_end_too(tmp_path, monkeypatch, capfd) -> None:
    calls, warned = installed(tmp_path, monkeypatch), []
    answers = tuple(Answer(text=str(r), reward=r, correct=r > 0.5, extracted=None) for r in (1.0, 0.4, 0.0))
    with opened(tmp_path / "demo", warned) as trackers:
        trackers.stage(1, "grpo", 0)
        trackers.metrics(1, {"loss": 0.5, "grad_norm": float("nan")})
        trackers.samples(1, [Sample(problem="toy/1", question="?", gold="1", answers=answers)])
        trackers.evaluation(RECORD)
    assert calls.read_text().splitlines() == [
        "init demo never {'a': 1}",
        "log 0 {'stage/grpo': 1}",
        "log 0 {'stage_number': 1}",
        "log 1 {'loss': 0.5}",
        "log 1 {'samples': table of 2}",
        "log 4 {'evaluation/toy/accuracy': 0.5, 'evaluation/toy/mean_tokens': 3.0, 'evaluation/toy/accuracy_low': 0.25,"
        " 'evaluation/toy/accuracy_high': 0.75, 'evaluation/toy/pass_at_k/2': 0.75}",
        "log 4 {'evaluation/toy/answers': table of 1}",
        "finish",
    ]
    assert warned == []
    assert capfd.readouterr() == ("", "")
    assert "hello from the tracker" in (tmp_path / "demo/trackers/trackio.log").read_text()


def test_a_run_that_goes_on_is_the_same_run_to_the_tracker(tmp_path, monkeypatch) -> None:
    calls, warned = installed(tmp_path, monkeypatch), []
    for from_step in (0, 3):
        with opened(tmp_path / "demo", warned, from_step) as trackers:
            trackers.metrics(from_step + 1, {"loss": 0.5})
    assert json.loads((tmp_path / "demo/trackers/trackio.json").read_text()) == {"known_as": "demo"}
    begun = [line for line in calls.read_text().splitlines() if line.startswith("init")]
    assert begun == ["init demo never {'a': 1}", "init demo allow {'a': 1}"]


@pytest.mark.parametrize("place", ["init", "log", "finish"])
def test_a_tracker_that_fails_is_told_once_and_is_off(place, tmp_path, monkeypatch) -> None:
    installed(tmp_path, monkeypatch, f"{place}:raise")
    warned: list[str] = []
    with opened(tmp_path / "demo", warned) as trackers:
        for step in range(40):
            trackers.metrics(step, {"loss": 0.5})
            time.sleep(0.02)
    assert len(warned) == 1
    assert warned[0].startswith("tracker trackio failed and is off, the run goes on: ValueError: no room left (more in")


def test_a_tracker_that_takes_its_process_down_leaves_the_run_alone(tmp_path, monkeypatch) -> None:
    installed(tmp_path, monkeypatch, "log:exit")
    warned: list[str] = []
    with opened(tmp_path / "demo", warned) as trackers:
        trackers.metrics(1, {"loss": 0.5})
    assert len(warned) == 1 and "failed and is off" in warned[0]


def test_a_tracker_that_hangs_is_never_waited_for_and_ended_when_the_run_is_over(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(trackers_run, "CLOSE_S", 0.5)
    monkeypatch.setattr(link, "QUEUED", 20)
    installed(tmp_path, monkeypatch, "init:hang")
    warned: list[str] = []
    began = time.monotonic()
    with opened(tmp_path / "demo", warned) as trackers:
        for step in range(200):
            trackers.metrics(step, {f"figure {number}": 0.5 for number in range(400)})
    assert time.monotonic() - began < 10
    assert len(warned) == 1 and "was not done after" in warned[0]


def test_what_a_slow_tracker_loses_is_counted(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(link, "QUEUED", 20)
    calls, warned = installed(tmp_path, monkeypatch), []
    with opened(tmp_path / "demo", warned) as trackers:
        for step in range(200):
            trackers.metrics(step, {f"figure {number}": 0.5 for number in range(400)})
    lost = 200 - calls.read_text().count("log ")
    # One more may be lost for the sake of the end: the message that the run is done.
    assert lost > 0 and warned[0].startswith("tracker trackio was too slow: ")
    assert 0 <= int(warned[0].split(": ")[1].split()[0]) - lost <= 1


def test_an_interrupted_run_ends_its_trackers_as_not_done(tmp_path, monkeypatch) -> None:
    calls, warned = installed(tmp_path, monkeypatch), []
    with pytest.raises(KeyboardInterrupt), opened(tmp_path / "demo", warned):
        raise KeyboardInterrupt
    assert calls.read_text().splitlines()[-1] == "finish"
    assert warned == []


def test_a_spoilt_identity_is_told_and_the_run_goes_on(tmp_path, monkeypatch) -> None:
    installed(tmp_path, monkeypatch)
    (tmp_path / "demo/trackers").mkdir(parents=True)
    (tmp_path / "demo/trackers/trackio.json").write_text("[]")
    warned: list[str] = []
    with opened(tmp_path / "demo", warned) as trackers:
        trackers.metrics(1, {"loss": 0.5})
    assert len(warned) == 1 and "could not be started" in warned[0]


def test_without_trackers_nothing_happens(tmp_path) -> None:
    with open_trackers([], folder=tmp_path, project="p", settings={}, from_step=0, warn=print) as trackers:
        trackers.metrics(1, {"loss": 0.5})
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_installed_is_refused_with_the_command_that_installs_it(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(KNOWN, "wandb", KNOWN["wandb"]._replace(package="no_such_package_1"))
    monkeypatch.setitem(KNOWN, "mlflow", KNOWN["mlflow"]._replace(package="no_such_package_2"))
    with pytest.raises(RequestError, match=r"wandb, mlflow not installed; pip install 'peerwise\[wandb,mlflow\]'"):
        require(["wandb", "mlflow"])
    # A folder of that name is no package.
    (tmp_path / "no_such_package_1").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(RequestError, match="wandb not installed"):
        require(["wandb"])
    installed(tmp_path, monkeypatch)
    require(["trackio"])


def test_trackers_are_known_without_importing_any_or_torch() -> None:
    code = (
        "import sys, peerwise.trackers.run, peerwise.trackers.known\n"
        "print({'torch', 'wandb', 'trackio', 'swanlab', 'mlflow', 'tensorboardX'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
