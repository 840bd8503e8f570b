"""Write access to the beat folder for other users: those that processes of the command's own tree run as.

A command may change its user (gosu, setpriv, su under root).  Such processes import the hooks, which everybody can
read, and request the other access by opening the file REQUEST, which wakes PID 1; PID 1 also checks for them without a
request.  Access is granted by POSIX access control lists (acl(5)), one user at a time, so that the folder is never open
to everybody.  The folder is sticky: nobody can remove or replace files of other users, in particular the folder on
PYTHONPATH.
"""

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from ftrun.host import procfs
from ftrun.host.procfs import Stat
from ftrun_hooks import layout as at

FOLDER_MODE: Final = 0o1711
ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
# linux/posix_acl_xattr.h: a version, then entries of tag, permissions and id.
USER_OBJ, USER, GROUP_OBJ, MASK, OTHER = 0x01, 0x02, 0x04, 0x10, 0x20
NO_ID: Final = 0xFFFFFFFF
READ, WRITE, ENTER = 4, 2, 1
MAX_USERS: Final = 32
PAUSE: Final = 0.5  # s between two reads of the tree, however many requests there are
# s after a start: for processes that send no request, such as a shell that touches the touch file
CHECKS_AFTER_START: Final = (1.0, 10.0)


class Access:
    """`problem`: why processes of some user cannot give heartbeats, in one line; None if all can.  `due`: when to call
    `update` next.  `members` lists the processes of the command's tree."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._users: list[int] = []
        self.members: Callable[[], Iterable[Stat]] = tuple
        self.problem: str | None = None
        self.due: float | None = None
        self._updated_at = float("-inf")
        self._scheduled_checks: list[float] = []

    def start_looking(self, now: float) -> None:
        """A new attempt has started: check for other users soon, also without a request."""
        self._scheduled_checks = [now + after for after in CHECKS_AFTER_START]
        self.due = self._scheduled_checks.pop(0)

    def request_received(self, now: float) -> None:
        """A process opened REQUEST: check for other users as soon as `PAUSE` permits."""
        earliest = max(now, self._updated_at + PAUSE)
        self.due = earliest if self.due is None else min(self.due, earliest)

    def is_due_again(self, now: float) -> bool:
        """Return whether the tree may have changed since the last `update`."""
        return now >= self._updated_at + PAUSE

    def update(self, now: float) -> bool:
        """Grant access to users of the tree that do not have it yet; return whether anything changed."""
        self._updated_at, before = now, (len(self._users), self.problem)
        self.due = self._scheduled_checks.pop(0) if self._scheduled_checks else None
        users = {user(process.pid) for process in self.members()} - {None, os.geteuid(), *self._users}
        for uid in sorted(uid for uid in users if uid is not None):
            self._admit(uid)
        return before != (len(self._users), self.problem)

    def _admit(self, uid: int) -> None:
        closed = closed_to_others(os.path.dirname(self._path), ENTER)
        if closed is not None:
            self._refuse(uid, f"only its owner may enter {closed}")
        elif len(self._users) >= MAX_USERS:
            self._refuse(uid, f"more than {MAX_USERS} other users run processes of the command")
        else:
            self._users.append(uid)
            try:
                self.grant()
            except OSError as error:
                self._users.remove(uid)
                self._refuse(uid, f"{self._path} does not support access control lists ({error.strerror})")

    def _refuse(self, uid: int, why: str) -> None:
        self.problem = (
            f"processes of the command that run as user {uid} cannot give heartbeats: {why}; "
            "missing heartbeats are not treated as a hang"
        )

    def grant(self) -> None:
        """Apply the access of all admitted users, also to files that were just created.  Raises OSError."""
        if not self._users:
            return
        for name, rights in ((at.BEATS, READ | WRITE), (at.BELL, WRITE), (at.TOUCH, READ | WRITE)):
            os.setxattr(f"{self._path}/{name}", ACCESS, _acl(READ | WRITE, self._users, rights, 0))
        with suppress(FileNotFoundError):
            os.setxattr(f"{self._path}/{at.RANKS}", ACCESS, _acl(READ | WRITE, self._users, READ | WRITE, 0))
        everything = READ | WRITE | ENTER
        os.setxattr(self._path, ACCESS, _acl(everything, self._users, everything, ENTER))
        # ftrun can read the files that they create there, even if it is not a fully privileged root.
        os.setxattr(self._path, DEFAULT, _acl(everything, [os.geteuid()], READ, 0))


def closed_to_others(path: str, rights: int) -> str | None:
    """Return the first of `path` and its parent folders that does not give everybody these rights (for folders: to
    enter); None if all do."""
    while True:
        try:
            mode = os.stat(path).st_mode
        except OSError:
            return path
        if mode & rights != rights:
            return path
        if path in ("/", ""):
            return None
        path, rights = os.path.dirname(path), ENTER


def user(pid: int) -> int | None:
    """Return the user as whom a process opens files; None if the process is gone."""
    for line in (procfs.read(f"/proc/{pid}/status", 4096, at_once=True) or b"").splitlines():
        if line.startswith(b"Uid:"):
            return int(line.split()[4])
    return None


def _acl(owner: int, users: Iterable[int], rights: int, others: int) -> bytes:
    import struct  # only where the command changes its user

    entries = [(USER_OBJ, owner, NO_ID), *((USER, rights, uid) for uid in sorted(users))]
    entries += [(GROUP_OBJ, others, NO_ID), (MASK, rights | others, NO_ID), (OTHER, others, NO_ID)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
