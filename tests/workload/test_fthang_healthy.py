"""The healthy kinds of `fthang`: each looks as its name says, and its training stands still meanwhile."""

from pathlib import Path

import pytest

from support.runs import wait_for
from support.workload import Runner, observe, read_and_written, still
from support.workload import fthang as fthang

# What grows while it goes on, by how much at least, and the sections that it is in.
KINDS = {
    "slow-step": ("processor", 20, []),
    "long-checkpoint": ("written", 2**20, ["checkpoint"]),
    "long-compile": ("processor of children", 20, ["compile"]),
    "long-eval": ("processor", 20, ["evaluation"]),
    "quiet-sleep": ("nothing", 0, ["pause"]),
    "first-batch": ("read", 2**21, ["first batch"]),
    "paused-io": ("processor", 20, []),  # and its steps go on
}


def activity(pid: int) -> dict[str, int]:
    """In clock ticks, and in characters."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    read, written = read_and_written(pid)
    of_children = int(fields[13]) + int(fields[14])
    return {"processor": observe(pid).cpu, "processor of children": of_children, "read": read, "written": written}


@pytest.mark.parametrize("kind", KINDS)
def test_it_looks_like_a_hang(fthang: Runner, kind: str) -> None:
    pid = fthang.begin(kind, "60s", "--steps", "1000", line=f"{kind} for 60 s")
    what, least, sections = KINDS[kind]
    wait_for(lambda: [name for name, *_ in fthang.beats.sections()] == sections, "its section")
    output, moved_at, before = fthang.lines(), fthang.beats.slot()["moved_at"], activity(pid)
    if what == "nothing":
        wait_for(lambda: still(pid).waits_in("nanosleep"), "its sleep")
    else:
        wait_for(lambda: activity(pid)[what] > before[what] + least, what)
    assert fthang.lines() == output
    if kind == "paused-io":
        wait_for(lambda: fthang.beats.slot()["moved_at"] > moved_at, "steps")
    else:
        assert fthang.beats.slot()["moved_at"] == moved_at
    fthang.kill()
    assert len(list(fthang.checkpoints.iterdir())) == (0 if kind == "first-batch" else 1)
