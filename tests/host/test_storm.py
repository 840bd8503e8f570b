"""A tree that forks all the time is ended whole, and nothing else with it."""

import os
import signal
import subprocess
import sys
from functools import partial

import pytest

from support.runs import HOUSE, MOUNTS, PID1, Runs, alive, children, need_pid1, patched, permitted, state_of, wait_for
from support.storms import PID_MAX, has_own_pid_max

STORM = str(HOUSE / "tests" / "support" / "storms.py")
# A storm uses up the pids of its own namespace, not those of the machine.  ftrun is its PID 1, or a child of that.
LIMIT = f"echo 1500 > {PID_MAX}; "
MODES = {"subreaper": LIMIT + '"$@"; exit $?', "pid1": LIMIT + 'exec "$@"'}


IN_GATE = (("chains", "subreaper"), ("daemons", "pid1"), ("children", "subreaper"), ("shells", "pid1"))
STORMS = [
    pytest.param(kind, mode, marks=() if (kind, mode) in IN_GATE else pytest.mark.slow)
    for kind in ("chains", "daemons", "children", "shells")
    for mode in MODES
]


@pytest.mark.pid1
@pytest.mark.parametrize(("kind", "mode"), STORMS)
def test_a_storm_of_forks_is_ended_before_the_restart(runs: Runs, kind: str, mode: str) -> None:
    need_pid1()
    if not has_own_pid_max() or not permitted(*PID1, "sh", "-c", f"test -w {PID_MAX}"):
        pytest.skip("the number of pids cannot be limited for one namespace here")
    options = ("--restart-on", "failure", "--grace", "off", "--backoff", "10ms", "--standby", "off")
    run = runs.ends(
        0, *options, sys.executable, "-S", "-E", STORM, kind, "8", "1", prefix=(*PID1, "sh", "-c", MODES[mode], "sh")
    )
    assert [record["attempt"] for record in run.named("killed")][:1] == [1]
    assert run.named("killed")[0]["processes"] > 0
    assert len(run.named("spawned")) == 2
    wait_for(lambda: not runs.living(), "the end of all its processes")


ZOMBIES = """
import os, time
from ftrun.host import procfs, spawn
from ftrun.host.tree import Tree
spawn.become_subreaper()
tree = Tree(b"A=B")
def ended(inner=None):
    pid = os.fork()
    if not pid:
        inner and os.fork() == 0 and os._exit(0)
        os._exit(0)
    while not procfs.stat(pid).ended:
        time.sleep(0.001)
    return pid
helper, command = ended(), ended()
tree.exclude(helper)
tree.started(command)
for _ in range(30):
    ended(inner=True)
while not all(procfs.stat(pid).ended for pid in procfs.children(os.getpid())):
    time.sleep(0.001)
assert len(procfs.children(os.getpid())) > 30
print(tree.members(), set(procfs.children(os.getpid())) == {helper, command})
"""


def test_orphans_that_have_ended_are_reaped_before_a_listing_and_what_somebody_waits_for_is_not() -> None:
    done = subprocess.run([sys.executable, "-c", ZOMBIES], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("[] True\n", "")


GROUPS = """
import os, signal, time
from ftrun.host import procfs, spawn
from ftrun.host.tree import Tree
spawn.become_subreaper()
tree = Tree(b"A=B")
def fork(group):
    pid = os.fork()
    if not pid:
        signal.pause()
    os.setpgid(pid, group)
    return pid
helper, command, own = fork(0), fork(0), fork(os.getpgrp())
second = fork(command)
tree.exclude(helper)
tree.started(command)
tree._stop_all()
until = time.monotonic() + 60
states = ""
while states != "SSTT" and time.monotonic() < until:
    time.sleep(0.01)
    states = "".join(procfs.stat(pid).state for pid in (helper, own, command, second))
print(states)
for pid in (helper, own, command, second):
    os.kill(pid, signal.SIGKILL)
"""


def test_a_subreaper_stops_the_groups_of_the_command_and_no_others() -> None:
    done = subprocess.run([sys.executable, "-c", GROUPS], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("SSTT\n", "")


@pytest.mark.pid1
def test_what_is_not_of_the_command_goes_on_after_all_was_stopped_in_one_call(runs: Runs) -> None:
    """A process from outside (`docker exec`) and the helpers continue; what an operator has stopped stays stopped."""
    need_pid1()
    if not permitted(*MOUNTS, "nsenter", "-t", str(os.getpid()), "-p"):
        pytest.skip("nsenter is not permitted here")
    program = patched("import ftrun.host.tree as tree; tree.STORM = 0.0")
    left = '(trap "" TERM; exec setsid sleep 600) &'
    # The end of PID 1 ends all others: the second attempt lasts until they were looked at.
    script = f'[ $MA_PROC_START_CNT = 1 ] && {left} until [ -e "$0/$MA_PROC_START_CNT" ]; do sleep 0.02; done; '
    script += "[ $MA_PROC_START_CNT != 1 ] || exit 7"
    options = ("--restart-on", "failure", "--grace", "200ms", "--backoff", "10ms")
    run = runs.spawned(*options, "sh", "-c", script, str(runs.folder), prefix=PID1, program=program)
    (ftrun,) = children(run.pid)
    outside = ["nsenter", "-t", str(ftrun), "-p", "sleep", "600"]
    visitors = [subprocess.Popen(outside) for _ in range(2)]
    try:
        going, stopped = (wait_for(partial(children, one.pid), "nsenter forks")[0] for one in visitors)
        os.kill(stopped, signal.SIGSTOP)
        wait_for(lambda: (state_of(going), state_of(stopped)) == ("S", "T"), "the states of the processes from outside")
        (runs.folder / "1").touch()
        run.until("restart")
        wait_for(lambda: state_of(going) == "S", "it goes on")
        assert state_of(stopped) == "T"
    finally:
        for one in visitors:
            for pid in (*children(one.pid), one.pid):
                os.kill(pid, signal.SIGKILL)
            one.wait(60)
    (runs.folder / "2").touch()
    assert run.wait() == 0, run.log()
    assert run.named("killed")[0]["processes"] >= 1
    assert not run.named("problem")
    wait_for(lambda: not [pid for pid in runs.living() if alive(pid)], "the end of all its processes")
