"""A reader of the beat file sees the same as its owner, and changes nothing."""

import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftrun.core.machine.values import TOUCH
from ftrun.host import beats
from ftrun.records.files import beatfile
from ftrun_hooks import layout as at
from support.made_run import NS, MadeRun


@pytest.fixture
def owner() -> Iterator[beats.Beats]:
    made = beats.create()
    yield made
    made.close()


def written(run: MadeRun) -> str:
    run.write()
    return str(run.beats)


def test_a_reader_sees_what_the_owner_sees(owner: beats.Beats, run: MadeRun) -> None:
    run.rank(0, moved=1, step=9, CREDIT=5 * NS, INTERVALS=100, USUAL=2 * NS, LONGEST=3 * NS, SLOWEST_START=NS)
    run.rank(1, moved=None, step=None, ALIVE_AT=int(run.now * NS))
    run.rank(2, FLAGS=at.DONE)
    run.rank(3, FLAGS=at.FATAL, CHECKPOINT_STEP=5)
    run.rank(4)
    run.section(4, "evaluation", 3, 60)
    run.rank(1030 - 1024 + 5, RANK=0, step=None)  # another process that claims rank 0, and does not train
    run.write()
    content = (run.beats / at.BEATS).read_bytes()
    with open(f"{owner.path}/{at.BEATS}", "r+b") as file, mmap.mmap(file.fileno(), at.FILE_BYTES) as words:
        words[at.HEADER_WORDS * at.WORD :] = content[at.HEADER_WORDS * at.WORD :]
    seen = beatfile.read(owner.path, run.now, run.now, here=True)
    assert seen.ranks == owner.read(run.now)
    assert len(seen.ranks) == 5


def test_reading_changes_nothing(run: MadeRun) -> None:
    run.rank(0)
    folder = written(run)
    (run.beats / at.BEATS).chmod(0o400)
    before = {name: os.stat(f"{folder}/{name}").st_mtime_ns for name in os.listdir(folder)}
    content = (run.beats / at.BEATS).read_bytes()
    assert len(beatfile.read(folder, run.now, run.now, here=True).ranks) == 1
    assert (run.beats / at.BEATS).read_bytes() == content
    assert {name: os.stat(f"{folder}/{name}").st_mtime_ns for name in os.listdir(folder)} == before


def test_a_rank_is_gone_only_if_its_pid_is_of_this_namespace(run: MadeRun) -> None:
    run.rank(0, moved=30, START_TICKS=1)
    run.rank(1, moved=1, START_TICKS=1)
    folder = written(run)
    assert [rank.present for rank in beatfile.read(folder, run.now, run.now, here=True).ranks] == [False, True]
    assert [rank.present for rank in beatfile.read(folder, run.now, run.now, here=False).ranks] == [True, True]


def test_a_half_written_slot_has_no_sections(run: MadeRun) -> None:
    run.rank(0)
    run.section(0, "half", 3, 60)
    run.rank(0, SEQUENCE=3)
    (rank,) = beatfile.read(written(run), run.now, run.now, here=True).ranks
    assert rank.sections == ()
    assert rank.step == 7


def test_the_touch_file_counts_from_the_start_of_the_command(run: MadeRun) -> None:
    folder = written(run)
    assert beatfile.read(folder, run.now, run.now - 50, here=True).ranks == ()
    now = time.time()
    os.utime(f"{folder}/{at.TOUCH}", (now - 20, now - 20))
    (rank,) = beatfile.read(folder, run.now, run.now - 50, here=True).ranks
    assert rank.rank == TOUCH
    assert rank.moved_at == pytest.approx(run.now - 20, abs=1)


def test_a_folder_that_is_not_there_was_deleted_unless_the_run_is_elsewhere(run: MadeRun) -> None:
    folder = f"{run.beats}-deleted"
    assert "was deleted" in str(beatfile.read(folder, run.now, run.now, here=True).problem)
    assert "cannot be read (No such file" in str(beatfile.read(folder, run.now, run.now, here=False).problem)


def test_a_slot_of_another_layout_is_a_problem(run: MadeRun) -> None:
    run.rank(0, MAGIC_WORD=at.MAGIC + 1)
    run.rank(1, MOVED_AT=int((run.now + 1000) * NS))
    run.rank(2)
    seen = beatfile.read(written(run), run.now, run.now, here=True)
    assert [rank.rank for rank in seen.ranks] == [2]
    assert seen.problem is not None
    assert "another layout version" in seen.problem


@pytest.mark.parametrize("kind", ["folder", "fifo", "link", "nothing", "short"])
def test_anything_but_a_beat_file_is_a_problem(run: MadeRun, kind: str) -> None:
    file = Path(written(run), at.BEATS)
    file.unlink()
    if kind == "folder":
        file.mkdir()
    elif kind == "fifo":
        os.mkfifo(file)
    elif kind == "link":
        file.symlink_to("/dev/zero")
    elif kind == "short":
        file.write_bytes(b"x")
    seen = beatfile.read(str(run.beats), run.now, run.now, here=True)
    assert seen.ranks == ()
    assert seen.problem is not None
