"""Defects that chaos has found, each with a test."""

import json
import os
import resource
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ftrun.config import derived, option_values
from ftrun.core.machine.states import Job, Running
from ftrun.core.machine.values import Attempt, Ledger, Rank
from ftrun.core.rules.policy import with_progress
from ftrun.host.console import Console
from ftrun.host.journal import Journal
from ftrun.host.tree import Tree
from ftrun.pid1.state_file import StateFile
from support.runs import Runs, carrying, end_process, patched, python, wait_for, words

# Processes below that sleep for 99 s wait to be killed by ftrun: that it does so is what is tested.
DEAF = "import os, signal, time; ft.beat(1); signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"


def test_a_checkpoint_is_in_the_state_as_soon_as_it_is_on_record(tmp_path: Path) -> None:
    """An ftrun that is killed then is followed by one that knows it."""
    settings = option_values.settings({}, {})
    run_dir, beats = SimpleNamespace(given=str(tmp_path)), SimpleNamespace(path="/none")
    objects = {"journal": Journal(str(tmp_path)), "tree": Tree(b"A=b"), "console": Console(0), "settings": settings}
    setup: Any = SimpleNamespace(run_dir=run_dir, beats=beats, imports=(), life="", buried=None, **objects)
    state_file = StateFile(setup, derived.policy(settings), ["train"])
    phase, ledger = Running(Attempt(1)), Ledger(start_cnt=1)
    for step in (8, 16, 24):
        ledger = ledger._replace(best_checkpoint=step, last_checkpoint=f"/c/{step}")
        state_file.follow(Job(phase, ledger=ledger), 100.0)
        assert json.loads((tmp_path / "state.json").read_bytes())["last_checkpoint"] == f"/c/{step}"
    assert not (tmp_path / "run.log").read_bytes(), "what it saves is all that it writes"


def test_a_checkpoint_without_a_path_keeps_the_previous_path() -> None:
    """As with a full /dev/shm, where there is room for numbers and for no text."""
    before = Ledger(best_checkpoint=8, last_checkpoint="/c/8")
    attempt = Attempt(2, ranks=(Rank(0, checkpoint_step=16),))
    assert with_progress(before, attempt, "checkpoint").last_checkpoint == "/c/8"


def test_a_state_store_that_dies_before_the_end_gets_the_verdict_after_its_restart(runs: Runs) -> None:
    state = runs.folder / "state"
    options = ("--state-dir", str(state), "--restart-on", "failure", "--max-restarts", "0", "--grace", "600ms")
    run = runs.start(*options, *python(DEAF + "if os.fork(): os._exit(3)\ntime.sleep(99)"))
    wait_for(lambda: (state / "history.json").exists(), "what the state store knows")
    run.until("stopping")
    for pid in carrying(runs.marker):
        if "ftrun.helpers.state_store" in words(pid):
            end_process(pid)
    assert run.wait() == 93, run.log()
    assert not [record for record in run.named("problem") if "not done" in record["what"]], run.log()
    assert json.loads((state / "verdict.json").read_bytes())["exit_code"] == 93
    (schedule,) = json.loads((state / "history.json").read_bytes())["schedules"]
    assert schedule["failed"]


@pytest.mark.parametrize("free", [0, 1])
def test_who_has_no_descriptor_left_still_ends_its_tree(runs: Runs, free: int) -> None:
    """One that could not look at /proc took all for ended, or ended by an exception; and its daemons lived on."""
    run = runs.start("--stop-grace", "200ms", *python(DEAF + "if os.fork() == 0: os.setsid()\ntime.sleep(99)"))
    run.until("first_beat")
    wait_for(lambda: run.helper("messenger") and len(runs.living()) > 3, "the daemon, and all helpers")
    taken = {int(name) for name in os.listdir(f"/proc/{run.pid}/fd")}
    limit = [number for number in range(200) if number not in taken][free]
    resource.prlimit(run.pid, resource.RLIMIT_NOFILE, (limit, resource.prlimit(run.pid, resource.RLIMIT_NOFILE)[1]))
    os.kill(run.pid, signal.SIGTERM)
    assert run.wait() == 137, run.log()
    assert run.order[-1] == "ended"
    assert not runs.living()
    assert "Traceback" not in run.stderr


def test_a_child_that_saves_as_its_parent_does_takes_nothing_from_it(runs: Runs) -> None:
    """A forked worker has the parent's handler for SIGTERM, and saves what it knows: it has come less far."""
    code = """import os, signal
os.kill(os.getppid(), signal.SIGSTOP)  # ftrun sees both at once
ft.checkpoint(5, '/c/5')
if os.fork() == 0: ft.checkpoint(2, '/c/2'); os._exit(0)
os.wait(); os.kill(os.getppid(), signal.SIGCONT)"""
    run = runs.ends(0, *python(code))
    assert [record["checkpoint"] for record in run.named("progress")] == ["/c/5"]
    assert run.state["last_checkpoint"] == "/c/5"


def test_a_kill_is_on_record_as_one_of_the_start_that_it_ended(runs: Runs) -> None:
    """Where nothing is waited for, the next start was decided together with it."""
    code = "import os, time; ft.beat(1)\nif os.environ['MA_PROC_START_CNT'] == '1': time.sleep(99)"
    run = runs.ends(0, "--hang-timeout", "500ms", "--grace", "off", "--device-timeout", "off", *python(code))
    assert [(r["event"], r["attempt"]) for r in run.named("killed", "restart")] == [("killed", 1), ("restart", 2)]


LATE = """
import os, signal
class Late:
    def __del__(self, kill=os.kill, pid=os.getpid(), number=signal.SIGTERM):
        kill(pid, number)
late = Late()  # goes when the interpreter does, which has given each signal its default action back by then
"""


def test_a_signal_that_comes_when_all_is_over_is_not_the_status_of_ftrun(runs: Runs) -> None:
    runs.ends(3, "sh", "-c", "exit 3", program=patched(LATE))
