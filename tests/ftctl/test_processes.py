"""What the processes of the ranks use, as `ftctl top` and the page show it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftctl.processes import Meter
from ftrun.core.machine.values import Ledger
from ftrun.host import procfs
from ftrun.messages.state import dump_state
from ftrun.records.present.snapshot import RankNow, Snapshot
from support.snapshots import snapshot

MEBIBYTES = 48
WORKS = f"kept = b'x' * ({MEBIBYTES} << 20); print(flush=True)\nwhile True: pass"


@pytest.fixture
def works() -> Iterator[int]:
    """The pid of a process that uses memory and computes."""
    process = subprocess.Popen([sys.executable, "-c", WORKS], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield process.pid
    finally:
        process.kill()
        process.communicate()


def state(folder: Path, start: int) -> None:
    run = {"pid": os.getpid(), "pid_start": start, "boot": procfs.boot_id()}
    (folder / "state.json").write_bytes(dump_state(Ledger(), {"run": run}))


@pytest.fixture
def run_dir(tmp_path: Path) -> str:
    """Of this process in the place of ftrun."""
    own = procfs.stat(os.getpid())
    assert own is not None
    state(tmp_path, own.start)
    return str(tmp_path)


def now(run_dir: str, *ranks: RankNow, alive: bool = True) -> Snapshot:
    return snapshot(0, run_dir=run_dir, alive=alive, ranks=ranks)


def test_a_rank_has_its_processor_time_and_its_memory(works: int, run_dir: str) -> None:
    meter, shown = Meter(), now(run_dir, RankNow(0, works, "moving"), RankNow(1, works, "done"))
    first = meter.measured(shown).ranks[0]
    assert first.cpu is None  # which is that since the last call
    assert first.memory is not None
    assert first.memory > MEBIBYTES << 20
    used, ended = meter.measured(shown).ranks
    while not used.cpu:  # it computes all the time, but others may as well
        used, ended = meter.measured(shown).ranks
    assert ended == shown.ranks[1]


def test_nothing_is_measured_of_a_process_that_is_none_of_this_run(works: int, run_dir: str, tmp_path: Path) -> None:
    """The number of a rank is one of its own PID namespace, and that of one that has ended may be given again."""
    outside = now(run_dir, RankNow(0, os.getppid(), "moving"))
    assert Meter().measured(outside) == outside
    over = now(run_dir, RankNow(0, works, "moving"), alive=False)
    assert Meter().measured(over) == over
    state(tmp_path, 1)
    elsewhere = now(run_dir, RankNow(0, works, "moving"))
    assert Meter().measured(elsewhere) == elsewhere
