"""`fthang` as a user runs it: it trains, resumes, and fails as it was asked to."""

import errno
import json
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from ftrun.cli import hang
from ftrun.workload import kinds
from ftrun.workload.training import Checkpoint, newest, save
from support.runs import state_of, wait_for
from support.workload import Runner, alive_in, reap
from support.workload import fthang as fthang


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


def test_a_resumed_run_ends_like_an_uninterrupted_one(fthang: Runner) -> None:
    uninterrupted = fthang.folder / "uninterrupted"
    assert fthang.run("none", "--checkpoint-dir", str(uninterrupted)) == 0
    assert fthang.run("signal", "KILL") == -signal.SIGKILL
    assert fthang.lines()[-2:] == [fthang.lines()[3], "killing itself: SIGKILL"]
    assert fthang.run("signal", "KILL", start=2) == 0
    assert fthang.lines()[0] == "start 2 (restart after hang): resumed at step 2"
    last = "checkpoint-00000012.json"
    assert (fthang.checkpoints / last).read_text() == (uninterrupted / last).read_text()


def test_ranks_that_save_the_same_step_do_not_disturb_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them saves, in `ftrun --nproc-per-node 4 fthang none`; here another one does so in the midst of it."""
    state, others, replace = Checkpoint(10, (1.0, 2.0), 0.5), [1], os.replace

    def interrupted(fresh: str, path: str) -> None:
        if others:
            others.pop()
            save(tmp_path, state)
        replace(fresh, path)

    monkeypatch.setattr(os, "replace", interrupted)
    assert save(tmp_path, state) == tmp_path / "checkpoint-00000010.json"
    assert newest(tmp_path) == state
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-00000010.json"]


def test_a_checkpoint_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "the disk is full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="full"):
        save(tmp_path, Checkpoint(10, (1.0, 2.0), 0.5))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("torn", ["", '{"step": 12, "wei', "[]", '{"step": 12, "weights": [1], "loss": 0}', "\xff"])
def test_a_torn_checkpoint_is_skipped(tmp_path: Path, torn: str) -> None:
    good = Checkpoint(10, (1.0, 2.0), 0.5)
    save(tmp_path, good)
    (tmp_path / "checkpoint-00000012.json").write_text(torn, encoding="latin-1")
    (tmp_path / "checkpoint-00000099.tmp").write_text("half")
    assert newest(tmp_path) == good


def test_each_failing_start_gets_no_further_than_the_first(fthang: Runner) -> None:
    for start in (1, 2, 3):
        assert fthang.run("crash", "7", "--times", "3", "--checkpoint-every", "1", start=start) == 7
        assert max(json.loads(path.read_text())["step"] for path in fthang.checkpoints.iterdir()) == 3
    assert fthang.run("crash", "7", "--times", "3", start=4) == 0


def test_stop_stops_itself_and_goes_on_when_continued(fthang: Runner) -> None:
    process = fthang.start("stop")
    wait_for(lambda: state_of(process.pid) == "T", "the stop")
    assert fthang.beats.slot()["step"] == 4
    process.send_signal(signal.SIGCONT)
    assert process.wait(90) == 0
    assert fthang.lines()[-1].startswith("finished at step 12")


def test_nobeat_gives_no_heartbeat_and_never_ends(fthang: Runner) -> None:
    pid = fthang.begin("nobeat", line="hanging: nobeat")
    used = psutil.Process(pid).num_ctx_switches().voluntary
    wait_for(lambda: psutil.Process(pid).num_ctx_switches().voluntary > used + 50, "steps")
    assert fthang.beats.slot()["magic"] == 0


def test_without_hooks_it_trains_and_gives_no_heartbeat(fthang: Runner) -> None:
    assert fthang.run("none", "--no-hooks") == 0
    assert fthang.lines()[-1].startswith("finished")
    assert fthang.beats.slot()["magic"] == 0


@pytest.mark.parametrize(
    ("arguments", "status", "line"),
    [
        (["crash", "255"], 255, "crashing: exit code 255"),
        (["signal", "SIGSEGV"], -signal.SIGSEGV, "killing itself: SIGSEGV"),
        (["signal", "9"], -signal.SIGKILL, "killing itself: SIGKILL"),
    ],
)
def test_it_ends_with_the_code_or_signal(fthang: Runner, arguments: list[str], status: int, line: str) -> None:
    assert fthang.run(*arguments) == status
    assert fthang.lines()[-1] == line
    assert fthang.beats.slot()["flags"] == 0
    assert not list(fthang.folder.glob("core*"))


def test_orphans_are_left_behind_and_the_training_finishes(fthang: Runner) -> None:
    assert fthang.run("orphans", "5") == 0
    assert "left behind: 5 orphans" in fthang.lines()
    left = alive_in(fthang.started[0].pid)
    assert len(left) == 5
    assert {process.parent for process in left} == {os.getpid()}
    assert fthang.beats.slot()["step"] == 13


def test_a_daemon_has_a_session_of_its_own_and_ignores_sigterm(fthang: Runner) -> None:
    assert fthang.run("daemon") == 0
    (daemon,) = fthang.orphans()
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

    wait_for(stormed, "300 processes")
    assert most < 200  # 30 chains of at most two; a slow look at /proc finds several links of each
    assert process.poll() is None
    assert fthang.beats.slot()["step"] == 4


@pytest.mark.parametrize(
    "arguments",
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
        ["long-eval", "5"],
        ["quiet-sleep", "0s"],
        ["none", "--steps", "0"],
        ["none", "--step-time", "5"],
        ["none", "--bogus"],
        ["sleep", "--in-worker"],
        ["none", "a", "b"],
        ["none", "--rank", "0"],
        ["rank-none", "--rank", "1"],
        ["rank-none", "--torch"],
        ["rank-none", "--no-hooks"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_one_line(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["fthang", *arguments])
    with pytest.raises(SystemExit) as ended:
        hang.main()
    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2
    assert line.startswith("fthang: ")
    assert arguments != ["slep"] or "did you mean 'sleep'?" in line
    assert not list(tmp_path.iterdir())


def test_checkpoints_that_cannot_be_written_are_one_line(fthang: Runner) -> None:
    fthang.checkpoints.write_text("a file")
    assert fthang.run("none") == 1
    (line,) = fthang.lines()
    assert str(fthang.checkpoints) in line


def test_help_lists_every_kind(fthang: Runner) -> None:
    assert fthang.run("--help", fast=False) == 0
    failures, rest = fthang.output.read_text().partition("Failures:")[2].split("Healthy")
    healthy, ranks = rest.split("One rank")
    for group, text in ((kinds.FAILURES, failures), (kinds.HEALTHY, healthy), (kinds.RANKS, ranks)):
        for kind in group:
            assert any(line.split() == [*kind.usage.split(), *kind.description.split()] for line in text.splitlines())
