"""The reader of the tracebacks of dead Python processes: bounded, and safe for any content."""

import os
import random
from pathlib import Path

import pytest

from ftrun.core.rules.crash_causes import ExceptionRecord
from ftrun.host import beat_folders, beats, tracebacks
from ftrun_hooks import _last

COMPLETE = (
    "pid 7\nat 2500000000\nstarted 1500000000\nparents 6 5 1\nrank 3\nprogram train.py\n"
    "kinds ValueError Exception BaseException\nmessage bad batch\nmore of 3\n"
    "where lib.py:9 in g\nown train.py:88 in f\nframes train.py:f|lib.py:g\nsource x = 1 / 0\n"
    "chain cause\nroot-kinds KeyError LookupError\nroot-message 1\nend\n"
)


def put(folder: Path, content: str | bytes = COMPLETE, at: int = 2_500_000_000, pid: int = 7) -> Path:
    path = folder / f"raised-{at:020}-{pid}"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def read(folder: Path, since: float = 0.0) -> list[tuple[int, str]]:
    return [(found.pid, found.thrown.message) for found in tracebacks.read(str(folder), since)]


def test_a_complete_traceback_is_read_unless_it_is_of_an_earlier_attempt(tmp_path: Path) -> None:
    put(tmp_path)
    assert read(tmp_path, 2.6) == []
    (found,) = tracebacks.read(str(tmp_path), 2.5)
    assert found.thrown == ExceptionRecord(
        ("ValueError", "Exception", "BaseException"),
        "bad batch",
        "of 3",
        "lib.py:9 in g",
        "train.py:88 in f",
        ("train.py:f", "lib.py:g"),
        "x = 1 / 0",
    )
    assert (found.pid, found.parents, found.started, found.at, found.rank) == (7, (6, 5, 1), 1.5, 2.5, 3)
    assert (found.program, found.root, found.explicit_cause) == (
        "train.py",
        ExceptionRecord(("KeyError", "LookupError"), "1"),
        True,
    )


MALFORMED = {
    "empty": "",
    "torn": COMPLETE[:60],
    "without an end": COMPLETE.replace("end\n", ""),
    "without a pid": COMPLETE.replace("pid 7\n", ""),
    "no number": COMPLETE.replace("pid 7", "pid seven"),
    "no number of ours": COMPLETE.replace("pid 7", "pid ٧"),
    "a huge number": COMPLETE.replace("at 2", "at 2" + "0" * 5000),
    "of nothing": COMPLETE.replace("kinds ValueError Exception BaseException\n", ""),
    "too long": COMPLETE.replace("bad batch", "x" * _last.SIZE),
    "no text": b"\xff\0" * 1000,
}


@pytest.mark.parametrize("content", MALFORMED.values(), ids=MALFORMED.keys())
def test_incomplete_and_malformed_files_are_skipped(tmp_path: Path, content: str | bytes) -> None:
    put(tmp_path, content)
    put(tmp_path, COMPLETE, 3_000_000_000, 8)
    assert read(tmp_path) == [(7, "bad batch")]


def test_random_content_raises_no_error(tmp_path: Path) -> None:
    chance = random.Random(5)
    for _ in range(100):
        content = bytearray(COMPLETE.encode())
        for _ in range(chance.randrange(1, 9)):
            content[chance.randrange(len(content))] = chance.randrange(256)
        put(tmp_path, bytes(content))
        assert len(read(tmp_path)) <= 1


def test_anything_but_a_regular_file_is_skipped(tmp_path: Path) -> None:
    path = put(tmp_path)
    away = path.rename(tmp_path / "elsewhere")
    path.symlink_to(away)
    os.mkfifo(tmp_path / f"raised-{1:020}-1")
    (tmp_path / f"raised-{2:020}-2").mkdir()
    assert read(tmp_path) == []


@pytest.mark.parametrize("what", ["gone", "a link", "a file"])
def test_a_missing_folder_is_empty(tmp_path: Path, what: str) -> None:
    put(tmp_path)
    folder = tmp_path / "beats"
    if what == "a link":
        folder.symlink_to(tmp_path)
    if what == "a file":
        folder.write_text("")
    assert read(folder) == []
    assert len(read(tmp_path)) == 1


def test_of_many_tracebacks_the_first_and_the_last_are_read(tmp_path: Path) -> None:
    for number in range(100):
        put(tmp_path, COMPLETE.replace("pid 7", f"pid {number}"), number, number)
    assert [pid for pid, _ in read(tmp_path)] == [*range(32), *range(68, 100)]


def test_a_restart_removes_them() -> None:
    made = beats.create()
    try:
        before = sorted(os.listdir(made.path))
        put(Path(made.path))
        put(Path(made.path)).rename(f"{made.path}/.raised-1-1")
        put(Path(made.path))
        made.reset()
        assert sorted(os.listdir(made.path)) == before
    finally:
        beat_folders.remove(made.path)
