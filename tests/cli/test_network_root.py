"""A container whose root is on no disk that is known as a local one (virtiofs, 9p, NFS): here a FUSE file system."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from support.runs import FTRUN, MOUNTS, need_mounts, wait_for, without_start_line

COMMAND = ("sh", "-c", "echo $FTRUN_RUN_DIR; test -s $FTRUN_RUN_DIR/events.jsonl && exit 7")


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """All of this machine, seen through FUSE."""
    if shutil.which("bindfs") is None or not os.path.exists("/dev/fuse"):
        pytest.skip("bindfs is not installed, or there is no /dev/fuse")
    need_mounts()
    view = tmp_path / "root"
    view.mkdir()
    server = subprocess.Popen(["bindfs", "-f", "/", str(view)], stderr=subprocess.DEVNULL)
    wait_for(lambda: server.poll() is not None or (view / "proc").exists(), "the root is mounted")
    if server.poll() is not None:
        pytest.skip("no FUSE here")
    yield view
    server.send_signal(signal.SIGTERM)
    server.wait(60)


def run(root: Path, memory: Sequence[str], *options: str, **environment: str) -> tuple[str, str]:
    """ftrun in a container with that root, and with memory file systems at these folders: where its command finds the
    run dir, and what ftrun says."""
    script = (
        f"mount -t proc proc {root}/proc; for name in null urandom; do mount -B /dev/$name {root}/dev/$name; done\n"
    )
    script += "".join(f"mount -t tmpfs tmpfs {root}{name}\n" for name in memory)
    done = subprocess.run(
        [*MOUNTS, "sh", "-ec", f'{script}exec chroot {root} "$@"', "sh", *FTRUN, *options, *COMMAND],
        env={k: v for k, v in os.environ.items() if not k.startswith(("FTRUN_", "MA_", "TMPDIR"))} | environment,
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 7, done.stderr
    return done.stdout.strip(), without_start_line(done.stderr)


def test_memory_file_system_is_local(root: Path) -> None:
    assert os.path.dirname(run(root, ["/dev/shm"])[0]) == "/dev/shm"
    assert os.path.dirname(run(root, ["/dev/shm"], TMPDIR="/var/tmp")[0]) == "/dev/shm"  # and not to be waited for
    assert os.path.dirname(run(root, ["/run", "/var/tmp"], TMPDIR="/run")[0]) == "/run"


def test_run_dir_on_the_root_is_a_copy(root: Path, tmp_path: Path) -> None:
    work, said = run(root, ["/dev/shm"], "--run-dir", f"{tmp_path}/run")
    assert os.path.dirname(work) == "/dev/shm"
    assert f"{tmp_path}/run is on a network disk (fuse" in said
    assert (tmp_path / "run" / "events.jsonl").read_text().count('"ended"') == 1


def test_root_is_used_where_there_is_nothing_else(root: Path, tmp_path: Path) -> None:
    given = f"{tmp_path}/run"
    work, said = run(root, ["/mnt"], "--run-dir", given, XDG_RUNTIME_DIR="/mnt")
    assert work == given
    assert said.startswith(f"[ftrun] {given} is on the root file system (fuse")
    assert said.count("\n") == 1
    temp = tmp_path / "temp"
    temp.mkdir()
    work, said = run(root, ["/mnt"], TMPDIR=str(temp), XDG_RUNTIME_DIR="/mnt")
    assert os.path.dirname(work) == str(temp)
    assert said.count("\n") == 1
    work, said = run(root, ["/mnt"], "--log-dir", f"{tmp_path}/logs", XDG_RUNTIME_DIR="/mnt")
    assert os.path.dirname(work) == f"{tmp_path}/logs"
    assert (Path(work) / "output.log").read_text() == f"{work}\n"
