"""The program that reads and takes the places of a lease in a shared folder (core/group/lease.py), for the messenger,
which must not touch a disk that may hang: `FOLDER RANK SECONDS`, the last between two looks.  It may block there for as
long as the disk does.

stdin: a place to take, as JSON, one a line.  stdout: `{"seen": PLACE}`, a newer one; `{"looked": true}`, after an
attempt that failed: the newest still is; `{"taken": NUMBER}`; `{"failed": WHY}`; and once `{"proved": true}`, when it
has written a file of its own.

A place is a file that is linked to its number when it is complete.  Only the storage decides whether that succeeds, and
the number of names of the file tells whether it did, also where the reply was lost.  Old places are removed in their
order, so that a reader who sees an outdated newest place in a cache finds that the place before it is gone.  Where a
mount is lost, its mount point is an empty folder, so a folder counts only while the state dir around it is the same, or
has the newest place.
"""

import errno
import json
import os
import select
from collections.abc import Sequence
from typing import Any, Final

KEPT: Final = 64  # places
LIMIT: Final = 32768  # bytes of a place
FLAGS: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY


class Clerk:
    def __init__(self, folder: str, rank: str) -> None:
        self._folder, self._mark = folder, f"member-{rank}"
        self._newest, self._proved = 0, False
        self._state_dir: tuple[int, int] | None = None  # its identity: device and inode
        self.sees_newest = False  # the place that was the newest before still is

    def look(self) -> dict[str, Any] | None:
        """The newest place, if it is newer than the last one that was seen.  OSError where another folder is in the
        place of the shared one."""
        self._enter()
        if not self._proved:
            self._write(self._mark, b"")
            self._proved = True
            say({"proved": True})
        number = max(self._numbers(), default=0)
        self.sees_newest = 0 < number == self._newest
        if number <= self._newest or (found := self._read(number)) is None:
            return None
        self._newest = number
        return found

    def _enter(self) -> None:
        if self._state_dir is None:
            os.makedirs(self._folder, 0o700, exist_ok=True)
        now = self._identity()
        if self._state_dir not in (None, now) and not os.path.lexists(self._path(str(self._newest))):
            raise OSError(errno.ESTALE, "another folder is in the place of the shared one")
        self._state_dir = now
        os.makedirs(self._folder, 0o700, exist_ok=True)  # somebody may have removed it

    def _identity(self) -> tuple[int, int]:
        found = os.stat(os.path.dirname(self._folder))
        return found.st_dev, found.st_ino

    def take(self, place: dict[str, Any]) -> dict[str, Any]:
        self._enter()
        number = int(place["number"])
        fresh = f"{self._mark}.new"
        self._write(fresh, json.dumps(place).encode())
        why, won = "", True
        try:
            os.link(self._path(fresh), self._path(str(number)))
        except OSError as error:
            why, won = str(error.strerror), os.stat(self._path(fresh)).st_nlink > 1
        os.unlink(self._path(fresh))
        if not won:
            found = self._read(number)
            if found is None:
                return {"failed": why}
            if found.get("life") == place["life"]:
                return {"taken": number}  # by an earlier attempt, whose reply was lost
            self._newest = max(self._newest, number)
            return {"seen": found}
        if number > 1 and not self._exists(number - 1, fresh) and not self._was_emptied(number):
            os.unlink(self._path(str(number)))
            return {"failed": "a newer place is taken, or this is not the folder of the group"}
        self._newest = max(self._newest, number)
        for old in sorted(self._numbers()):
            if old > number - KEPT:
                break
            os.unlink(self._path(str(old)))
        return {"taken": number}

    def _was_emptied(self, number: int) -> bool:
        """Whether the place before this one, which was seen here, is gone since somebody has emptied the folder."""
        beyond = max(self._numbers()) > number
        return not beyond and self._newest >= number - 1 and self._identity() == self._state_dir

    def _numbers(self) -> list[int]:
        return [int(name) for name in os.listdir(self._folder) if name.isascii() and name.isdigit()]

    def _exists(self, number: int, fresh: str) -> bool:
        """Whether this place exists, as the storage has it and not a cache: it is linked to the name `fresh` for
        that."""
        try:
            os.link(self._path(str(number)), self._path(fresh))
        except FileNotFoundError:
            return False
        os.unlink(self._path(fresh))
        return True

    def _read(self, number: int) -> dict[str, Any] | None:
        try:
            fd = os.open(self._path(str(number)), os.O_RDONLY | FLAGS)
        except FileNotFoundError:
            return None
        try:
            found = json.loads(os.read(fd, LIMIT))
        except ValueError:
            return None
        finally:
            os.close(fd)
        return found if isinstance(found, dict) and found.get("number") == number else None

    def _write(self, name: str, content: bytes) -> None:
        if os.path.lexists(self._path(name)):
            os.unlink(self._path(name))
        fd = os.open(self._path(name), os.O_WRONLY | os.O_CREAT | os.O_EXCL | FLAGS, 0o600)
        try:
            if os.write(fd, content) < len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(fd)
        finally:
            os.close(fd)

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}"


def say(what: dict[str, Any]) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")


def main(argv: Sequence[str]) -> int:
    clerk, left, why, failed = Clerk(*argv[:2]), b"", "", False
    while True:
        try:
            if (found := clerk.look()) is not None:
                say({"seen": found})
            elif failed and clerk.sees_newest:
                say({"looked": True})
            why, failed = "", False
        except OSError as error:
            if error.strerror != why:
                why = str(error.strerror)
                say({"failed": why})
        if not select.select([0], [], [], float(argv[2]))[0]:
            continue
        content = os.read(0, 65536)
        if not content:
            return 0
        *lines, left = (left + content).split(b"\n")
        for line in lines[-1:]:
            try:
                say(clerk.take(json.loads(line)))
            except (OSError, ValueError) as error:
                failed = True
                say({"failed": str(error)})
