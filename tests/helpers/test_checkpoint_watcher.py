"""The checkpoint watcher with real files: what counts as saved, and what does not.

That something is *not* reported is shown by a later report: all that was due before has been reported by then.
"""

import contextlib
import glob
import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.runs import wait_for
from support.watcher import Both, Watcher, put, writing
from support.watcher import out as out

Start = Callable[..., Both]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """In a folder of its own, with relative globs.  No problem is expected."""
    started: list[Watcher] = []

    def call(*globs: str) -> Both:
        both = Both(tmp_path, *globs)
        started.extend(both.all)
        return both

    yield call
    for watcher in started:
        with watcher:
            assert watcher.problems == []


def test_an_existing_file_does_not_count_even_if_it_is_read(start: Start, out: Path) -> None:
    (out / "old.pt").write_text("x")
    (out / "checkpoint-1").mkdir()
    (out / "checkpoint-1" / "state.pt").write_text("x")
    both = start("out/*.pt", "out/*/*.pt", "out/checkpoint-*")
    assert both.notified.lines == both.listing.lines == [{"event": "ready"}]
    put(out / "new.pt")
    both.saved(out / "new.pt")
    with (out / "old.pt").open():
        pass
    os.utime(out / "old.pt", (1, 1))
    (out / "old.pt").chmod(0o600)
    both.settle(out)
    assert both.paths == [str(out / "new.pt"), str(out / "later-0.pt")]
    assert isinstance(both.notified.saved(out / "new.pt")["mono"], float)


def test_what_was_written_since_the_start_counts_although_it_is_there(start: Start, out: Path) -> None:
    """The command starts before the watcher."""
    old = [out / "old.pt", out / "step-1", out / "kept"]
    old[0].touch()
    for folder in old[1:]:
        folder.mkdir()
        (folder / "shard").touch()
    moved = out / "moved.pt"
    moved.touch()
    for path in (*old, *(folder / "shard" for folder in old[1:]), moved):
        os.utime(path, (1, 1))
    since = time.monotonic()
    wait_for(lambda: put(out / ".tick").stat().st_mtime_ns > _at(since), "the disk's clock")
    new = [out / "new.pt", out / "last.pt", out / "step-2", out / "kept"]
    put(new[0])
    new[1].write_text("x")
    new[2].mkdir()
    (new[3] / "shard").write_text("x")
    moved.chmod(0o600)
    both = start(f"--since={since}", "out/*.pt", "out/last.pt", "out/step-*", "out/kept")
    for path in new:
        both.saved(path)
    both.settle(out)
    assert sorted(both.paths) == sorted(map(str, [*new, out / "later-0.pt"]))


def _at(monotonic: float) -> int:
    return time.time_ns() - round((time.monotonic() - monotonic) * 1e9)


def test_a_file_renamed_into_place_counts_at_once_and_each_time(start: Start, out: Path) -> None:
    put(out / "last.pt", "1")
    both = start(f"{out}/last.pt", f"{out}/best-*.pt")
    for number in (1, 2):
        put(out / "last.pt", f"2{number}")
        put(out / "best-1.pt", f"2{number}")
        assert both.notified.saved(out / "last.pt", number)["renamed"]
        both.saved(out / "last.pt", number)
        both.saved(out / "best-1.pt", number)
    put(out / "other.pt")
    put(out / "best-2.pt")
    both.saved(out / "best-2.pt")
    assert len(both.paths) == 5
    (out / "best-2.pt").rename(out / "aside")
    (out / "aside").rename(out / "best-2.pt")
    both.notified.saved(out / "best-2.pt", 2)


def test_a_file_that_is_open_for_writing_does_not_count(start: Start, out: Path) -> None:
    """Nor one that was linked into place while it was open."""
    both = start("out/*.pt")
    with writing(out / "a.pt"), writing(out / "tmp"):
        os.link(out / "tmp", out / "linked.pt")
        both.settle(out)
        (out / "b.pt").touch()
        both.saved(out / "b.pt")
        assert both.counts(out / "a.pt") == both.counts(out / "linked.pt") == {0}
    both.saved(out / "a.pt")
    both.saved(out / "linked.pt")
    assert both.notified.saved(out / "a.pt")["renamed"] is False


def test_a_file_open_for_writing_in_a_new_folder_does_not_count(start: Start, out: Path) -> None:
    """Before inotify could watch it."""
    both = start("out/*/*.pt", "out/*.pt")
    with contextlib.ExitStack() as still:
        with both.notified.stopped():
            (out / "x").mkdir()
            still.enter_context(writing(out / "x" / "a.pt"))
        both.settle(out)
        both.settle(out)
        assert both.counts(out / "x" / "a.pt") == {0}
    both.saved(out / "x" / "a.pt")
    both.settle(out)
    assert both.counts(out / "x" / "a.pt") == {1}


def test_once_the_command_has_ended_a_file_renamed_into_a_new_folder_counts_at_once(tmp_path: Path, out: Path) -> None:
    """It was renamed before the folder was watched.  A file that is still written there does not count, nor one that
    was closed in the known folder just now, perhaps by the death of its writer."""
    with Watcher(tmp_path, "out/*.pt", "out/*/*.pt", pace=100) as watcher, contextlib.ExitStack() as open_files:
        with watcher.stopped():
            for number in (1, 2):
                (out / f"step-{number}").mkdir()
            put(out / "step-1" / "model.pt")
            open_files.enter_context(writing(out / "step-2" / "model.pt"))
            (out / "torn.pt").write_text("x")
            watcher.ask_for_rest()
        watcher.until(lambda: watcher.has_sent_all, "its answer")
        assert watcher.paths == [str(out / "step-1" / "model.pt")]


def test_a_file_that_is_opened_again_or_renamed_while_open_counts_once_at_the_end(start: Start, out: Path) -> None:
    notified = start("out/*.pt").notified
    with contextlib.ExitStack() as still:
        with notified.stopped():
            for _ in range(20):
                with writing(out / "a.pt"):
                    pass
            still.enter_context(writing(out / "a.pt"))
            still.enter_context(writing(out / "c.tmp"))
            (out / "c.tmp").rename(out / "c.pt")
            (out / "b.pt").touch()
        notified.saved(out / "b.pt")
        notified.saved(out / "c.pt")
        assert notified.count(out / "a.pt") == 0
    notified.saved(out / "a.pt")
    (out / "d.pt").touch()
    notified.saved(out / "d.pt")
    assert (notified.count(out / "a.pt"), notified.count(out / "c.pt")) == (1, 1)


def test_a_file_overwritten_in_place_counts(start: Start, out: Path) -> None:
    (out / "last.pt").write_text("x")
    (out / "best-1.pt").write_text("x")
    both = start("out/last.pt", "out/best-*.pt")
    for number in (1, 2):
        (out / "last.pt").write_text(f"{number}")
        (out / "best-1.pt").write_text(f"{number}")
        both.saved(out / "last.pt", number)
        both.notified.saved(out / "best-1.pt", number)  # a listing does not show it


def test_markers_and_links_count(start: Start, out: Path) -> None:
    both = start("out/*/*", "out/current")
    folder = out / "step-1"
    folder.mkdir()
    (folder / "_SUCCESS").touch()
    beside = put(out / "beside")
    (folder / "hard").hardlink_to(beside)
    (folder / "soft").symlink_to(beside)
    (folder / "nowhere").symlink_to("nothing")
    (out / "current").symlink_to("_SUCCESS")
    names = ["_SUCCESS", "hard", "soft", "nowhere", "nameless", *(f"linked-{number}" for number in range(50))]
    here = os.open(folder, os.O_RDONLY)
    fd = os.open(folder, os.O_TMPFILE | os.O_WRONLY)
    os.write(fd, b"x")
    os.link(f"/proc/self/fd/{fd}", "nameless", src_dir_fd=here, dst_dir_fd=here, follow_symlinks=True)
    for name in names[5:]:  # in less than a tick of the file system's clock
        (folder / ".tmp").touch()
        os.link(folder / ".tmp", folder / name)
        os.unlink(folder / ".tmp")
    os.close(fd)
    os.close(here)
    for name in names:
        both.saved(folder / name)
    both.saved(out / "current")
    expected = [out / "current", *(folder / name for name in names)]
    assert sorted(both.paths) == sorted(map(str, expected))


def test_what_is_no_file_or_does_not_fit_does_not_count(start: Start, out: Path) -> None:
    """A pipe, a deleted file, and a file where a slash at the end means folders."""
    both = start("out/*.d/", "out/later-*", "out/*.pt")
    os.mkfifo(out / "pipe.pt")
    with both.notified.stopped(), both.listing.stopped():
        (out / "deleted.pt").write_text("x")
        (out / "deleted.pt").unlink()
    put(out / "file.d")
    (out / "sub.d").mkdir()
    (out / "link.d").symlink_to("sub.d")
    both.saved(out / "sub.d")
    both.saved(out / "link.d")
    both.settle(out)
    assert sorted(both.paths) == sorted(str(out / name) for name in ("sub.d", "link.d", "later-0.pt"))


def test_folders_may_come_and_go(start: Start, tmp_path: Path) -> None:
    both = start("a/b/c/*.pt", "a/*/marker")
    top, folder = tmp_path / "a", tmp_path / "a" / "b" / "c"
    for number in (1, 2):
        folder.mkdir(parents=True)
        put(folder / "x.pt")
        (folder.parent / "marker").touch()
        both.saved(folder / "x.pt", number)
        both.saved(folder.parent / "marker", number)
        if number == 1:
            shutil.rmtree(top)
            (tmp_path / "takes").mkdir()  # their inode numbers: a listing cannot distinguish them
            for inode in range(8):
                (tmp_path / "takes" / f"{inode}").touch()
        else:
            top.rename(tmp_path / "before")
    put(tmp_path / "before" / "b" / "c" / "not.pt")
    folder.mkdir(parents=True)
    both.settle(folder)
    assert not [path for path in both.paths if "not.pt" in path or "before" in path]


def test_a_file_created_again_with_the_same_inode_counts(start: Start, out: Path) -> None:
    """A file system gives the number of a deleted file to the next one."""
    notified = start("out/*.pt", "out/*/state").notified
    for number in (1, 2, 3):
        (out / "1").mkdir(parents=True)
        (out / "1" / "state").touch()
        (out / "a.pt").touch()
        notified.saved(out / "a.pt", number)
        notified.saved(out / "1" / "state", number)
        shutil.rmtree(out)


def test_the_files_of_a_folder_renamed_into_place_count(start: Start, out: Path) -> None:
    both = start("out/checkpoint-*/trainer_state.json", "out/late/*/x")
    for number in (1, 2):
        folder = out / f"tmp-checkpoint-{number}"
        folder.mkdir()
        (folder / "trainer_state.json").write_text("{}")
        folder = folder.rename(out / f"checkpoint-{number}")
        assert both.notified.saved(folder / "trainer_state.json")["renamed"]
    both.saved(out / "checkpoint-2" / "trainer_state.json")
    (out / "checkpoint-2").rename(out / "checkpoint-3")
    (out / "early" / "deep").mkdir(parents=True)
    (out / "early" / "deep" / "x").touch()
    (out / "early").rename(out / "late")
    both.saved(out / "checkpoint-3" / "trainer_state.json")
    both.saved(out / "late" / "deep" / "x")
    assert both.counts(out / "checkpoint-2" / "trainer_state.json") == {1}


def test_a_folder_counts_once_when_it_no_longer_changes(start: Start, out: Path) -> None:
    both = start("out/checkpoint-*")
    grows, busy, rests, renamed = (out / f"checkpoint-{number}" for number in range(4))
    (grows / "a" / "b").mkdir(parents=True)
    (busy / "a").mkdir(parents=True)
    with writing(busy / "a" / "shard"):
        rests.mkdir()
        fd = os.open(rests, os.O_RDONLY)  # it is open, but not written to
        (out / "tmp").mkdir()
        (out / "tmp").rename(renamed)
        assert both.notified.saved(renamed)["renamed"]
        shards = map(str, itertools.count())
        for watcher in both.all:
            paused = watcher.meanwhile(lambda: (grows / "a" / "b" / next(shards)).touch(), rests)
            assert watcher.count(grows) == 0 or paused > 1
        os.close(fd)
        both.saved(grows)
        both.saved(renamed)
        assert both.counts(busy) == {0}
    both.saved(busy)
    assert [both.counts(folder) for folder in (grows, busy, rests, renamed)] == [{1}] * 4


SAVES = ("in place", "renamed into it", "in a new folder", "made again", "another one in its place")


def save(folder: Path, how: str) -> None:
    if how == "in place":
        (folder / "model" / "shard").write_text("1")
    elif how == "renamed into it":
        put(folder / ".metadata")
    elif how == "in a new folder":
        (folder / "model" / "new").mkdir()
        (folder / "model" / "new" / "shard").write_text("1")
    elif how == "made again":
        shutil.rmtree(folder)
        folder.mkdir()
        (folder / "shard").write_text("1")
    else:
        beside = folder.parent.parent / "next"
        beside.mkdir()
        (beside / "shard").write_text("1")
        shutil.rmtree(folder)
        beside.rename(folder)


@pytest.mark.parametrize("by_name", [True, False])
def test_a_folder_counts_each_time_that_it_is_saved_again(start: Start, out: Path, by_name: bool) -> None:
    """Under its name, as accelerate's `save_state` and PyTorch's distributed checkpoints do: the folder around it does
    not change.  Neither reading nor deleting saves it."""
    saved, used = {how: out / how for how in SAVES}, out / "used"
    for folder in (*saved.values(), used):
        (folder / "model" / "deep").mkdir(parents=True)
        (folder / "model" / "shard").write_text("0")
    both = start(*([f"out/{how}" for how in (*SAVES, "used")] if by_name else ["out/*/"]))
    for how, folder in saved.items():
        save(folder, how)
    with (used / "model" / "shard").open():
        (used / "model" / "deep").rmdir()
    for folder in saved.values():
        both.saved(folder)
    for folder in saved.values():
        (folder / "last").write_text("2")
    for folder in saved.values():
        both.saved(folder, 2)
    assert [both.counts(folder) for folder in saved.values()] == [{2}] * len(SAVES)
    assert both.counts(used) == {0}


def test_a_folder_to_which_a_link_leads_counts_each_time(start: Start, out: Path) -> None:
    (out / "step-1").mkdir()
    (out / "latest").symlink_to("step-1")
    both = start("out/latest")
    for number in (1, 2):
        (out / "step-1" / "shard").write_text(f"{number}")
        both.saved(out / "latest", number)


def test_folders_behind_links_are_followed(start: Start, tmp_path: Path) -> None:
    for run in ("run1", "run2"):
        (tmp_path / "data" / run).mkdir(parents=True)
        put(tmp_path / "data" / run / f"{run}.pt")
    link = tmp_path / "current"
    link.symlink_to("data/run1")
    (tmp_path / "dangling").symlink_to("data/late")
    both = start("current/*.pt", "dangling/*.pt", "alias/sub/x.pt")
    put(tmp_path / "data" / "run1" / "a.pt")
    both.saved(link / "a.pt")
    (tmp_path / "fresh").symlink_to("data/run2")
    (tmp_path / "fresh").rename(link)
    (tmp_path / "data" / "late").mkdir()
    numbers = itertools.count()
    for watcher in both.all:  # a file of the first instant may count as an old one
        while not any("/dangling/c" in path for path in watcher.paths):
            put(tmp_path / "data" / "late" / f"c{next(numbers)}.pt")
            assert watcher.read(0.5)
    put(link / "b.pt")
    for path in (link / "run2.pt", link / "b.pt"):
        both.saved(path)
    (tmp_path / "alias").symlink_to("data/run2")  # the same folder by another path
    (tmp_path / "alias" / "sub").mkdir()
    put(tmp_path / "alias" / "sub" / "x.pt")
    both.saved(tmp_path / "alias" / "sub" / "x.pt")
    (link / "b.pt").write_text("again")
    both.notified.saved(link / "b.pt", 2)
    (tmp_path / "data" / "run2").rename(tmp_path / "data" / "before")
    (tmp_path / "data" / "run2").mkdir()
    put(link / "d.pt")
    both.saved(link / "d.pt")


def test_names_of_all_kinds_count_once_by_several_globs(start: Start, tmp_path: Path, out: Path) -> None:
    names = ["schön 模型", "two\nlines", "byte-\udcff", "[x]*?", 'q"\\']
    (out / "x").mkdir()
    (out / ".hidden").mkdir()
    put(out / ".hidden" / "b.pt")
    (out / "loop").symlink_to(out)
    globs = ("out/*.pt", f"{out}/a*", "./out//a.pt", "out/**", "out/x/../*.pt")
    both = start(*(f"{glob.escape(name)}/*" for name in names), *globs)
    for name in names:
        (tmp_path / name).mkdir()
        put(tmp_path / name / name)
    put(out / "a.pt")
    for name in names:
        both.saved(tmp_path / name / name)
    both.saved(f"{out}/x/../a.pt")
    both.settle(out)
    assert both.counts(out / "a.pt") == {1}
