"""The beat folder of a killed ftrun is removed by the next one of the same user, and no other folder is."""

import fcntl
import mmap
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ftrun.host import beat_folders, beats
from ftrun_hooks import layout as at
from support.runs import HOUSE, PID1, Run, Runs, need_pid1, patched, python, wait_for

SHOW = "import os, time\nprint(os.environ['FTRUN_BEAT_DIR'], flush=True)\n"


def beat_folder(run: Run) -> Path:
    return Path(wait_for(lambda: run.stdout.splitlines(), "the beat folder")[0])


def another(runs: Runs, **more: object) -> None:
    """Run one more ftrun, with a run dir of its own, that does not wait before it removes any folders."""
    program = patched("from ftrun.pid1.clients import base; base.SETTLED = 0")
    run_dir = runs.folder / f"another-{len(runs.started)}"
    assert runs.run("sleep", "0.5", run_dir=run_dir, program=program, **more).wait() == 0


def assert_removed_by_another(runs: Runs, folder: Path, **more: object) -> None:
    """A single one may reach its time limit early on a busy machine."""

    def gone() -> bool:
        another(runs, **more)
        return not folder.exists()

    wait_for(gone, f"{folder} is removed")


# --- of real runs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", [(), PID1], ids=["beside", "in PID namespaces"])
def test_the_folder_of_a_killed_ftrun_is_removed_and_that_of_a_living_one_stays(
    runs: Runs, prefix: tuple[str, ...]
) -> None:
    if prefix:
        need_pid1()
    killed = runs.start(*python(SHOW + "time.sleep(1000)"), prefix=prefix)
    living = runs.start(*python(SHOW + "time.sleep(1000)"), prefix=prefix, run_dir=runs.folder / "living")
    stale, used = beat_folder(killed), beat_folder(living)
    assert (stale / beat_folders.LOCK).exists()
    killed.process.send_signal(signal.SIGKILL)
    killed.process.wait()
    assert_removed_by_another(runs, stale, prefix=prefix)
    assert (used / at.BEATS).exists()
    living.process.send_signal(signal.SIGKILL)
    living.process.wait()
    assert_removed_by_another(runs, used, prefix=prefix)


# --- folders that stay ------------------------------------------------------------------------------------------------


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in the memory file system that no other ftrun uses."""
    folder = Path(tempfile.mkdtemp(prefix="ft-memory-", dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beat_folders, "MAX_SECONDS", 60.0)


def stale(memory: Path, name: str = "stale") -> Path:
    """A folder as a killed ftrun leaves it."""
    folder = memory / f"{beat_folders.PREFIX}{name}"
    folder.mkdir(0o700)
    made = beats.Beats(str(folder))
    held = os.dup(made.bell)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(beats, "remove", lambda path: None)
        made.close()
    os.close(held)
    assert (folder / at.PYTHON / "sitecustomize.py").is_symlink()
    return folder


def remove_stale(memory: Path) -> None:
    beat_folders.remove_stale(f"{memory}/{beat_folders.PREFIX}ours")


def test_a_stale_folder_is_removed_with_all_that_is_in_it(memory: Path) -> None:
    folder = stale(memory)
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "raised-1-2").write_text("text")
    (folder / "link").symlink_to(memory)
    remove_stale(memory)
    assert os.listdir(memory) == []


def test_own_folder_and_other_names_are_kept(memory: Path) -> None:
    ours = stale(memory, "ours")
    stale(memory).rename(memory / "someone")
    remove_stale(memory)
    assert sorted(os.listdir(memory)) == [ours.name, "someone"]


def without_lock(folder: Path) -> None:
    (folder / beat_folders.LOCK).unlink()


def lock_is_a_link(folder: Path) -> None:
    (folder / beat_folders.LOCK).rename(folder / "real")
    (folder / beat_folders.LOCK).symlink_to("real")


def lock_is_a_pipe(folder: Path) -> None:
    (folder / beat_folders.LOCK).unlink()
    os.mkfifo(folder / beat_folders.LOCK)


def a_link(folder: Path) -> None:
    folder.rename(folder.parent / "real")
    folder.symlink_to("real")


def a_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("")


@pytest.mark.parametrize("change", [without_lock, lock_is_a_link, lock_is_a_pipe, a_link, a_file])
def test_a_folder_without_a_valid_lock_file_is_kept(memory: Path, change: Callable[[Path], None]) -> None:
    folder = stale(memory)
    change(folder)
    before = sorted(memory.rglob("*"))
    remove_stale(memory)
    assert sorted(memory.rglob("*")) == before
    assert os.path.lexists(folder)


def test_a_folder_in_use_stays_until_it_is_released(memory: Path) -> None:
    folder = stale(memory)
    with (folder / beat_folders.LOCK).open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        remove_stale(memory)
        assert (folder / at.BEATS).exists(), "its ftrun is running"
    with (folder / at.BEATS).open("r+b") as file:
        slots = mmap.mmap(file.fileno(), at.FILE_BYTES)
    remove_stale(memory)
    assert (folder / at.BEATS).exists(), "a process can give heartbeats"
    slots.close()
    with (folder / at.BEATS).open("rb"):  # a reader does not count
        remove_stale(memory)
    assert not folder.exists()


def test_after_the_time_limit_the_rest_is_left_to_the_next_ftrun(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = stale(memory)
    for number in range(100):
        (folder / f"file-{number}").touch()
    times = iter(range(10_000))
    with monkeypatch.context() as patch:
        patch.setattr(beat_folders, "MAX_SECONDS", 50.0)  # s, of a clock that advances by one at each call
        patch.setattr("time.monotonic", lambda: float(next(times)))
        remove_stale(memory)
    left = os.listdir(folder)
    assert beat_folders.LOCK in left
    assert 30 < len(left) < 100
    remove_stale(memory)
    assert os.listdir(memory) == []


def test_three_descriptors_are_enough_for_any_depth(memory: Path) -> None:
    """A start that failed since no descriptor was left also left its folder in the memory file system."""
    folder = stale(memory)
    deepest = folder.joinpath(*["nested"] * 100)
    deepest.mkdir(parents=True)
    (deepest / "file").touch()
    (folder / "nested" / "link").symlink_to(memory)
    taken = {int(name) for name in os.listdir("/proc/self/fd")}
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = [number for number in range(max(taken) + 5) if number not in taken]
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[3], limits[1]))
    try:
        beat_folders.remove(str(folder))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert os.listdir(memory) == []


@pytest.mark.parametrize("limit", range(10, 18, 2))
def test_a_start_without_descriptors_leaves_no_folder(runs: Runs, limit: int) -> None:
    before = set(os.listdir("/dev/shm"))
    run = runs.run(*python(""), prefix=("prlimit", f"--nofile={limit}"))
    assert run.wait() in (0, 125), run.log()
    assert "Traceback" not in run.stderr
    mine = f"{beat_folders.PREFIX}{os.getuid()}-{run.process.pid}-"
    assert not [name for name in set(os.listdir("/dev/shm")) - before if name.startswith(mine)]


# --- the lock ---------------------------------------------------------------------------------------------------------


def test_a_recreated_folder_is_locked_again(memory: Path) -> None:
    folder = memory / f"{beat_folders.PREFIX}1"
    folder.mkdir(0o700)
    made = beats.Beats(str(folder))
    shutil.rmtree(folder)
    made.reset()
    remove_stale(memory)
    assert (folder / at.BEATS).exists()
    made.close()
    assert os.listdir(memory) == []


def test_neither_the_command_nor_a_helper_holds_the_lock(runs: Runs) -> None:
    run = runs.start(*python(SHOW + "time.sleep(1000)"))
    folder = beat_folder(run)
    run.until("spawned")
    held = (folder / beat_folders.LOCK).stat().st_ino
    # A child has all descriptors until it is executed.
    wait_for(lambda: {pid for pid in runs.living() if held in inodes(pid)} == {run.pid}, "ftrun to be the only holder")


def inodes(pid: int) -> set[int]:
    found = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            found.add(os.stat(f"/proc/{pid}/fd/{name}").st_ino)
        except OSError:
            pass
    return found


def test_ranks_find_the_compiled_hooks_of_the_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that start at once would compile them all at once."""
    hooks, made = tmp_path / "ftrun_hooks", tmp_path / "python"
    shutil.copytree(HOUSE / "hooks" / "ftrun_hooks", hooks, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(beat_folders, "HOOKS", str(hooks))
    monkeypatch.setattr(beat_folders, "closed_to_others", lambda *given: None)  # pytest's folders are
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    beat_folders.keep_bytecode()
    (compiled,) = (hooks / "auto" / "__pycache__").iterdir()
    before = compiled.read_bytes()
    beat_folders.make_import_folder(str(made))
    linked = made / "__pycache__" / compiled.name

    def verbose() -> str:
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(made)}
        command = [sys.executable, "-v", "-c", ""]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stderr

    assert f"# code object from '{linked}'" in verbose()
    assert linked.is_symlink()
    os.utime(hooks / "auto" / "sitecustomize.py", (1, 1))
    assert f"# code object from '{linked}'" not in verbose()
    assert not linked.is_symlink(), "Python has replaced the link"
    assert compiled.read_bytes() == before
