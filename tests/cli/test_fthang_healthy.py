"""The healthy kinds of `fthang`: each looks as its name says, and the training ends as if nothing had been."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ftrun.workload import healthy
from ftrun.workload.context import Setting
from ftrun.workload.kinds import plan
from ftrun.workload.run import train
from ftrun.workload.training import BEGINNING, Plain, newest
from support.runs import wait_for
from support.workload import Runner, children, look, read_and_written, runner, still


@pytest.fixture
def fthang(tmp_path: Path) -> Iterator[Runner]:
    yield from runner(tmp_path)


def working(pid: int) -> Callable[[], bool]:
    """It computes, and does not wait."""
    before = look(pid)
    return lambda: look(pid).cpu > before.cpu + 20 and look(pid).switches <= before.switches + 1


def computing_and_waiting(pid: int) -> Callable[[], bool]:
    before = look(pid)

    def by_turns() -> bool:
        now = look(pid)
        waits = now.switches - before.switches
        return waits > 100 and now.cpu - before.cpu > waits / 60  # of half a millisecond each

    return by_turns


def reading(pid: int) -> Callable[[], bool]:
    read, written = read_and_written(pid)
    return lambda: read_and_written(pid)[0] > read + 2**21 and read_and_written(pid)[1] < written + 2**20


def writing(pid: int) -> Callable[[], bool]:
    _, written = read_and_written(pid)
    return lambda: read_and_written(pid)[1] > written + 2**20


def with_children(pid: int) -> Callable[[], bool]:
    """They come and go, compute and write: what they used is its own once they have ended."""
    seen: set[int] = set()
    used, written = of_children(pid), read_and_written(pid)[1]

    def by_children() -> bool:
        seen.update(children(pid))
        wrote = read_and_written(pid)[1] > written + 2**20
        return len(seen) > 4 and wrote and of_children(pid) > used + 20 and look(pid).state == "S"

    return by_children


def of_children(pid: int) -> int:
    """Clock ticks of those that ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[13]) + int(fields[14])


def sleeping(pid: int) -> Callable[[], bool]:
    return lambda: "nanosleep" in still(pid).wchan or still(pid).wchan == "0"


# What it does meanwhile, and the sections it is in.
LOOKS = {
    "slow-step": (computing_and_waiting, []),
    "long-checkpoint": (writing, ["checkpoint"]),
    "long-compile": (with_children, ["compile"]),
    "long-eval": (working, ["evaluation"]),
    "quiet-sleep": (sleeping, ["pause"]),
    "first-batch": (reading, ["first batch"]),
    "paused-io": (working, []),  # and its steps go on
}


@pytest.mark.parametrize("kind", LOOKS)
def test_it_looks_like_a_hang(fthang: Runner, kind: str) -> None:
    pid = fthang.begin(kind, "60s", "--steps", "1000", line=f"{kind} for 60 s")
    how, sections = LOOKS[kind]
    wait_for(lambda: [name for name, *_ in fthang.beats.sections()] == sections)
    output, moved_at = fthang.lines(), fthang.beats.slot()["moved_at"]
    wait_for(how(pid))
    assert fthang.lines() == output
    assert (fthang.beats.slot()["moved_at"] > moved_at) == (kind == "paused-io")
    fthang.kill()
    assert len(list(fthang.checkpoints.iterdir())) == (0 if kind == "first-batch" else 1)


@pytest.mark.parametrize("kind", LOOKS)
def test_without_hooks_it_says_nothing(fthang: Runner, kind: str) -> None:
    assert fthang.run(kind, "100ms", "--no-hooks") == 0
    assert f"{kind} for 0.1 s" in fthang.lines()
    assert fthang.beats.slot()["magic"] == 0


@pytest.mark.parametrize("kind", LOOKS)
def test_it_ends_well(fthang: Runner, kind: str) -> None:
    assert fthang.run(kind, "100ms") == 0
    *_, undisturbed = Plain(BEGINNING).epoch(range(1, 13))
    assert newest(fthang.checkpoints) == undisturbed
    assert fthang.lines()[-1] == f"finished at step 12, loss {undisturbed.loss:.6f}"
    assert fthang.beats.slot()["flags"] == 1


@pytest.mark.parametrize("kind", LOOKS)
def test_it_takes_its_time(tmp_path: Path, kind: str) -> None:
    planned = plan(kind, "300ms")
    setting = Setting(planned.value, tmp_path, 12, 3, 0.001, 2, hooks=False, torch=False)
    begun = time.monotonic()
    assert train(planned, setting, BEGINNING, disturbed=True).step == 12
    assert time.monotonic() - begun > 0.3


def test_it_does_so_in_the_first_starts_only(fthang: Runner) -> None:
    assert fthang.run("quiet-sleep", "1h", start=2) == 0


def test_it_is_longer_than_a_hang_timeout_of_a_few_seconds(fthang: Runner) -> None:
    fthang.begin("quiet-sleep", line="quiet-sleep for 6 s")


def test_slow_step_comes_between_two_steps(fthang: Runner) -> None:
    assert fthang.run("slow-step", "50ms") == 0
    lines = [line.split()[0] + line.split()[1] for line in fthang.lines()]
    assert lines[3:6] == ["step3", "slow-stepfor", "step4"]


def test_paused_io_goes_on_with_its_steps(fthang: Runner) -> None:
    pid = fthang.begin("paused-io", "60s", "--steps", "1000", line="paused-io for 60 s")
    moved, step = read_and_written(pid), fthang.beats.slot()["step"]
    wait_for(lambda: fthang.beats.slot()["step"] > step + 3)
    assert read_and_written(pid) == moved


def test_long_checkpoint_is_on_disk_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_size))
    with (tmp_path / "file").open("wb") as file:
        healthy.SlowDisk(file, 0).write(bytes(3 * healthy.PIECE))
    assert synced == [healthy.PIECE, 2 * healthy.PIECE, 3 * healthy.PIECE]
