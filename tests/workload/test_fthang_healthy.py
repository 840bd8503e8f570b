"""The healthy kinds of `fthang`: each looks as its name says, and the training ends as if it were undisturbed."""

from collections.abc import Callable
from pathlib import Path

import pytest

from support.runs import children, wait_for
from support.workload import Runner, observe, read_and_written, still
from support.workload import fthang as fthang


def computing(pid: int) -> Callable[[], bool]:
    before = observe(pid)
    return lambda: observe(pid).cpu > before.cpu + 20 and observe(pid).switches <= before.switches + 1


def computing_and_waiting(pid: int) -> Callable[[], bool]:
    before = observe(pid)

    def in_turns() -> bool:
        now = observe(pid)
        waits = now.switches - before.switches
        return waits > 100 and now.cpu - before.cpu > waits / 60  # half a millisecond after each wait

    return in_turns


def reading(pid: int) -> Callable[[], bool]:
    read, written = read_and_written(pid)
    return lambda: read_and_written(pid)[0] > read + 2**21 and read_and_written(pid)[1] < written + 2**20


def writing(pid: int) -> Callable[[], bool]:
    _, written = read_and_written(pid)
    return lambda: read_and_written(pid)[1] > written + 2**20


def starting_children(pid: int) -> Callable[[], bool]:
    """Short-lived children compute and write; the process inherits their counters when they have ended."""
    seen: set[int] = set()
    before, written = cpu_of_children(pid), read_and_written(pid)[1]

    def active() -> bool:
        seen.update(children(pid))
        wrote = read_and_written(pid)[1] > written + 2**20
        return len(seen) > 4 and wrote and cpu_of_children(pid) > before + 20 and observe(pid).state == "S"

    return active


def cpu_of_children(pid: int) -> int:
    """In clock ticks, of the children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[13]) + int(fields[14])


def sleeping(pid: int) -> Callable[[], bool]:
    return lambda: still(pid).waits_in("nanosleep")


# What each does, and the sections that it is in.
KINDS = {
    "slow-step": (computing_and_waiting, []),
    "long-checkpoint": (writing, ["checkpoint"]),
    "long-compile": (starting_children, ["compile"]),
    "long-eval": (computing, ["evaluation"]),
    "quiet-sleep": (sleeping, ["pause"]),
    "first-batch": (reading, ["first batch"]),
    "paused-io": (computing, []),  # and its steps go on
}


@pytest.mark.parametrize("kind", KINDS)
def test_it_looks_like_a_hang(fthang: Runner, kind: str) -> None:
    pid = fthang.begin(kind, "60s", "--steps", "1000", line=f"{kind} for 60 s")
    activity, sections = KINDS[kind]
    wait_for(lambda: [name for name, *_ in fthang.beats.sections()] == sections, "its section")
    output, moved_at = fthang.lines(), fthang.beats.slot()["moved_at"]
    wait_for(activity(pid), activity.__name__)
    assert fthang.lines() == output
    if kind == "paused-io":
        wait_for(lambda: fthang.beats.slot()["moved_at"] > moved_at, "steps")
    else:
        assert fthang.beats.slot()["moved_at"] == moved_at
    fthang.kill()
    assert len(list(fthang.checkpoints.iterdir())) == (0 if kind == "first-batch" else 1)
