"""The checkpoint watcher with limits, lost events, mounts, network disks, and without a reader."""

import contextlib
import itertools
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from support.helper_process import DEADLINE
from support.runs import MOUNTS, need_mounts, permitted, wait_for
from support.watcher import Watcher, put, writing
from support.watcher import out as out

OWN_LIMITS = ("unshare", "--user", "--map-root-user")


def until(watcher: Watcher, name: str, make: Callable[[str], object]) -> None:
    """Wait until one is detected.  What is created in the first moment may count as existing."""
    numbers = itertools.count()

    def seen() -> bool:
        make(f"{name}-{next(numbers)}.pt")
        watcher.read(0.1)
        return any(f"/{name}-" in path for path in watcher.paths)

    wait_for(seen, f"what is {name} is watched", DEADLINE)


def limited(limit: str, number: int) -> tuple[str, ...]:
    """A prefix: in a user namespace of its own, which has limits of its own."""
    if not permitted(*OWN_LIMITS):
        pytest.skip("unshare --user is not permitted here")
    return (*OWN_LIMITS, "sh", "-ec", f'echo {number} > /proc/sys/user/{limit}\nexec "$@"', "sh")


def test_nothing_is_repeated_after_a_kill_and_a_new_start(out: Path) -> None:
    with Watcher(out, "*.pt") as first:
        put(out / "a.pt")
        first.saved(out / "a.pt")
        first.process.kill()
        first.process.wait(DEADLINE)
    with Watcher(out, "*.pt") as second:
        put(out / "b.pt")
        second.saved(out / "b.pt")
        assert second.paths == [str(out / "b.pt")]


def test_folders_are_listed_where_inotify_has_no_watches_or_is_refused(out: Path) -> None:
    deep = out / "a" / "b"
    deep.mkdir(parents=True)
    needed = len(deep.parts)
    with contextlib.ExitStack() as started:
        allowed = {number: limited("max_inotify_watches", number) for number in (0, 1, needed - 1, needed)}
        watchers = {n: started.enter_context(Watcher(out, "a/b/*.pt", prefix=p)) for n, p in allowed.items()}
        refused = started.enter_context(Watcher(out, "a/b/*.pt", prefix=limited("max_inotify_instances", 0)))
        put(deep / "x.pt")
        for number, watcher in watchers.items():
            watcher.saved(deep / "x.pt")
            assert len(watcher.problems) == (number < needed)
            assert all("max_user_watches" in what for what in watcher.problems)
        refused.problem("max_user_instances")
        refused.saved(deep / "x.pt")


def test_lost_events_are_recovered_by_listing(out: Path) -> None:
    queue = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if queue > 100_000:
        pytest.skip("the queue of events is very long here")
    (out / "sub").mkdir()
    put(out / "old.pt")
    put(out / "replaced.pt")
    with Watcher(out, "*.pt", "*/x") as watcher, open(out / "open.pt", "w") as file:
        put(out / "b.pt")
        watcher.saved(out / "b.pt")
        with watcher.stopped():
            for _ in range(queue // 2 + 1):  # opened, closed
                os.close(os.open(out / "old.pt", os.O_RDONLY))
            put(out / "a.pt")
            put(out / "replaced.pt")
            (out / "sub").rename(out / "bus")
            (out / "bus" / "x").touch()
            file.close()
        names = ["a.pt", "b.pt", "bus/x", "open.pt", "replaced.pt"]
        for name in names:
            watcher.saved(out / name)
        (out / "bus" / "x").unlink()
        put(out / "bus" / "x")
        watcher.saved(out / "bus" / "x", 2)
        assert sorted(watcher.paths) == sorted(str(out / name) for name in [*names, "bus/x"])


def test_a_folder_without_read_permission_is_one_problem(tmp_path: Path) -> None:
    prefix = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search") if os.getuid() == 0 else ()
    if prefix and not permitted(*prefix):
        pytest.skip("setpriv cannot take the rights of root away here")
    closed, passage = tmp_path / "closed", tmp_path / "passage"
    (passage / "out").mkdir(parents=True)
    closed.mkdir()
    put(closed / "old.pt")
    closed.chmod(0o300)
    passage.chmod(0o300)
    with Watcher(tmp_path, "closed/*.pt", "closed/*/x", "passage/out/*.pt", prefix=prefix) as watcher:
        assert "Permission denied" in watcher.problem("closed")
        put(passage / "out" / "a.pt")
        watcher.saved(passage / "out" / "a.pt")
        closed.chmod(0o700)
        until(watcher, "opened", lambda path: put(closed / path))
        (closed / "last.pt").touch()  # it settles, as the old one would
        watcher.saved(closed / "last.pt")
        assert [what for what in watcher.problems if "closed" in what] == watcher.problems
        assert len(watcher.problems) == 1
        assert watcher.count(closed / "old.pt") == 0


def in_its_mounts(watcher: Watcher, *words: str | Path) -> None:
    subprocess.run(["nsenter", f"--target={watcher.process.pid}", "--mount", *map(str, words)], check=True)


def test_the_content_of_a_new_mount_does_not_count(out: Path, tmp_path: Path) -> None:
    need_mounts()
    put(out / "under.pt")
    disk = tmp_path / "disk"
    disk.mkdir()
    script = f"mount -t tmpfs none '{disk}'; mkdir '{disk}/sub'; touch '{disk}/sub/old.pt' '{disk}/old.pt'\nexec \"$@\""
    late = tmp_path / "late"
    late.mkdir()
    (tmp_path / "link").symlink_to("late/sub")
    prefix = (*MOUNTS, "sh", "-ec", script, "sh")
    with Watcher(out, "*.pt", "*/*.pt", "../link/*.pt", prefix=prefix) as watcher:
        in_its_mounts(watcher, "mount", "--bind", disk, late)
        until(watcher, "linked", lambda path: in_its_mounts(watcher, "touch", late / "sub" / path))
        in_its_mounts(watcher, "mount", "--bind", disk, out)
        until(watcher, "mounted", lambda path: in_its_mounts(watcher, "touch", out / path))
        in_its_mounts(watcher, "umount", out)
        until(watcher, "unmounted", lambda path: in_its_mounts(watcher, "touch", out / path))
        (out / "last.pt").touch()
        watcher.saved(out / "last.pt")
        assert not [path for path in watcher.paths if path.endswith(("/old.pt", "/under.pt"))]


def test_writes_of_other_machines_to_a_network_disk_are_detected(out: Path, tmp_path: Path) -> None:
    """FUSE shows a folder that is changed behind it, without an event."""
    if shutil.which("bindfs") is None:
        pytest.skip("bindfs is not installed")
    need_mounts()
    view, old = tmp_path / "view", put(out / "old.pt")
    view.mkdir()
    script = 'bindfs -o attr_timeout=600,entry_timeout=600 "$1" "$2"; shift 2; exec "$@"'
    prefix = (*MOUNTS, "sh", "-ec", script, "sh", str(out), str(view))
    with Watcher(view, "*.pt", "*/x", "last", prefix=prefix) as watcher:
        try:
            put(out / "a.pt")
            watcher.saved(view / "a.pt")
            put(old, "replaced")
            watcher.saved(view / "old.pt")
            (out / "sub").mkdir()
            (out / "sub" / "x").touch()
            watcher.saved(view / "sub" / "x")
            for number in (1, 2):
                put(out / "last", f"{number}")
                watcher.saved(view / "last", number)
            in_its_mounts(watcher, "sh", "-c", f"echo > {view}/tmp; mv {view}/tmp {view}/here.pt; echo > {view}/w.pt")
            assert watcher.saved(view / "here.pt")["renamed"]
            watcher.saved(view / "w.pt")
            with writing(out / "grows.pt") as more:
                put(out / "b.pt")
                paused = watcher.meanwhile(more, view / "b.pt")
                assert watcher.count(view / "grows.pt") == 0 or paused > 0.1
            watcher.saved(view / "grows.pt")
            names = ["b.pt", "grows.pt", "a.pt", "old.pt", "sub/x", "last", "last", "here.pt", "w.pt"]
            assert sorted(watcher.paths) == sorted(str(view / name) for name in names)
        finally:
            in_its_mounts(watcher, "umount", "--lazy", view)  # that ends bindfs
