"""Which children of ftrun are processes of a job: ranks, also after the end of the first one, but no helper and no
standby that has just been started."""

import os
import subprocess
import sys
import time
from pathlib import Path

from ftrun.host import procfs
from support.runs import HOUSE, wait_for
from waitproof.procfs import TICKS

WAITS = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]
OBSERVES = """
import sys
sys.path[:0] = sys.argv[2:]
from ftrun.helpers.evidence import job_processes as processes
for _ in sys.stdin:
    print(*sorted(processes.members(int(sys.argv[1]), frozenset())), flush=True)
"""


def waits(environment: dict[str, str]) -> subprocess.Popen[str]:
    """A process that has executed, so that its environment can be read."""
    process = subprocess.Popen(WAITS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_the_other_ranks_are_observed_after_the_end_of_the_first(tmp_path: Path) -> None:
    """And what was there before the command is still no part of it."""
    environment = os.environ | {"FTRUN_BEAT_DIR": str(tmp_path)}
    before = waits({name: value for name, value in os.environ.items() if name != "FTRUN_BEAT_DIR"})
    began = procfs.stat(before.pid)
    assert began is not None
    wait_for(lambda: time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS > began.start + 1, "the next tick")
    first, second = waits(environment), waits(environment)
    paths = [str(HOUSE / folder) for folder in ("supervisor", "hooks")]
    observer = subprocess.Popen(
        [sys.executable, "-c", OBSERVES, str(first.pid), *paths],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert observer.stdin is not None
    assert observer.stdout is not None
    observer.stdin.write("\n")
    observer.stdin.flush()
    assert set(map(int, observer.stdout.readline().split())) == {first.pid, second.pid}
    first.communicate(timeout=60)
    assert observer.communicate("\n", timeout=60)[0].split() == [str(second.pid)]
    second.communicate(timeout=60)
    before.communicate(timeout=60)


STARTED = """
import sys
sys.path[:0] = sys.argv[1:]
from ftrun.helpers.evidence import job_processes as processes
print(flush=True)
root, *ranks = map(int, sys.stdin.read().split())
excluded = processes.with_newly_started({1}, root, {root, *ranks})
print(*sorted(excluded), flush=True)
"""


def test_what_ftrun_has_just_started_is_no_part_of_the_job(tmp_path: Path) -> None:
    environment = os.environ | {"FTRUN_BEAT_DIR": str(tmp_path)}
    parked = environment | {"FTRUN_PARKED": "1::"}
    plain = {name: value for name, value in os.environ.items() if name != "FTRUN_BEAT_DIR"}
    root, former, older = waits(environment), waits(parked), waits(plain)
    begun = procfs.stat(older.pid)
    assert begun is not None
    wait_for(lambda: time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS > begun.start + 1, "the next tick")
    paths = [str(HOUSE / folder) for folder in ("supervisor", "hooks")]
    observer = subprocess.Popen(
        [sys.executable, "-c", STARTED, *paths],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert observer.stdout is not None
    observer.stdout.readline()
    rank, standby, helper, orphan = waits(parked), waits(parked), waits(plain), waits(environment)
    try:
        found = set(map(int, observer.communicate(f"{root.pid} {rank.pid}", timeout=60)[0].split()))
        # A start from a standby, and what that has forked, may not be able to hide that it was one.  What was there
        # before the list was made, or has the mark of the job, may be an orphan of the command.
        assert {1, standby.pid, helper.pid} <= found
        assert not {root.pid, rank.pid, former.pid, older.pid, orphan.pid} & found
    finally:
        for process in (root, rank, former, older, standby, helper, orphan):
            process.communicate(timeout=60)
