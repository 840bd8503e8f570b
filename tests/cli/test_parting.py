"""End to end: the exit hooks of the container run after the verdict is written, within the grace period."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.runs import PID1, Runs, alive, end_process, need_mounts, need_pid1, number_in, python, wait_for

GRACE = "MA_FAILOVER_TERMINATION_GRACE_PERIOD_SECONDS"
A_SECOND: dict[str, Any] = {GRACE: "1"}
ENOUGH: dict[str, Any] = {GRACE: "4"}  # for a shell to begin, also on a busy machine
LONG = "echo $$ >{}; exec sleep 3600"  # longer than any grace period


@pytest.fixture
def left(runs: Runs) -> Iterator[Path]:
    """The file for the pid of a hook that continues after ftrun; it is ended before the check for leftovers."""
    path = runs.folder / "left"
    yield path
    if path.exists() and path.read_text():
        pid = int(path.read_text())
        end_process(pid)
        wait_for(lambda: not alive(pid), "its end")


def test_exit_hooks_run_last_after_the_verdict_and_change_no_code(runs: Runs) -> None:
    """An ftrun that is killed during the hooks has lost no record; one that fails does not prevent the others."""
    log, events = runs.folder / "termination-log", runs.run_dir / "events.jsonl"
    hooks = ("echo one >> done", f"cat {log} {events} > copy", "echo gone >&2; exit 3", "echo two >> done")
    options = [word for hook in hooks for word in ("--on-exit", hook)]
    run = runs.ends(7, *options, "--unmount", "/nowhere", "sh", "-c", "echo command >> done; exit 7")
    assert (runs.folder / "done").read_text().split() == ["command", "one", "two"]
    copy = (runs.folder / "copy").read_text()
    assert copy.startswith('{"schema": 1, "verdict": "failed", "exit_code": 7')
    assert '"event": "ended"' in copy
    problems = [record["what"] for record in run.named("problem")]
    assert problems[0] == "echo gone >&2; exit 3: it ended with 3"
    assert problems[1].startswith("umount /nowhere: ")
    assert "gone" in (run.run_dir / "run.log").read_text()


def test_exit_hooks_run_once_and_not_at_a_restart(runs: Runs) -> None:
    code = "sys.exit(ft.attempt().start_cnt < 3)"
    options = ("--restart-on", "failure", "--backoff", "1ms", "--on-exit", "echo end >> done")
    assert runs.run(*options, *python(code)).wait() == 0
    assert (runs.folder / "done").read_text() == "end\n"


def test_exit_hooks_are_limited_by_the_grace_period(runs: Runs, left: Path) -> None:
    run = runs.ends(7, "--on-exit", LONG.format(left), "sh", "-c", "exit 7", **A_SECOND)
    (problem,) = run.named("problem")
    assert "not completed in time; it continues after the end of ftrun" in problem["what"]
    assert alive(number_in(left)), "it goes on"
    assert (runs.verdict["verdict"], runs.verdict["exit_code"]) == ("failed", 7)


@pytest.mark.parametrize("grace", ["", "0"])
def test_exit_hooks_without_a_grace_period_run_to_their_end(runs: Runs, grace: str) -> None:
    run = runs.start(
        "--on-exit", "while ! [ -e go ]; do sleep 0.05; done; touch done", "true", **dict[str, Any]({GRACE: grace})
    )
    run.until("ended")
    time.sleep(1.5)  # longer than the grace would be, if it were one
    assert run.process.poll() is None, run.log()
    (runs.folder / "go").touch()
    assert run.wait() == 0, run.log()
    assert (runs.folder / "done").exists()


def test_exit_hooks_continue_at_a_stop(runs: Runs) -> None:
    """The hooks have a limit of their own."""
    run = runs.start("--on-exit", "touch begun; while ! [ -e go ]; do sleep 0.05; done; touch done", "true")
    wait_for((runs.folder / "begun").exists, "the work")
    run.process.terminate()
    (runs.folder / "go").touch()
    assert run.wait() == 0, run.log()
    assert (runs.folder / "done").exists()


def test_mount_is_removed_at_the_end(runs: Runs) -> None:
    need_mounts()
    disk = runs.folder / "disk"
    disk.mkdir()
    prefix = runs.mounted(f"mount -t tmpfs none {disk}")
    look = f"grep -c {disk} /proc/self/mountinfo > $0; true"
    work = ["--on-exit", f"sh -c '{look}' before", "--unmount", str(disk)]
    run = runs.ends(0, *work, "sh", "-c", f"touch {disk}/data", prefix=prefix)
    assert (runs.folder / "before").read_text() == "1\n", "commands come first"
    assert not run.named("problem"), "umount would complain if it were not mounted"
    assert list(disk.iterdir()) == []


def test_busy_mount_is_detached_after_the_grace_period(runs: Runs, left: Path) -> None:
    need_mounts()
    disk = runs.folder / "disk"
    disk.mkdir()
    stays = f"cd {disk}; {LONG.format(left)}"
    script = f"mount -t tmpfs none {disk}\nprintf x > {disk}/x"
    options = ["--on-exit", stays, "--unmount", str(disk)]
    run = runs.ends(0, *options, "true", prefix=runs.mounted(script), **ENOUGH)
    problems = [record["what"] for record in run.named("problem")]
    assert any(what.startswith(f"umount {disk}: not completed in time") for what in problems), problems
    pid = int(left.read_text())
    assert str(disk) not in Path(f"/proc/{pid}/mountinfo").read_text(), "out of the tree of files"
    assert (Path(f"/proc/{pid}/cwd") / "x").exists(), "and there for who still uses it"


@pytest.mark.pid1
def test_exit_hooks_of_pid_1(runs: Runs) -> None:
    need_pid1()
    work = ["--on-exit", "sleep 3600", "--on-exit", "touch done; sleep 3600"]
    run = runs.ends(7, *work, "sh", "-c", "exit 7", prefix=PID1, **A_SECOND)
    problems = [record["what"].partition(":")[0] for record in run.named("problem")]
    assert problems == ["sleep 3600", "touch done; sleep 3600"]
