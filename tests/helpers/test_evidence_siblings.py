"""Which children of ftrun are processes of a job: ranks, also after the end of the first one, but no helper and no
standby that has just been started."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftrun.host import procfs
from support.runs import HOUSE, wait_for
from waitproof.procfs import TICKS

WAITS = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]
# Beside the job, as the evidence helper is: it evaluates each line of its stdin, and prints the pids.
OBSERVES = """
import sys
sys.path[:0] = sys.argv[1:]
from ftrun.helpers.evidence.job_processes import members, with_newly_started
print(flush=True)
for line in sys.stdin:
    print(*sorted(eval(line)), flush=True)
"""


class Children:
    """Processes that are started here, until the end of the test; each has executed, so its environment can be read."""

    def __init__(self, folder: Path) -> None:
        self.plain = {name: value for name, value in os.environ.items() if name != "FTRUN_BEAT_DIR"}
        self.marked = self.plain | {"FTRUN_BEAT_DIR": str(folder)}
        self.started: list[subprocess.Popen[str]] = []

    def start(self, words: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, env=environment
        )
        self.started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    def waits(self, environment: dict[str, str]) -> int:
        return self.start(WAITS, environment).pid

    def observer(self) -> "subprocess.Popen[str]":
        paths = [str(HOUSE / folder) for folder in ("supervisor", "hooks")]
        return self.start([sys.executable, "-c", OBSERVES, *paths], self.plain)


@pytest.fixture
def children(tmp_path: Path) -> Iterator[Children]:
    made = Children(tmp_path)
    yield made
    for process in made.started:
        process.communicate(timeout=60)


def wait_for_the_next_tick(pid: int) -> None:
    began = procfs.stat(pid)
    assert began is not None
    wait_for(lambda: time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS > began.start + 1, "the next tick")


def asked(observer: "subprocess.Popen[str]", code: str) -> set[int]:
    assert observer.stdin is not None
    assert observer.stdout is not None
    observer.stdin.write(f"{code}\n")
    return set(map(int, observer.stdout.readline().split()))


def test_the_other_ranks_are_observed_after_the_end_of_the_first(children: Children) -> None:
    """And what was there before the command is still no part of it."""
    wait_for_the_next_tick(children.waits(children.plain))
    first, second = children.waits(children.marked), children.waits(children.marked)
    observer, members = children.observer(), f"members({first}, frozenset())"
    assert asked(observer, members) == {first, second}
    children.started[1].communicate(timeout=60)
    assert asked(observer, members) == {second}


def test_what_ftrun_has_just_started_is_no_part_of_the_job(children: Children) -> None:
    """A start from a standby, and what that has forked, may not be able to hide that it was one.  What was there before
    the observer looked, or has the mark of the job, may be an orphan of the command."""
    parked = children.marked | {"FTRUN_PARKED": "1::"}
    root, former, older = (children.waits(each) for each in (children.marked, parked, children.plain))
    wait_for_the_next_tick(older)
    observer = children.observer()
    rank, standby, helper, orphan = map(children.waits, (parked, parked, children.plain, children.marked))
    found = asked(observer, f"with_newly_started({{1}}, {root}, {{{root}, {rank}}})")
    assert {1, standby, helper} <= found
    assert not {root, rank, former, older, orphan} & found
