"""The choice of the run dir."""

import fcntl
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftrun.host import procfs
from ftrun.records.files import liveness, rundir
from ftrun.records.files.rundir import NoRunDir, find
from support.made_run import MadeRun

NAME = f"ftrun-{os.getuid()}-1-"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("FTRUN_RUN_DIR", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(rundir, "running", dict)  # another test may run an ftrun
    return tmp_path


@pytest.fixture
def running(temporary: Path) -> Iterator[MadeRun]:
    run = MadeRun(temporary / f"{NAME}running")
    run.write()
    yield run
    run.close()


def finished(folder: Path) -> str:
    """A run dir whose ftrun is gone."""
    folder.mkdir(parents=True)
    (folder / "events.jsonl").touch()
    return str(folder)


def error(given: str | None = None) -> str:
    with pytest.raises(NoRunDir) as found:
        find(given)
    assert "\n" not in str(found.value)
    return str(found.value)


def test_a_given_run_dir_comes_first(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = finished(temporary / "one"), finished(temporary / "other")
    monkeypatch.setenv("FTRUN_RUN_DIR", one)
    assert find(other) == other
    assert find(None) == one


def test_the_only_running_one_is_chosen(temporary: Path, running: MadeRun) -> None:
    finished(temporary / f"{NAME}gone")
    assert find(None) == str(running.folder)


def test_the_only_finished_one_is_chosen(temporary: Path) -> None:
    gone = finished(temporary / f"{NAME}gone")
    finished(temporary / "ftrun-named-otherwise")
    assert find(None) == gone


def test_of_several_finished_ones_none_is_chosen(temporary: Path) -> None:
    for number in range(7):
        os.utime(finished(temporary / f"{NAME}{number}"), (number, number))
    message = error()
    assert message.startswith("no ftrun is running, and 7 old run dirs exist: name one with --run-dir (")
    assert message.count(NAME) == 5
    assert message.endswith(", ...; `ftctl list` shows all)")
    assert f"({temporary}/{NAME}6, " in message, "the newest first"


def test_of_several_running_ones_none_is_chosen(temporary: Path, running: MadeRun) -> None:
    other = MadeRun(temporary / f"{NAME}another")
    other.write()
    try:
        message = error()
    finally:
        other.close()
    assert message.startswith("2 ftruns are running: name one with --run-dir (")
    assert str(running.folder) in message


def test_without_any_run_dir_the_error_says_so(temporary: Path) -> None:
    assert error() == f"no run dir in {temporary}, and no ftrun is running; name one with --run-dir"


@pytest.mark.skipif(os.getuid() != 0, reason="for root")
def test_root_sees_those_of_all_users(temporary: Path) -> None:
    other = finished(temporary / "ftrun-4711-1-abc")
    assert find(None) == other


def test_other_users_see_only_their_own(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finished(temporary / "ftrun-4711-1-abc")
    monkeypatch.setattr(os, "getuid", lambda: 4712)
    assert "no run dir" in error()


def test_a_running_one_in_another_folder_is_found_by_its_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the ENTRYPOINT names the run dir, and `docker exec` knows nothing of it."""
    monkeypatch.delenv("FTRUN_RUN_DIR", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "empty"))
    elsewhere = finished(tmp_path / "elsewhere")
    assert os.path.realpath(elsewhere) not in rundir.running()
    with open(f"{elsewhere}/events.jsonl") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        assert rundir.running()[os.path.realpath(elsewhere)] == os.getpid()


def test_a_running_one_with_the_same_temp_folder_comes_first(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    near, far = finished(temporary / "near"), finished(temporary / "far")
    monkeypatch.setattr(rundir, "running", lambda: {near: 1, far: 2})
    monkeypatch.setattr(rundir, "_temp_folder", {1: str(temporary), 2: "/elsewhere"}.get)
    assert find(None) == near
    monkeypatch.setattr(rundir, "_temp_folder", {}.get)
    assert error().startswith("2 ftruns are running")


def test_of_a_log_dir_the_newest_is_chosen(temporary: Path) -> None:
    for name in ("20260101_000000", "20260102_000000", "20251231_000000"):
        finished(temporary / "logs" / f"{name}_restartable")
    (temporary / "logs" / "20260103_000000_restartable").mkdir()
    assert find(str(temporary / "logs")) == f"{temporary}/logs/20260102_000000_restartable"


@pytest.mark.parametrize(
    ("done", "meant"),
    [((False, False), "20260101_000000"), ((True, False), "20260102_000000"), ((True, True), "20260102_000000")],
)
def test_of_phases_the_running_one_is_chosen(temporary: Path, done: tuple[bool, bool], meant: str) -> None:
    names = [f"{name}_restartable" for name in ("20260101_000000", "20260102_000000")]
    phases = [
        {"name": name, "run_dir": name if not index or done[0] else "", "succeeded": over}
        for index, (name, over) in enumerate(zip(names, done, strict=True))
    ]
    for name in (*names, "20260109_000000_restartable"):
        finished(temporary / "run" / name)
    (temporary / "run" / "phases.json").write_text(json.dumps({"schema": 1, "phases": phases}))
    assert find(str(temporary / "run")) == f"{temporary}/run/{meant}_restartable"


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"phases": 7}', '{"phases": [{"run_dir": "../..", "succeeded": false}]}']
)
def test_a_malformed_phases_file_is_ignored(temporary: Path, content: str) -> None:
    started = finished(temporary / "run" / "20260101_000000_restartable")
    (temporary / "run" / "phases.json").write_text(content)
    assert find(str(temporary / "run")) == started


def test_errors_are_one_line(temporary: Path) -> None:
    (temporary / "empty").mkdir()
    (temporary / "file").touch()
    assert error(str(temporary / "none")) == f"{temporary}/none: no such folder"
    assert error(str(temporary / "empty")) == f"{temporary}/empty: not a run dir (it has no events.jsonl)"
    assert error(str(temporary / "file")).startswith(f"{temporary}/file: ")
    assert re.search("null|embedded", error("a\0b"))


def test_an_incomplete_list_of_locks_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's, where others take and give back locks while it is read."""
    lines = [b"1: FLOCK  ADVISORY  WRITE %d fe:00:%d 0 EOF\n" % (pid, pid) for pid in (7, 8)]
    readings = iter([lines[0], lines[1], b""])
    monkeypatch.setattr(procfs, "read", lambda path, limit: next(readings))
    assert sorted(words[4] for words in liveness.held_locks()) == [b"7", b"8"]
