"""The paces of ranks: from the slots of the beat file, and the work of real ranks that train with gloo in lockstep."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ftrun.core.rules.stragglers import Pace, Slowness, stragglers
from ftrun.helpers.messenger.paces import MainThread, Paces, ThreadUse, uses_accelerator
from ftrun.host import procfs
from ftrun.messages.messenger import Straggler
from ftrun.records.files import steps
from ftrun_hooks import layout as at
from support.recorded_lines import RecordedLines
from support.runs import wait_for


@pytest.fixture(autouse=True)
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def slot(rank: int, step: int, moved: float, flags: int = 0, pid: int = 0) -> list[int]:
    row = [0] * at.SLOT_WORDS
    row[at.RANK], row[at.PID], row[at.STEP], row[at.MOVED_AT] = rank, pid or 2**22 + rank, step + 1, int(moved * 1e9)
    row[at.FLAGS] = flags
    return row


def follow(seconds: int, slow: float, flags: int = 0, pauses: Sequence[tuple[float, float]] = ()) -> list[Any]:
    """Rank 3 takes `slow` times as long as the others, or stands still in `pauses`."""
    lines = RecordedLines()
    watch = Paces(lines)
    for now in range(1, seconds + 1):
        rows = [slot(rank, now * 10, now) for rank in range(3)]
        still = [begin for begin, end in pauses if begin <= now < end]
        at_work = still[0] if still else now - sum(end - begin for begin, end in pauses if end <= now)
        steps = int(at_work * 10 / slow)
        rows.append(slot(3, steps, still[0] if still else now, flags))
        watch.due = 0.0
        watch.follow(lambda rows=rows: rows, 1, float(now))  # type: ignore[misc]
    assert lines.problems == []
    return lines.sent


def test_a_slow_rank_is_reported_once_with_its_times() -> None:
    (sent,) = follow(200, 2.0)
    assert isinstance(sent, Straggler)
    assert (sent.rank, round(sent.step_time, 2), round(sent.usual, 2)) == (3, 0.2, 0.1)
    assert (sent.member, sent.work) == (None, None)
    assert 60 <= sent.seconds < 70


def test_a_rank_that_is_a_little_slow_or_done_is_not() -> None:
    assert follow(200, 1.4) == []
    assert follow(200, 2.0, at.DONE) == []
    assert follow(40, 2.0) == []


def test_a_rank_that_saves_or_evaluates_now_and_then_is_not() -> None:
    assert follow(600, 1.0, pauses=[(begin, begin + 20) for begin in range(50, 600, 90)]) == []


def test_the_file_is_read_by_the_views(run_dir: Path) -> None:
    lines = RecordedLines()
    watch = Paces(lines)
    for now in range(1, 60):
        watch.due = 0.0
        watch.follow(lambda now=now: [slot(0, now, now, pid=1)], 4, float(now))  # type: ignore[misc]
    assert steps.measured_paces(str(run_dir), 4, 60.0) == {(0, 1): Pace(1.0)}
    assert steps.measured_paces(str(run_dir), 3, 60.0) == steps.measured_paces(str(run_dir), 4, 90.0) == {}, (
        "another attempt, or old"
    )
    for damage in ("", "[", "[]", '{"mono": 60, "attempt": 4}', '{"mono": 60, "attempt": 4, "ranks": [{"rank": 0}]}'):
        (run_dir / "paces.json").write_text(damage)
        assert steps.measured_paces(str(run_dir), 4, 60.0) == {}


# --- the work of a rank ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("used", "share"),
    [
        (ThreadUse(), None),
        (ThreadUse(10.0, 10.0), 1.0),
        (ThreadUse(10.0, 4.0, futex=30), 0.4),
        (ThreadUse(10.0, 4.0, other=30), 1.0),
        (ThreadUse(10.0, 4.0, futex=15, other=15), 0.7),
        (ThreadUse(10.0, 4.0), None),  # it is blocked, and where is not visible
        (ThreadUse(10.0, 9.5), 1.0),
        (ThreadUse(10.0, 11.0, futex=1), 1.0),
    ],
)
def test_the_share_of_work(used: ThreadUse, share: float | None) -> None:
    assert used.share == (share if share is None else pytest.approx(share))


WAITS = {
    "sleep": "import time; print(flush=True); time.sleep(100)",
    "burn": "print(flush=True)\nwhile True: pass",
    "lock": "import _thread; lock = _thread.allocate_lock(); lock.acquire(); print(flush=True); lock.acquire()",
    "pipe": "import sys; print(flush=True); sys.stdin.read()",
}


@pytest.mark.parametrize(("what", "works"), [("sleep", True), ("burn", True), ("lock", False), ("pipe", True)])
def test_what_a_main_thread_does_is_visible(what: str, works: bool) -> None:
    command = [sys.executable, "-c", WAITS[what]]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline()

            def share() -> float | None:
                thread, began = MainThread(process.pid), time.monotonic()
                for _ in range(20):
                    time.sleep(0.02)
                    thread.glance()
                used = thread.used(time.monotonic() - began)
                return None if used is None else used.share

            wait_for(lambda: (found := share()) is not None and (found > 0.8 if works else found < 0.2), what)
        finally:
            process.kill()


def test_where_the_kernel_shows_no_call_its_function_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    content = {"schedstat": b"1000 0 5", "wchan": b"futex_do_wait"}
    monkeypatch.setattr(procfs, "read", lambda path, *_, **__: content.get(path.rpartition("/")[2]))
    thread = MainThread(7)
    thread.glance()
    content["wchan"] = b"hrtimer_nanosleep"
    thread.glance()
    content["wchan"] = b"0"  # it runs, or this is hidden
    thread.glance()
    assert thread.used(2.0) == ThreadUse(2.0, 0.0, 1, 1)
    content["schedstat"] = b"0 0 0"
    assert MainThread(7).used(2.0) is None


def test_a_process_that_has_opened_an_accelerator_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not uses_accelerator(os.getpid())
    monkeypatch.setattr("ftrun.helpers.messenger.paces.ACCELERATORS", (f"{tmp_path}/nvidia",))
    with open(tmp_path / "nvidia0", "w"):
        assert uses_accelerator(os.getpid())
    assert uses_accelerator(2**22 + 1), "not known"


RANK = """
import os, sys, time
import torch
import torch.distributed as dist
torch.set_num_threads(1)
rank, world, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=world)
gradients = torch.ones(64, 65)
step = 0
while True:
    time.sleep(0.2)  # what each rank does, so that a busy machine makes little difference
    if rank == 1:
        time.sleep(0.2)
    dist.all_reduce(gradients)
    step += 1
    print(step, flush=True)
"""


class Job:
    """Real ranks in lockstep; `slots` is what their heartbeats would be."""

    def __init__(self, folder: Path, world: int = 3) -> None:
        (folder / "rank.py").write_text(RANK)
        command = [sys.executable, str(folder / "rank.py")]
        self.moved = dict.fromkeys(range(world), (0.0, 0))
        self.processes = [
            subprocess.Popen([*command, str(rank), str(world), str(folder / "store")], stdout=subprocess.PIPE)
            for rank in range(world)
        ]
        self.threads = [threading.Thread(target=self._read, args=(rank,)) for rank in range(world)]
        for thread in self.threads:
            thread.start()

    def _read(self, rank: int) -> None:
        stream = self.processes[rank].stdout
        assert stream is not None
        for line in stream:
            self.moved[rank] = (time.monotonic(), int(line))

    def slots(self) -> list[list[int]]:
        return [slot(r, step, moved, pid=self.processes[r].pid) for r, (moved, step) in self.moved.items() if step]

    def close(self) -> None:
        for process in self.processes:
            process.kill()
        for process, thread in zip(self.processes, self.threads, strict=True):
            process.wait()
            thread.join()
            assert process.stdout is not None
            process.stdout.close()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    found = Job(tmp_path)
    yield found
    found.close()


@pytest.mark.slow
@pytest.mark.torch
def test_the_rank_for_which_the_others_wait_in_a_collective_is_found(job: Job, run_dir: Path) -> None:
    watch = Paces(None, stretch=1.0)
    found: dict[int, Slowness] = {}

    def only_rank_1() -> bool:
        now = time.monotonic()
        watch.follow(job.slots, 1, now)
        found.clear()
        found.update(stragglers({rank: pace for (rank, _), pace in steps.measured_paces(str(run_dir), 1, now).items()}))
        return [*found] == [1]

    wait_for(only_rank_1, "the straggler", timeout=180)
    assert found[1].what == "work"
    assert found[1].seconds > found[1].usual + 0.05
