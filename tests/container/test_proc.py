"""A container whose /proc does not show its processes: ftrun says so and starts nothing."""

from pathlib import Path

import pytest

from support.containers import Starter
from support.runs import PID1, need_pid1

UNSHARED = ("unshare", "--pid", "--fork", "--kill-child")  # /proc stays that of the namespace above
HIDDEN = (*PID1, "sh", "-c", 'mount -t tmpfs tmpfs /proc && exec "$@"', "sh")
REMOVED = (*PID1, "sh", "-c", 'umount /proc && umount /proc && exec "$@"', "sh")


@pytest.mark.parametrize(
    ("above", "cause"),
    [
        (UNSHARED, b"ftrun: /proc shows another PID namespace (this process is 1, and "),
        (HIDDEN, b"ftrun: the proc file system is not mounted at /proc, or something else is mounted over it: "),
        (REMOVED, b"ftrun: the proc file system is not mounted at /proc, or something else is mounted over it: "),
    ],
    ids=["of another namespace", "hidden", "not mounted"],
)
@pytest.mark.pid1
def test_a_proc_without_the_processes_of_the_command_is_one_line_at_the_start(
    start: Starter, tmp_path: Path, above: tuple[str, ...], cause: bytes
) -> None:
    need_pid1()
    code, _, err = start("touch", str(tmp_path / "started"), above=above).finish()
    assert code == 125, err
    assert err.startswith(cause)
    assert err.count(b"\n") == 1
    assert not (tmp_path / "started").exists()
    assert not (tmp_path / "run-0").exists()


@pytest.mark.pid1
def test_a_proc_that_hides_what_ftrun_does_not_need_is_enough(start: Starter, tmp_path: Path) -> None:
    need_pid1()
    above = (*PID1, "sh", "-c", 'mount -t proc -o subset=pid,hidepid=2 proc /proc && exec "$@"', "sh")
    code, out, err = start("echo", "done", above=above).finish()
    assert (code, out) == (0, b"done\n"), err
