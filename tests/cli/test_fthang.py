"""`fthang` as a user runs it: it trains, resumes, and gets into the trouble that was asked for."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from support.runs import state_of, wait_for
from support.workload import Runner, alive_in, reap, runner


@pytest.fixture
def fthang(tmp_path: Path) -> Iterator[Runner]:
    yield from runner(tmp_path)


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
    wait_for(lambda: fthang.lines()[-1:] == [f"hanging: {kind}"])
    wait_for(lambda: state_of(process.pid) == ("R" if kind == "spin" else "S"))
    beats = fthang.beats.slot()
    assert (beats["step"], beats["checkpoint_step"], beats["flags"]) == (4, 3, 0)
    used = psutil.Process(process.pid).cpu_times().user
    if kind == "spin":
        wait_for(lambda: psutil.Process(process.pid).cpu_times().user > used + 0.1)
    assert fthang.beats.slot() == beats
    assert process.poll() is None


def test_stop_stops_itself_and_goes_on_when_continued(fthang: Runner) -> None:
    process = fthang.start("stop")
    wait_for(lambda: state_of(process.pid) == "T")
    assert fthang.beats.slot()["step"] == 4
    process.send_signal(signal.SIGCONT)
    assert process.wait(60) == 0
    assert fthang.lines()[-1].startswith("finished at step 12")


def test_nobeat_says_nothing_and_never_ends(fthang: Runner) -> None:
    process = fthang.start("nobeat")
    wait_for(lambda: fthang.lines()[-1:] == ["hanging: nobeat"])
    used = psutil.Process(process.pid).num_ctx_switches().voluntary
    wait_for(lambda: psutil.Process(process.pid).num_ctx_switches().voluntary > used + 50)
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

    wait_for(stormed)
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
        ["long-eval", "5"],
        ["quiet-sleep", "0s"],
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


def test_help_lists_every_kind_with_a_few_words(fthang: Runner) -> None:
    from ftrun.workload import kinds

    assert fthang.run("--help", fast=False) == 0
    text = fthang.output.read_text()
    trouble, healthy = text.partition("Failures:")[2].split("Healthy")
    for group, said in ((kinds.FAILURES, trouble), (kinds.HEALTHY, healthy)):
        for kind in group:
            assert any(line.split() == [*kind.usage.split(), *kind.description.split()] for line in said.splitlines())
