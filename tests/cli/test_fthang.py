"""`fthang` as a user runs it: it trains, resumes, and gets into the trouble that was asked for."""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from beat_file import HOUSE, BeatDir

PR_SET_CHILD_SUBREAPER = 36
FAST = ("--step-time", "1ms", "--after", "3", "--steps", "12", "--checkpoint-every", "2")


class Seen(NamedTuple):
    pid: int
    state: str
    parent: int
    group: int
    session: int


class Runner:
    """Starts `fthang` in a folder of its own, and ends whatever it left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoints = folder / "checkpoints"
        self.output = folder / "output"
        self.beats = BeatDir(folder / "beats")
        self.started: list[subprocess.Popen[bytes]] = []
        self.others: set[int] = set()

    def start(self, *words: str, start: int = 1, fast: bool = True) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(HOUSE / "bin" / "fthang"), *(FAST if fast else ()), *words]
        env = self.beats.environment(MA_PROC_START_CNT=str(start), FTRUN_RUN_DIR=str(self.folder))
        env |= {"FTRUN_RESTART_REASON": "hang"} if start > 1 else {}
        del env["PYTHONPATH"]
        with self.output.open("wb") as output:
            process = subprocess.Popen(
                command, env=env, cwd=self.folder, stdout=output, stderr=output, start_new_session=True
            )
        self.started.append(process)
        return process

    def run(self, *words: str, start: int = 1, fast: bool = True) -> int:
        return self.start(*words, start=start, fast=fast).wait(60)

    def lines(self) -> list[str]:
        return self.output.read_text().splitlines()

    def end(self) -> None:
        """Each session at once, so that none can fork away; then what left its session; then reap them all."""
        for process in self.started:
            kill_group(process.pid)
            process.wait()
        for daemon in self.strangers():
            kill_group(daemon.group)
        for process in self.started:
            reap(-process.pid, 0)
        for daemon in self.strangers():
            reap(daemon.pid, 0)
        self.beats.close()

    def strangers(self) -> list[Seen]:
        """Children of this process that lead or belong to no session of ours: orphans come here, to the subreaper."""
        ours = {process.pid for process in self.started} | self.others
        return [seen for seen in processes() if seen.parent == os.getpid() and not {seen.pid, seen.session} & ours]


def processes() -> list[Seen]:
    """All that /proc shows, by one cheap look: a fork storm outruns a careful one."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        found.append(Seen(int(stat.parent.name), fields[0], *map(int, fields[1:4])))
    return found


def alive_in(session: int) -> list[Seen]:
    return [seen for seen in processes() if seen.session == session and seen.state not in "ZX"]


def kill_group(group: int) -> None:
    assert group != os.getpgrp()
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass


def reap(pid: int, how: int) -> None:
    """As waitpid has it (a negative one is a process group), until there is nothing to reap."""
    try:
        while os.waitpid(pid, how)[0]:
            pass
    except ChildProcessError:
        pass


def until(holds: Callable[[], object], limit: float = 60) -> None:
    deadline = time.monotonic() + limit
    while not holds():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.005)


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.fixture
def fthang(tmp_path: Path) -> Iterator[Runner]:
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    assert prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    runner = Runner(tmp_path)
    runner.others = {seen.pid for seen in processes() if seen.parent == os.getpid()}
    yield runner
    runner.end()
    prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
    assert not runner.strangers()
    assert not [seen for process in runner.started for seen in processes() if seen.session == process.pid]


def test_it_trains_and_finishes(fthang: Runner) -> None:
    assert fthang.run("none") == 0
    lines = fthang.lines()
    assert lines[0] == "start 1: from the beginning"
    losses = [float(line.split()[-1]) for line in lines[1:13]]
    assert losses == sorted(losses, reverse=True)
    assert lines[13:] == [f"finished at step 12, loss {losses[-1]:.6f}"]
    kept = sorted(path.name for path in fthang.checkpoints.iterdir())
    assert kept == [f"checkpoint-{step:08d}.json" for step in (8, 10, 12)]
    slot = fthang.beats.slot()
    assert (slot["step"], slot["checkpoint_step"], slot["flags"]) == (13, 13, 1)
    assert (fthang.beats.folder / "checkpoint-0").read_text() == str(fthang.checkpoints / kept[-1])


def test_resuming_gives_what_an_uninterrupted_run_gives(fthang: Runner) -> None:
    whole = fthang.folder / "whole"
    assert fthang.run("none", "--checkpoint-dir", str(whole)) == 0
    assert fthang.run("signal", "KILL") == -signal.SIGKILL
    assert fthang.lines()[-2:] == [fthang.lines()[3], "killing itself: SIGKILL"]
    assert fthang.run("signal", "KILL", start=2) == 0
    assert fthang.lines()[0] == "start 2 (restart after hang): resumed at step 2"
    last = "checkpoint-00000012.json"
    assert (fthang.checkpoints / last).read_text() == (whole / last).read_text()


@pytest.mark.parametrize("torn", ["", '{"step": 12, "wei', "[]", '{"step": 12, "weights": [1], "loss": 0}', "\xff"])
def test_a_torn_checkpoint_is_skipped(fthang: Runner, torn: str) -> None:
    assert fthang.run("none") == 0
    newest = fthang.checkpoints / "checkpoint-00000012.json"
    good = newest.read_text()
    newest.write_text(torn, encoding="latin-1")
    (fthang.checkpoints / "checkpoint-00000099.tmp").write_text("half")
    assert fthang.run("none", start=2) == 0
    assert fthang.lines()[0].endswith("resumed at step 10")
    assert newest.read_text() == good


def test_each_start_in_trouble_gets_no_further_than_the_first(fthang: Runner) -> None:
    for start in (1, 2, 3):
        assert fthang.run("crash", "7", "--times", "3", "--checkpoint-every", "1", start=start) == 7
        newest = max(json.loads(path.read_text())["step"] for path in fthang.checkpoints.iterdir())
        assert newest == 3
    assert fthang.run("crash", "7", "--times", "3", start=4) == 0


@pytest.mark.parametrize("kind", ["sleep", "deadlock", "spin"])
def test_it_hangs(fthang: Runner, kind: str) -> None:
    process = fthang.start(kind)
    until(lambda: fthang.lines()[-1:] == [f"hanging: {kind}"])
    until(lambda: state(process.pid) == ("R" if kind == "spin" else "S"))
    beats = fthang.beats.slot()
    assert (beats["step"], beats["checkpoint_step"], beats["flags"]) == (4, 3, 0)
    used = psutil.Process(process.pid).cpu_times().user
    if kind == "spin":
        until(lambda: psutil.Process(process.pid).cpu_times().user > used + 0.1)
    assert fthang.beats.slot() == beats
    assert process.poll() is None


def test_stop_stops_itself_and_goes_on_when_continued(fthang: Runner) -> None:
    process = fthang.start("stop")
    until(lambda: state(process.pid) == "T")
    assert fthang.beats.slot()["step"] == 4
    process.send_signal(signal.SIGCONT)
    assert process.wait(60) == 0
    assert fthang.lines()[-1].startswith("finished at step 12")


def test_nobeat_says_nothing_and_never_ends(fthang: Runner) -> None:
    process = fthang.start("nobeat")
    until(lambda: fthang.lines()[-1:] == ["hanging: nobeat"])
    used = psutil.Process(process.pid).num_ctx_switches().voluntary
    until(lambda: psutil.Process(process.pid).num_ctx_switches().voluntary > used + 50)
    assert fthang.beats.slot()["magic"] == 0
    assert process.poll() is None


def test_no_hooks_trains_and_says_nothing(fthang: Runner) -> None:
    assert fthang.run("none", "--no-hooks") == 0
    assert fthang.lines()[-1].startswith("finished")
    assert fthang.beats.slot()["magic"] == 0


@pytest.mark.parametrize("code", [0, 1, 255])
def test_it_crashes_with_the_code(fthang: Runner, code: int) -> None:
    assert fthang.run("crash", str(code)) == code
    assert fthang.lines()[-1] == f"crashing: exit code {code}"
    assert fthang.beats.slot()["flags"] == 0


@pytest.mark.parametrize("name", ["SIGSEGV", "int", "PIPE", "9"])
def test_it_dies_of_the_signal(fthang: Runner, name: str) -> None:
    number = {"SIGSEGV": 11, "int": 2, "PIPE": 13, "9": 9}[name]
    assert fthang.run("signal", name) == -number
    assert not list(fthang.folder.glob("core*"))


def test_orphans_are_left_behind_and_the_training_finishes(fthang: Runner) -> None:
    assert fthang.run("orphans", "5") == 0
    assert "left behind: 5 orphans" in fthang.lines()
    left = alive_in(fthang.started[0].pid)
    assert len(left) == 5
    assert {seen.parent for seen in left} == {os.getpid()}
    assert fthang.beats.slot()["step"] == 13


def test_a_daemon_has_a_session_of_its_own_and_ignores_sigterm(fthang: Runner) -> None:
    assert fthang.run("daemon") == 0
    (daemon,) = fthang.strangers()
    assert daemon.session not in (os.getsid(0), fthang.started[0].pid, daemon.pid)
    ignored = next(line for line in Path(f"/proc/{daemon.pid}/status").read_text().splitlines() if "SigIgn" in line)
    assert int(ignored.split()[1], 16) & 1 << (signal.SIGTERM - 1)


def test_a_fork_storm_goes_on_and_stays_bounded(fthang: Runner) -> None:
    process = fthang.start("forkstorm")
    seen: set[int] = set()
    most = 0

    def stormed() -> bool:
        nonlocal most
        alive = [link.pid for link in alive_in(process.pid)]
        most = max(most, len(alive))
        seen.update(alive)
        reap(-process.pid, os.WNOHANG)
        return len(seen) > 300

    until(stormed)
    assert most <= 60
    assert process.poll() is None
    assert fthang.beats.slot()["step"] == 4


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["slep"],
        ["crash"],
        ["crash", "256"],
        ["crash", "-1"],
        ["signal", "TREM"],
        ["signal", "0"],
        ["orphans", "0"],
        ["orphans", "many"],
        ["sleep", "5"],
        ["none", "--steps", "0"],
        ["none", "--step-time", "5"],
        ["none", "--bogus"],
        ["none", "a", "b"],
    ],
)
def test_bad_usage_is_one_clear_line(fthang: Runner, words: list[str]) -> None:
    assert fthang.run(*words, fast=False) == 2
    (line,) = fthang.lines()
    assert line.startswith("fthang: ")
    assert not fthang.checkpoints.exists()


def test_a_near_match_is_offered(fthang: Runner) -> None:
    fthang.run("slep", fast=False)
    assert "did you mean 'sleep'?" in fthang.lines()[0]


def test_checkpoints_that_cannot_be_kept_are_one_clear_line(fthang: Runner) -> None:
    fthang.checkpoints.write_text("a file")
    assert fthang.run("none") == 1
    assert len(fthang.lines()) == 1
    assert str(fthang.checkpoints) in fthang.lines()[0]
