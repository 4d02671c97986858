"""Pins the walls: hostile programs get what they deserve, the next program is graded, and nothing is left running, with
bubblewrap and without.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hostile_programs import NAMES, TESTS, one_of_each

from peerwise.sandbox import programs, walls
from peerwise.sandbox.programs import Program, run, run_all
from peerwise.sandbox.walls import SandboxFailed, Walls

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is Linux's")

RIGHT = Program(source="def answer(x): return x + 1", names=NAMES, tests=TESTS)
ROOT = os.geteuid() == 0


@pytest.fixture
def nothing_left():
    """Fails the test when a process that it started, or that those started, is still there at its end."""
    before = started()
    yield
    assert started() == before


def started():
    """Ids of processes that are below this one or belong to a user that it made up."""
    first = walls._FIRST_USER + (os.getpid() << 8) % 2**29
    found, level = set(), {os.getpid()}
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            status = (entry / "status").read_text()
        except OSError:
            continue
        parents[int(entry.name)] = int(re.search(r"^PPid:\s*(\d+)", status, re.MULTILINE)[1])
        if first <= int(re.search(r"^Uid:\s*(\d+)", status, re.MULTILINE)[1]) < first + 256:
            found.add(int(entry.name))
    while level := {pid for pid, parent in parents.items() if parent in level}:
        found |= level
    return found


def share(outcome):
    return sum(outcome.passed) / len(outcome.passed) if outcome.compiled else None


def has(source, **options):
    return share(run(Program(source=source, names=NAMES, tests=TESTS), **options))


@pytest.fixture
def without_bubblewrap(monkeypatch):
    choice = Walls(bubblewrap=False, own_user=ROOT)
    if not walls._stands(choice):
        # The interpreter of these tests may lie in a home folder.
        monkeypatch.setattr(walls, "_INTERPRETER", "/usr/bin/python3")
        if not walls._stands(choice):
            pytest.skip("no process starts without bubblewrap here: no Python is readable for every user")
    monkeypatch.setattr(programs, "walls", lambda: choice)


@pytest.mark.skipif(not walls.walls().bubblewrap, reason="bubblewrap is not installed or does not work here")
def test_hostile_programs_get_their_reward_and_leave_nothing(nothing_left, monkeypatch):
    monkeypatch.setenv("A_TOKEN", "SECRET")
    hostile = one_of_each()
    made = [Program(source=one.source, names=NAMES, tests=TESTS) for one in hostile]
    outcomes = run_all(made, deadline_s=1.5)
    wrong = [
        (one.name, share(outcome))
        for one, outcome in zip(hostile, outcomes, strict=True)
        if share(outcome) != one.share and not (one.share == 1 and outcome.ending == "deadline")
    ]
    assert wrong == []
    assert share(run(RIGHT)) == 1


ESCAPED = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        time.sleep(1000)
    os._exit(0)
os.wait()
"""


def test_without_bubblewrap_grandchildren_in_a_session_of_their_own_are_ended(without_bubblewrap, nothing_left):
    assert has(ESCAPED + "def answer(x): return x + 1") == 1
    assert has(ESCAPED + "while True: pass", deadline_s=1.0) == 0


@pytest.mark.parametrize(
    "source",
    [
        "import os\ndef answer(x): os._exit(0)",
        "import os\nos.closerange(3, 64)\ndef answer(x): return x + 1",
        "class Liar:\n    def __eq__(self, other): return True\ndef answer(x): return Liar()",
        "kept = []\nwhile True: kept.append(bytearray(2**24))",
    ],
)
def test_without_bubblewrap_the_tests_are_still_in_another_process(without_bubblewrap, nothing_left, source):
    assert has(source, deadline_s=2.0) == 0


@pytest.mark.skipif(not ROOT, reason="only root can give each program a user of its own")
def test_without_bubblewrap_a_user_of_its_own_can_neither_end_nor_read_others(without_bubblewrap, nothing_left):
    source = f"""
import os
held = True
for path in ("/proc/{os.getpid()}/mem", "/proc/{os.getpid()}/environ", "/etc/shadow"):
    try: open(path, "rb").read(1); held = False
    except OSError: pass
try: os.kill({os.getpid()}, 0); held = False
except OSError: pass
if os.fork() == 0:
    while True:
        try: os.fork()
        except OSError: break
    os.kill(-1, 9)
def answer(x): return x + 1 if held else None
"""
    # The child ends its own program as well, sooner or later; the point is that nobody else is ended.
    has(source, deadline_s=2.0)
    assert has(source.replace("if os.fork() == 0", "if False")) == 1


def test_nothing_outlives_a_run_that_is_killed(tmp_path):
    code = (
        "import sys, threading\n"
        "from peerwise.sandbox.programs import Program, run\n"
        f"source = {ESCAPED!r} + 'while True: pass'\n"
        "def go(): run(Program(source=source, names=(), tests=('1',)), deadline_s=60)\n"
        "threading.Thread(target=go).start()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    first = walls._FIRST_USER + (process.pid << 8) % 2**29

    def alive():
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                owner = entry.stat().st_uid if ROOT else -1
            except OSError:
                continue
            if first <= owner < first + 256:
                found.append(entry.name)
        return found

    for _ in range(300):
        if len(alive()) >= 3 or not ROOT:
            break
        time.sleep(0.05)
    else:
        pytest.fail("the program did not start")
    process.kill()
    process.wait()
    for _ in range(300):
        if not alive():
            return
        time.sleep(0.05)
    pytest.fail(f"still running: {alive()}")


def test_the_walls_that_stand_are_said_one_a_line():
    full, none = Walls(bubblewrap=True, own_user=True).lines(), Walls(bubblewrap=False, own_user=False).lines()
    assert "network: none" in full
    assert "network: open (no bubblewrap)" in none
    assert any("do not run what may be hostile" in line for line in none)
    assert [line.split(":")[0] for line in full] == [line.split(":")[0] for line in none]


def test_a_sandbox_that_cannot_start_is_an_error_and_not_a_failed_program(monkeypatch):
    broken = Walls(bubblewrap=False, own_user=False)
    monkeypatch.setattr(programs, "walls", lambda: broken)
    monkeypatch.setattr(walls, "_INTERPRETER", "/bin/false")
    with pytest.raises(SandboxFailed, match="did not start"):
        run(RIGHT)
    monkeypatch.setattr(walls, "_INTERPRETER", "/no/such/python")
    with pytest.raises(SandboxFailed):
        run(RIGHT)
