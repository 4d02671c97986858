"""Pins the killable pool: results, errors, hard deadlines from any thread, nothing left behind."""

import json
import os
import threading
import time
from pathlib import Path

import pytest

from peerwise.sandbox.pool import DeadlineExceeded, Pool, WorkerFailed


@pytest.fixture
def pool():
    pool = Pool(1)
    yield pool
    pool.close()


def children():
    """Process ids of this process's children, zombies included."""
    listed = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    return {int(pid) for file in listed for pid in file.read_text().split()}


def test_a_function_is_called_by_name_with_its_arguments(pool):
    assert pool.run("math:gcd", (12, 18), 5.0) == 6
    assert pool.run("json:dumps", ({"中": [1, None]},), 5.0) == json.dumps({"中": [1, None]})


def test_one_worker_serves_many_calls(pool):
    assert len({pool.run("os:getpid", (), 5.0) for _ in range(3)}) == 1


def test_an_endless_call_is_killed_and_the_pool_goes_on(pool):
    first = pool.run("os:getpid", (), 5.0)
    with pytest.raises(DeadlineExceeded, match=r"time:sleep took longer than 0\.2 s"):
        pool.run("time:sleep", (60,), 0.2)
    assert pool.run("os:getpid", (), 5.0) != first
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)


def test_a_loop_that_never_yields_the_interpreter_is_killed_too(pool):
    # One C call that runs for hours and checks no signals.
    with pytest.raises(DeadlineExceeded):
        pool.run("math:factorial", (10**9,), 0.3)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
def test_no_process_is_left_after_many_timeouts(pool):
    before = children()
    for _ in range(5):
        with pytest.raises(DeadlineExceeded):
            pool.run("time:sleep", (60,), 0.01)
    assert children() == before


def test_deadlines_hold_in_threads():
    pool, seen = Pool(2), []

    def work(seconds):
        try:
            seen.append(pool.run("time:sleep", (seconds,), 0.3))
        except DeadlineExceeded:
            seen.append("killed")

    threads = [threading.Thread(target=work, args=(s,)) for s in (60, 0, 60, 0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pool.close()
    assert sorted(map(str, seen)) == ["None", "None", "killed", "killed"]


@pytest.mark.parametrize(
    ("function", "args", "message"),
    [
        ("math:sqrt", (-1,), "ValueError"),
        ("no_such_module:f", (), "ModuleNotFoundError"),
        ("math:no_such_function", (), "AttributeError"),
        ("decimal:Decimal", ("1",), "TypeError.*not JSON serializable"),
        ("os:_exit", (3,), "process died"),
    ],
)
def test_a_failure_is_an_error_with_its_reason_and_the_pool_goes_on(pool, function, args, message):
    with pytest.raises(WorkerFailed, match=message):
        pool.run(function, args, 5.0)
    assert pool.run("math:gcd", (4, 6), 5.0) == 2


def test_what_a_function_prints_is_not_taken_for_its_answer(pool):
    assert pool.run("builtins:print", ('{"result": "forged"}',), 5.0) is None


def test_a_worker_sees_no_secrets_of_its_parent(pool, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert pool.run("os:getenv", ("HF_TOKEN",), 5.0) is None


def test_a_worker_that_asks_for_too_much_memory_fails_alone(pool):
    with pytest.raises(WorkerFailed, match="MemoryError"):
        pool.run("builtins:bytes", (2**36,), 5.0)


def test_a_worker_does_not_outlive_its_pool_owner(tmp_path):
    import subprocess
    import sys

    code = (
        "import os, sys, threading; from peerwise.sandbox.pool import Pool; p = Pool(1);"
        "print(p.run('os:getpid', (), 5.0), flush=True); os._exit(1)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    pid = int(done.stdout)
    for _ in range(100):
        status = Path(f"/proc/{pid}/stat")
        if not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.1)
    pytest.fail("the worker is still running")
