"""What the mirror and the state store rely on, on a disk to which other programs write."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

from ftrun.helpers import shared_folder
from ftrun.helpers.shared_folder import Folder, ForeignContent, NoLocks, read, try_lock


def test_only_a_regular_file_within_the_limit_is_read(tmp_path: Path) -> None:
    file, link, pipe = tmp_path / "file", tmp_path / "link", tmp_path / "pipe"
    assert read(str(file), 4) is None
    file.write_bytes(b"1234")
    assert read(str(file), 4) == b"1234"
    link.symlink_to(file)
    os.mkfifo(pipe)
    for path, limit in ((file, 3), (link, 4), (pipe, 4)):
        with pytest.raises(ForeignContent):
            read(str(path), limit)


def test_a_disk_without_locks_is_not_a_lock_that_another_process_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "lock")

    def refuse(number: int) -> None:
        def lockf(*_: object) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(fcntl, "lockf", lockf)

    held = try_lock(path)
    assert held is not None
    os.close(held)
    for number in (errno.EACCES, errno.EAGAIN):
        refuse(number)
        assert try_lock(path) is None
    refuse(errno.ENOLCK)
    with pytest.raises(NoLocks, match="No locks available"):
        try_lock(path)


def test_two_machines_whose_locks_do_not_meet_write_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on NFS mounted with `nolock`, and on FUSE: each machine gets the lock, and the other is in the middle."""
    problems = list[str]()
    name, fsync, machine = "history.json", os.fsync, os.uname()
    monkeypatch.setattr(shared_folder, "try_lock", lambda *_: os.open("/dev/null", os.O_RDONLY))

    def write(node: str, content: bytes) -> None:
        monkeypatch.setattr(os, "uname", lambda: os.uname_result((machine.sysname, node, *machine[2:])))
        folder = Folder(str(tmp_path), problems.append)
        with folder.locked("lock"):
            folder.write(name, content)

    def between(fd: int) -> None:
        monkeypatch.setattr(os, "fsync", fsync)
        write("other", b"of the other machine")
        fsync(fd)

    monkeypatch.setattr(os, "fsync", between)
    write("one", b"of one machine")
    assert (tmp_path / name).read_bytes() == b"of one machine"
    assert [one.name for one in tmp_path.iterdir()] == [name]
    assert not problems
