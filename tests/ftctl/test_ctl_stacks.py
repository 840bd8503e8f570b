"""`ftctl stacks`: the present stacks of the processes of a healthy job."""

import json
import os
import re
import subprocess

import pytest

from support.runs import FTCTL, PID1, Run, Runs, need_pid1, python, stop_inside, wait_for
from waitproof import stacks

RANKS = """
import os, subprocess, threading, time
def wait(): time.sleep(3600)
def odd(): wait()
def rank(number):
    os.environ["RANK"] = str(number)
    threading.Thread(target=wait, daemon=True).start()
    ft.beat(1)
    if number == 1: subprocess.Popen([b"sleep\\xff", "3600"], executable="sleep")
    odd() if number == 2 else wait()
for number in range(4):
    if os.fork() == 0: rank(number)
os.wait()
"""


@pytest.fixture(autouse=True)
def _py_spy() -> None:
    if stacks.program() is None:
        pytest.skip("py-spy is not installed")


def started(runs: Runs) -> Run:
    run = runs.start("--no-auto-beat", *python(RANKS))

    def complete() -> bool:
        found = json.loads(run.ftctl("stacks", "--json").stdout or '{"processes": []}')["processes"]
        waiting = [p for p in found if p["rank"] is not None and "wait" in str(p["threads"][-1:]) and p["threads"][1:]]
        return len(found) == 6 and len(waiting) == 4

    wait_for(complete, "all ranks, their threads and the child")
    return run


def test_stacks_of_all_ranks_of_one_rank_and_as_json(runs: Runs) -> None:
    run = started(runs)
    done = run.ftctl("stacks")
    assert (done.returncode, done.stderr) == (0, "")
    shown = done.stdout
    assert "ranks 0-1, 3:\n" in shown, "equal stacks are shown once"
    assert "rank 2:\n" in shown
    assert shown.index("rank 2:") < shown.index("ranks 0-1, 3:"), "the odd one out comes first"
    assert shown.count(" rank\n") == 2
    assert "no stack of 1 process, it does not run Python, or a version that py-spy does not support: process" in shown
    assert r"(sleep\udcff 3600)" in shown
    assert [record["event"] for record in run.records][-1] != "suspect"
    shown = run.ftctl("stacks", "--rank", "1").stdout
    assert shown.startswith("rank 1:\n")
    assert "  thread " in shown
    assert r"(sleep\udcff 3600)" in shown
    assert "rank 2" not in shown
    uses = re.findall(
        r"^process \d+: sleeping, (\d) threads?, [\d.]+s of processor time, \d+ MiB of memory$", shown, re.M
    )
    assert sorted(uses) == ["1", "2"], "the rank and its child"
    done = run.ftctl("stacks", "--rank", "9")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"ftctl: {run.run_dir}: no rank 9 runs; these do: 0-3\n"
    found = json.loads(run.ftctl("stacks", "--json").stdout)
    assert found["schema"] == 1
    json.dumps(found, ensure_ascii=False).encode()  # fails for half a character, which some JSON readers refuse
    ranks = [process["rank"] for process in found["processes"]]
    assert ranks == [0, 1, 2, 3, None, None]
    odd = found["processes"][2]
    (main,) = [thread for thread in odd["threads"] if thread["main"]]
    assert [frame["name"] for frame in main["frames"]][:2] == ["wait", "odd"]
    assert len(odd["threads"]) == 2
    assert odd["used"]["threads"] == 2
    assert odd["used"]["memory"] > 1 << 20
    assert found["processes"][-1]["missing"] is not None or found["processes"][-2]["missing"] is not None


def test_ranks_that_go_on_after_rank_0_have_stacks(runs: Runs) -> None:
    code = "import os, time; ft.beat(1); time.sleep(0 if os.environ['RANK'] == '0' else 3600)"
    run = runs.start("--nproc-per-node", "3", "--no-auto-beat", *python(code))

    def only_others() -> bool:
        return "ranks 1-2:\n    <string>:" in run.ftctl("stacks").stdout

    run.until("rank_exited")
    wait_for(only_others, "the stacks of the other ranks")


def test_a_standby_is_not_a_process_of_the_job(runs: Runs) -> None:
    run = runs.start("--standby", "1", *python("import time; ft.beat(1); time.sleep(3600)"))
    run.until("standby", what="ready")
    found = json.loads(run.ftctl("stacks", "--json").stdout)["processes"]
    assert [process["pid"] for process in found] == [run.named("spawned")[0]["pid"]]


def test_ended_run_has_no_stacks(runs: Runs) -> None:
    run = runs.run("true")
    done = run.ftctl("stacks")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"ftctl: {run.run_dir}: no command runs: the run has ended\n"


def test_killed_run_has_no_stacks(runs: Runs) -> None:
    run = runs.start("sleep", "3600")
    wait_for(lambda: run.ftctl("stacks").returncode == 0, "the command to be in the state file")
    run.kill_ftrun()
    wait_for(lambda: run.ftctl("stacks").returncode == 1, "the command to die with ftrun")
    assert "is gone or in another PID namespace" in run.ftctl("stacks").stderr


def test_run_in_another_pid_namespace_is_one_line(runs: Runs) -> None:
    need_pid1()
    run = runs.start("sleep", "3600", prefix=PID1)
    expected = "in another PID namespace; run ftctl in its container"
    wait_for(lambda: expected in run.ftctl("stacks").stderr, "the command to be in the state file")
    done = run.ftctl("stacks")
    assert (done.returncode, done.stdout) == (1, "")
    stop_inside(run)


REFUSED = """#!/bin/sh
echo "Error: Permission Denied: Try running again with elevated permissions" >&2
exit 1
"""


def test_missing_permission_is_reported(runs: Runs) -> None:
    run = runs.start(*python("import time; ft.beat(1); time.sleep(3600)"))
    run.until("first_beat")
    spy = runs.folder / "py-spy"
    spy.write_text(REFUSED)
    spy.chmod(0o755)
    command = [*FTCTL, "stacks", "--run-dir", str(run.run_dir)]
    environment = runs.environment | {"PATH": f"{runs.folder}:{os.environ['PATH']}"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 0
    assert done.stdout.startswith(f"no stack of 1 process, not permitted: {stacks.permission()}: rank 0, process")
