"""Which children of ftrun are processes of a job: ranks, also after the end of the first one, but no standby."""

import os
import subprocess
import sys
from pathlib import Path

from ftrun.helpers.evidence import processes
from support.runs import HOUSE

WAITS = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]
OBSERVES = """
import sys
sys.path[:0] = sys.argv[2:]
from ftrun.helpers.evidence import processes
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
    environment = os.environ | {"FTRUN_BEAT_DIR": str(tmp_path)}
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


def test_a_standby_that_has_just_been_started_is_no_part_of_the_job(tmp_path: Path) -> None:
    environment = os.environ | {"FTRUN_BEAT_DIR": str(tmp_path)}
    parked = environment | {"FTRUN_PARKED": "1::"}
    root, rank, standby = waits(environment), waits(parked), waits(parked)
    try:
        before = frozenset({1})
        excluded = processes.with_standbys(before, root.pid, {root.pid, rank.pid})
        # A start from a standby may not have been able to hide that it was one.
        assert excluded == before | {standby.pid}
        members = processes.members(root.pid, excluded)
        assert root.pid in members
        assert rank.pid in members
        assert standby.pid not in members
    finally:
        for process in (root, rank, standby):
            process.communicate(timeout=60)
