"""What the mirror and the state store rely on, on a disk to which other programs write."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

from ftrun.helpers.shared_folder import ForeignContent, NoLocks, read, try_lock


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
