"""A run of the tests leaves nothing outside its own folders, also where a test or a worker is killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ftrun_hooks import layout
from support.left_behind import HOUSE, beat_folders
from support.runs import PID1, Runs, children, need_pid1, wait_for


@pytest.fixture
def since() -> float:
    return time.time() - 1


@pytest.mark.parametrize("within", [False, pytest.param(True, marks=pytest.mark.pid1)])
def test_the_beat_folder_of_a_killed_ftrun_is_seen_and_removed_by_the_test(
    tmp_path: Path, since: float, within: bool
) -> None:
    if within:
        need_pid1()
    runs = Runs(tmp_path)
    run = runs.spawned("sleep", "600", prefix=PID1 if within else ())
    folder = Path(wait_for(lambda: run.state["beat_dir"], "its beat folder"))
    assert folder.exists()
    assert folder not in beat_folders(since)
    # While a process has the beat file open for writing, the ftruns of other tests do not remove the folder.
    with open(folder / layout.BEATS, "r+b"):
        os.kill(children(run.pid)[0] if within else run.pid, signal.SIGKILL)
        run.wait()
        wait_for(lambda: folder in beat_folders(since), "no other ftrun looks at it at this moment")
        assert folder not in beat_folders(time.time() + 1)
    runs.end()
    wait_for(lambda: not folder.exists(), "its removal, unless another ftrun is about to do it")


KILLED = """
import os, tempfile
def test_of_a_worker_that_is_killed():
    tempfile.mkdtemp(prefix="torchelastic_")
    os.kill(os.getpid(), 9)
"""


@pytest.mark.slow
def test_the_temporary_folder_of_a_killed_worker_is_removed(tmp_path: Path) -> None:
    temporary, file = tmp_path / "tmp", tmp_path / "test_killed.py"
    temporary.mkdir()
    file.write_text(KILLED)
    words = ["-m", "pytest", "-n", "1", "--max-worker-restart", "0", "-p", "conftest", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, *words, "-c", str(HOUSE / "pyproject.toml"), "--rootdir", str(tmp_path), str(file)],
        cwd=tmp_path,
        env=os.environ | {"TMPDIR": str(temporary), "PYTHONPATH": str(HOUSE / "tests")},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert "crashed" in done.stdout, done.stdout + done.stderr
    assert [path.name for path in temporary.iterdir() if not path.name.startswith("pytest-of-")] == []
