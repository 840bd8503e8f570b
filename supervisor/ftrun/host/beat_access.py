"""Which other users may write to the beat folder: those that processes of the command's own tree run as.

A command may change its user (gosu, setpriv, su under root).  Such processes import the hooks as anybody can, and ask
for the rest by opening the file REQUEST, which wakes PID 1; it is also looked for without being asked.  Access is given
by POSIX access control lists (acl(5)), a user at a time, so that the folder is never open to everybody.  The folder is
sticky: nobody removes or replaces what is not his own, least of all the folder on PYTHONPATH.
"""

import os
import struct
from collections.abc import Callable, Iterable
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
MOST: Final = 32  # users
PAUSE: Final = 0.5  # s between two looks at the tree, however often somebody asks
UNASKED: Final = (1.0, 10.0)  # s after a start: processes that do not ask, such as a shell that touches the touch file


class Access:
    """`problem`: why processes of some user cannot give beats, in one line; None if all can."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._users: list[int] = []
        self.members: Callable[[], Iterable[Stat]] = tuple
        self.problem: str | None = None
        self.due: float | None = None
        self._looked = float("-inf")
        self._unasked: list[float] = []

    def start_looking(self, now: float) -> None:
        self._unasked = [now + after for after in UNASKED]
        self.due = self._unasked.pop(0)

    def request_received(self, now: float) -> None:
        soon = max(now, self._looked + PAUSE)
        self.due = soon if self.due is None else min(self.due, soon)

    def is_due_again(self, now: float) -> bool:
        """Whether the tree may have changed since it was looked at."""
        return now >= self._looked + PAUSE

    def update(self, now: float) -> bool:
        """Let in the users of the tree that have no access yet; true if that changed anything."""
        self._looked, before = now, (len(self._users), self.problem)
        self.due = self._unasked.pop(0) if self._unasked else None
        found = {user(process.pid) for process in self.members()} - {None, os.geteuid(), *self._users}
        for uid in sorted(uid for uid in found if uid is not None):
            self._let_in(uid)
        return before != (len(self._users), self.problem)

    def _let_in(self, uid: int) -> None:
        closed = closed_to_others(os.path.dirname(self._path), ENTER)
        if closed is not None:
            self._refuse(uid, f"only its owner may enter {closed}")
        elif len(self._users) >= MOST:
            self._refuse(uid, f"more than {MOST} other users run processes of the command")
        else:
            self._users.append(uid)
            try:
                self.grant()
            except OSError as error:
                self._users.remove(uid)
                self._refuse(uid, f"{self._path} takes no access control list ({error.strerror})")

    def _refuse(self, uid: int, why: str) -> None:
        self.problem = (
            f"processes of the command that run as user {uid} cannot give heartbeats: {why}; "
            "the command is not judged by heartbeats that are missing"
        )

    def grant(self) -> None:
        """Give those who were let in their access, to files that were just made too.  OSError."""
        if not self._users:
            return
        for name, rights in ((at.BEATS, READ | WRITE), (at.BELL, WRITE), (at.TOUCH, READ | WRITE)):
            os.setxattr(f"{self._path}/{name}", ACCESS, _acl(READ | WRITE, self._users, rights, 0))
        everything = READ | WRITE | ENTER
        os.setxattr(self._path, ACCESS, _acl(everything, self._users, everything, ENTER))
        # What they put there is for us to read, also where we are not root with all its rights.
        os.setxattr(self._path, DEFAULT, _acl(everything, [os.geteuid()], READ, 0))


def closed_to_others(path: str, rights: int) -> str | None:
    """The first of `path` and the folders above it that does not give everybody these rights (folders: to enter)."""
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
    """The one as whom a process opens files; None for one that is gone."""
    for line in (procfs.read(f"/proc/{pid}/status", 4096, at_once=True) or b"").splitlines():
        if line.startswith(b"Uid:"):
            return int(line.split()[4])
    return None


def _acl(owner: int, users: Iterable[int], rights: int, others: int) -> bytes:
    entries = [(USER_OBJ, owner, NO_ID), *((USER, rights, uid) for uid in sorted(users))]
    entries += [(GROUP_OBJ, others, NO_ID), (MASK, rights | others, NO_ID), (OTHER, others, NO_ID)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
