"""What counts as a touch of the touch file, and what the command may do with it without being taken for hanging."""

import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ftrun.core.machine.values import TOUCH
from ftrun.host import beats
from ftrun.records.files import beatfile
from ftrun_hooks import layout as at
from host.test_beats import Writer
from support.runs import Runs, need_mounts, python, wait_for


@pytest.fixture
def reader() -> Iterator[beats.Beats]:
    made = beats.create()
    yield made
    made.close()


def ranks(reader: beats.Beats, now: float = 0.0) -> list[int]:
    return [rank.rank for rank in reader.read(now or time.monotonic()) if not rank.unseen]


def rename(file: Path) -> None:
    file.rename(file.with_name("other"))
    file.with_name("other").rename(file)


def older(file: Path) -> None:
    """Another file of that name, which was written long ago."""
    new = file.with_name("new")
    new.write_text("x")
    os.utime(new, (1, 1))
    new.replace(file)


NO_TOUCHES: dict[str, Callable[[Path], object]] = {
    "chmod": lambda file: file.chmod(0o666),
    "chown": lambda file: os.chown(file, os.getuid(), os.getgid()),
    "link": lambda file: file.with_name("second").hardlink_to(file),
    "rename": rename,
    "delete": lambda file: file.unlink(),
    "delete the folder": lambda file: shutil.rmtree(file.parent),
    "read": lambda file: file.read_bytes(),
    "replace by an older file": older,
}


def truncate(file: Path) -> None:
    os.close(os.open(file, os.O_WRONLY | os.O_TRUNC))


def anew(file: Path) -> None:
    file.unlink()
    file.touch()


TOUCHES: dict[str, Callable[[Path], object]] = {
    "touch": lambda file: file.touch(),
    "write": lambda file: file.write_text("x"),
    "truncate": truncate,
    "a new file": anew,
}


@pytest.mark.parametrize("way", NO_TOUCHES)
def test_what_changes_no_content_is_no_touch(reader: beats.Beats, way: str) -> None:
    watch = reader.start_watching(time.monotonic())
    assert watch is not None
    assert ranks(reader) == []
    NO_TOUCHES[way](Path(reader.path, at.TOUCH))
    assert not reader.handle_wakeup({watch}, 0.0)
    assert not reader.is_touched
    assert ranks(reader) == []


@pytest.mark.parametrize(
    ("before", "way"),
    [
        *itertools.product(["nothing", "chmod", "chown", "link", "rename", "replace by an older file"], TOUCHES),
        *itertools.product(["delete"], ["touch", "write"]),
    ],
)
def test_a_touch_is_one_and_wakes_whatever_was_done_to_the_file_before(
    reader: beats.Beats, before: str, way: str
) -> None:
    watch = reader.start_watching(time.monotonic())
    assert watch is not None
    file = Path(reader.path, at.TOUCH)
    if before != "nothing":
        NO_TOUCHES[before](file)
        reader.handle_wakeup({watch}, 0.0)
        assert ranks(reader) == []
    time.sleep(0.01)  # the resolution of a file's times
    TOUCHES[way](file)
    assert reader.handle_wakeup({watch}, 0.0)
    assert ranks(reader) == [TOUCH]


def test_a_program_that_keeps_the_file_open_is_seen_after_its_deletion(reader: beats.Beats) -> None:
    file = Path(reader.path, at.TOUCH)
    with file.open("w") as opened:
        assert reader.read(1.0) != ()
        shutil.rmtree(reader.path)
        (rank,) = reader.read(2.0)
        assert rank.unseen, "it may touch what is not there"
        os.utime(opened.fileno())
        (rank,) = reader.read(3.0)
        assert (rank.moved_at, rank.unseen) == (3.0, False)
    assert len(reader.problems) == 1


def test_a_touch_before_the_first_step_is_no_rank_beside_those_that_step(reader: beats.Beats) -> None:
    """A launcher touches the file once, then executes the program."""
    writer, file, now = Writer(reader.path), Path(reader.path, at.TOUCH), time.monotonic()

    def others() -> list[int]:
        return [rank.rank for rank in beatfile.read(reader.path, now, now - 60, here=True).ranks]

    file.touch()
    assert ranks(reader, now) == others() == [TOUCH]
    writer.claim(0)
    assert ranks(reader, now + 1) == [0, TOUCH]
    writer.claim(0, step=1)
    assert ranks(reader, now + 2) == others() == [0]
    file.chmod(0o666)
    assert ranks(reader, now + 3) == [0]
    os.utime(file, (1, 1))
    file.touch()
    assert ranks(reader, now + 4) == others() == [0, TOUCH], "a C program beside it"
    reader.reset()
    assert ranks(reader, now + 5) == []


# --- in a run ---------------------------------------------------------------------------------------------------------

STEPS = """
import os, shutil, sys, time
for step in range(30):
    ft.beat(step)
    if step == {at}: {act}
    time.sleep(0.1)
"""
OPTIONS = ("--max-restarts", "0", "--hang-timeout", "1500ms", "--grace", "1s")
DELETE = "shutil.rmtree(os.environ['FTRUN_BEAT_DIR'])"
OF_IT = "os.environ['FTRUN_BEAT_DIR'] + '/touch'"
LOST = "was deleted by the command"


@pytest.mark.parametrize(
    "act", [f"os.chmod({OF_IT}, 0o666)", f"os.unlink({OF_IT})", DELETE], ids=["chmod", "unlink", "delete all"]
)
def test_a_job_that_steps_is_left_alone_whatever_happens_to_the_files(runs: Runs, act: str) -> None:
    run = runs.ends(0, *OPTIONS, *python(STEPS.format(at=5, act=act)))
    assert not run.named("suspect", "hang")
    assert run.stderr.count(LOST) == len(run.named("problem")) == (act == DELETE)


def test_a_touch_of_the_launcher_is_no_rank_that_hangs(runs: Runs) -> None:
    words = python(STEPS.format(at=-1, act="pass"))
    run = runs.ends(0, *OPTIONS, "sh", "-c", 'touch "$FTRUN_BEAT_DIR/touch"; exec "$@"', "sh", *words)
    assert run.until("first_beat")["rank"] == TOUCH


def test_silence_after_the_deletion_kills_nobody_and_ftctl_says_why(runs: Runs) -> None:
    script = 'touch "$FTRUN_BEAT_DIR/touch"; sleep 0.5; rm -r "$FTRUN_BEAT_DIR"\n'
    script += "sleep 3; : > passed; until [ -e end ]; do sleep 0.1; done"
    run = runs.start(*OPTIONS, "sh", "-c", script)
    assert LOST in run.until("problem")["what"]
    wait_for((runs.folder / "passed").exists, "twice the hang timeout")
    assert LOST in " ".join(run.ftctl("status").stdout.split())
    (runs.folder / "end").touch()
    assert run.wait() == 0, run.log()
    assert not run.named("suspect", "hang")


def test_a_rank_that_stepped_after_the_deletion_and_hangs_is_found(runs: Runs) -> None:
    run = runs.start(*OPTIONS, *python(STEPS.format(at=5, act=DELETE) + "\ntime.sleep(600)"))
    assert run.until("hang")["rank"] == 0
    assert run.wait() == 195


def test_one_of_two_ranks_may_empty_the_memory_file_system(runs: Runs) -> None:
    need_mounts()
    act = "os.environ['RANK'] == '1' and os.system('rm -rf /dev/shm/*')"
    words = ("--nproc-per-node", "2", *OPTIONS, *python(STEPS.format(at=5, act=act)))
    run = runs.ends(0, *words, prefix=runs.mounted("mount -t tmpfs tmpfs /dev/shm"))
    assert not run.named("suspect", "hang")
