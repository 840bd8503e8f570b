"""The exit hooks: each is completed, or continues without being waited for."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from support.helper_process import HelperProcess, Line
from support.runs import MOUNTS, alive, need_mounts, wait_for


@pytest.fixture
def pids() -> Iterator[list[int]]:
    """Processes that the exit hooks left running; they are ended after the test."""
    found: list[int] = []
    yield found
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def exit_hooks(*commands: str, unmount: Sequence[str] = (), grace: float | None = None, **more: Any) -> HelperProcess:
    return HelperProcess("exit_hooks", json.dumps({"commands": commands, "unmount": unmount, "grace": grace}), **more)


def finished(process: HelperProcess, pids: list[int] | None = None) -> Line:
    line = process.event("hooks_finished")
    if pids is not None:
        pids += line["pids"]
    assert process.ended() == 0
    return {key: line[key] for key in ("late", "failed")}


DONE: Line = {"late": [], "failed": []}


def test_without_work_it_finishes_at_once() -> None:
    with exit_hooks() as process:
        assert finished(process) == DONE
        assert process.lines == [{"event": "hooks_finished", "late": [], "failed": [], "pids": []}]


def test_commands_run_one_after_another_with_output_to_the_log(tmp_path: Path) -> None:
    """Without a grace period it waits for each."""
    log, go = tmp_path / "run.log", tmp_path / "go"
    wait = f"while ! test -e {go}; do sleep 0.02; done"
    with exit_hooks(f"{wait}; echo one; ps -o sid= $$", "echo two >&2; ps -o sid= $$", log=log) as process:
        assert process.read(0.5)
        assert process.lines == []
        go.touch()
        assert finished(process) == DONE
    words = log.read_text().split()
    assert words[::2] == ["one", "two"]
    assert len({*words[1::2], str(os.getsid(0))}) == 3


class Mounted:
    """Two mounts in a namespace of their own; `process` runs there."""

    def __init__(self, folder: Path) -> None:
        self.busy, self.free = folder / "busy", folder / "free"
        script = "".join(
            f"mkdir {path}; mount -t tmpfs x {path}; echo x > {path}/x\n" for path in (self.busy, self.free)
        )
        self._inside = self._start([*MOUNTS, "sh", "-ec", f"{script}echo; exec sleep 600"])
        self._prefix = ["nsenter", f"--target={self._inside.pid}", "--mount"]
        self.holder = self._start([*self._prefix, "sh", "-c", f"exec 9< {self.busy}/x; echo; exec sleep 600"])

    def _start(self, words: Sequence[str]) -> subprocess.Popen[bytes]:
        """Return once it has written a line."""
        process = subprocess.Popen(words, stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    def process(self, *unmount: Path, grace: float | None, before: str = "", **environment: str) -> HelperProcess:
        paths = [str(path) for path in unmount]
        return exit_hooks(
            unmount=paths, grace=grace, prefix=self._prefix, before=before, environment=os.environ | environment
        )

    @property
    def left(self) -> set[Path]:
        lines = Path(f"/proc/{self._inside.pid}/mountinfo").read_text().splitlines()
        return {Path(line.split()[4]) for line in lines} & {self.busy, self.free}

    def close(self) -> None:
        for process in (self.holder, self._inside):
            process.kill()
            process.communicate()


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Mounted]:
    need_mounts()
    made = Mounted(tmp_path)
    assert made.left == {made.busy, made.free}
    yield made
    made.close()


def busy_for(seconds: float) -> str:
    return f"import ftrun.helpers.exit_hooks.program as f; f.BUSY, f.LAZY = {seconds}, 60"


def test_a_path_without_a_mount_fails_and_the_others_are_unmounted(mounted: Mounted, tmp_path: Path) -> None:
    option = Path("--help")
    with mounted.process(tmp_path, tmp_path / "none", option, mounted.free, grace=60) as process:
        line = finished(process)
    assert line["late"] == []
    assert [failed["what"] for failed in line["failed"]] == [
        f"umount {p}" for p in (tmp_path, tmp_path / "none", option)
    ]
    assert "not mounted" in line["failed"][0]["why"]
    assert mounted.left == {mounted.busy}


def test_a_busy_path_is_unmounted_once_it_is_free(mounted: Mounted) -> None:
    with mounted.process(mounted.busy, grace=None, before=busy_for(60)) as process:
        assert process.read(0.6)
        assert process.lines == []
        mounted.holder.kill()
        mounted.holder.wait()
        assert finished(process) == DONE
    assert mounted.left == {mounted.free}


def test_a_path_that_stays_busy_is_unmounted_lazily(mounted: Mounted) -> None:
    with mounted.process(mounted.busy, mounted.free, grace=None, before=busy_for(0.5)) as process:
        assert finished(process) == {"late": [f"umount {mounted.busy}"], "failed": []}
    wait_for(lambda: not mounted.left, "the end of all mounts")
    assert alive(mounted.holder.pid)


def test_an_unmount_that_hangs_is_left_behind_and_done_lazily(
    mounted: Mounted, tmp_path: Path, pids: list[int]
) -> None:
    fake = tmp_path / "bin" / "umount"
    fake.parent.mkdir()
    umount = shutil.which("umount")
    fake.write_text(f'#!/bin/sh\ntest "$1" = -l && exec {umount} "$@"\nexec sleep 600\n')
    fake.chmod(0o755)
    path = f"{fake.parent}:{os.environ['PATH']}"
    with mounted.process(mounted.free, mounted.busy, grace=0.5, before=busy_for(60), PATH=path) as process:
        late = [f"umount {mounted.free}", f"umount {mounted.busy}"]
        assert finished(process, pids) == {"late": late, "failed": []}
    wait_for(lambda: not mounted.left, "the end of all mounts")
    assert len(pids) == 1
    assert alive(pids[0])


def test_a_missing_program_is_reported(tmp_path: Path) -> None:
    environment = os.environ | {"PATH": str(tmp_path)}
    with exit_hooks(unmount=["/nowhere"], environment=environment) as process:
        line = finished(process)
    assert [failed["what"] for failed in line["failed"]] == ["umount /nowhere"]
    assert "umount" in line["failed"][0]["why"]
