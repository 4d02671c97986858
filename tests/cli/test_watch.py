"""Pins `peerwise watch`: steps and evaluations in their order, warnings, the table at the end; it waits for a run that
goes on and ends with one that is over."""

import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from functools import partial

import pytest

import peerwise.cli.watch as watch
from peerwise.cli.main import main

RECIPE = "[stage.sft]\nmethod = 'sft'\nsteps = 1\n[stage.grpo]\nmethod = 'grpo'\nsteps = 2\n"


def step(stage, number, at):
    return {"stage": stage, "step": number, "global_step": at, "loss": 0.5, "time/step": 1.0}


def evaluation(stage, number, at, when, accuracy):
    return {
        "stage": stage, "step": number, "global_step": at, "at": when, "task": "toy", "n": 8, "accuracy": accuracy,
        "interval": [0.0, 1.0], "mean_tokens": 5.0,
    }  # fmt: skip


STEPS = [step("sft", 1, 1), step("grpo", 1, 2), step("grpo", 2, 3)]
EVALUATIONS = [
    evaluation("sft", 0, 0, "before", 0.25),
    evaluation("sft", 1, 1, "after", 0.5),
    evaluation("grpo", 2, 3, "after", 0.75),
]


def written(folder, name, rows):
    with (folder / name).open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def run(tmp_path):
    (tmp_path / "recipe.toml").write_text(RECIPE)
    (tmp_path / "run.log").write_text("2026-01-02 10:00:00 hello\n2026-01-02 10:00:01 warning: look out\n")
    return tmp_path


def test_a_run_that_is_over_is_shown_whole_and_in_its_order(run, capsys):
    written(run, "metrics.jsonl", STEPS)
    written(run, "evals.jsonl", EVALUATIONS)
    assert main(["watch", str(run)]) == 0
    said = capsys.readouterr().err
    expected = (
        "evaluation sft 0",
        "stage sft (sft), 1",
        "evaluation sft 1",
        "stage grpo",
        "grpo 2/2",
        "evaluation grpo 2",
    )
    places = [said.index(text) for text in expected]
    assert places == sorted(places)
    assert "warning: look out" in said and "hello" not in said
    assert "after grpo" in said.split("evaluation grpo 2")[1]


def test_it_waits_for_a_run_that_goes_on(run, capsys, monkeypatch):
    monkeypatch.setattr(watch, "POLL_S", 0.01)
    written(run, "metrics.jsonl", STEPS[:2])
    written(run, "evals.jsonl", EVALUATIONS[:2])
    thread = threading.Thread(target=main, args=(["watch", str(run)],))
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()
    written(run, "metrics.jsonl", STEPS[2:])
    written(run, "evals.jsonl", EVALUATIONS[2:])
    thread.join(10)
    assert not thread.is_alive()
    assert "grpo 2/2" in capsys.readouterr().err


def test_once_shows_what_is_there_and_a_folder_that_is_no_run_is_named(run, tmp_path_factory, capsys):
    assert main(["watch", str(run), "--once"]) == 0
    assert main(["watch", str(tmp_path_factory.mktemp("other")), "--once"]) == 2
    assert "is not a run" in capsys.readouterr().err


def on_a_terminal(run, columns, rows, *words, stop_when=None):
    """What `peerwise watch` writes to a terminal of that size, and its exit code; Ctrl-C once a text has appeared."""
    reader, writer = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": str(rows)}
    command = [sys.executable, "-m", "peerwise", "watch", str(run), *words]
    # A shell's background jobs ignore Ctrl-C, and what they start does too; a terminal's command does not.
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(command, stdin=writer, stdout=writer, stderr=writer, env=environment, preexec_fn=heed)
    os.close(writer)
    said, deadline = b"", time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            said += os.read(reader, 65536)
        except OSError:  # the other side is closed
            break
        if stop_when is not None and stop_when in said:
            process.send_signal(signal.SIGINT)
            stop_when = None
    os.close(reader)
    return said.decode(), process.wait(10)


def test_on_a_terminal_the_board_is_drawn_and_the_table_comes_below_it(run):
    written(run, "metrics.jsonl", STEPS)
    written(run, "evals.jsonl", EVALUATIONS)
    said, code = on_a_terminal(run, 90, 40)
    assert code == 0
    assert "held-out accuracy" in said and "2/2" in said
    assert said.index("held-out accuracy") < said.rindex("\x1b[?25h") < said.rindex("before sft")


def test_ctrl_c_leaves_the_view_with_the_cursor_shown(run):
    written(run, "metrics.jsonl", STEPS[:2])
    said, code = on_a_terminal(run, 50, 12, stop_when=b"1/2")
    assert code == 130
    assert "\x1b[?25l" in said and "\x1b[?25h" in said.split("\x1b[?25l")[-1]
    assert "Traceback" not in said
