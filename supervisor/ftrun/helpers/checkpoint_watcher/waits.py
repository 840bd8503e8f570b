"""When a match counts as saved.  Pure.  A match waits from its creation until nothing has changed it for a while.

Times are monotonic, in seconds.  inotify reports opens and closes on this machine; a match that another machine wrote,
or that existed before the watch began, is only examined: it is complete when two looks are equal.
"""

from enum import Enum, auto
from typing import Final, NamedTuple

SETTLE: Final = 0.5  # a closed file that is not opened again for so long is complete
PATIENCE: Final = 5.0  # the same while a process has it open again: a reader, or a writer that continues
FOLDER_SETTLE: Final = 5.0  # the same for a folder and its content, at least,
FOLDER_SHARE: Final = 0.25  # and this share of the time that writing took: a slow disk also closes slowly
LOOKS: Final = 1.0  # between two looks at a match that is slow to settle


class FileEvent(Enum):
    """What happened to a match that was not renamed into place."""

    CREATED = auto()  # on this machine: by open, link, symlink, mkdir
    OPENED = auto()  # for reading or writing
    WRITTEN = auto()  # closed by a process that could write
    READ = auto()  # closed by a process that could only read
    FOUND = auto()  # found by a listing: new, or with another inode
    LOST = auto()  # events were lost: the known state may be wrong


class Look(NamedTuple):
    """A match at one instant.  `print`: a number for its size and time; for a folder, for those of all its content."""

    ino: int
    print: int
    folder: bool = False


class Wait(NamedTuple):
    """A match that does not count yet.  `due`: when to look at it; None: its creator has it open and will close it."""

    due: float | None
    opens: int = 0
    made: bool = False  # on this machine, and not closed by a writer since
    written: bool = False  # closed by a writer: no second look is needed unless it is opened again
    look: Look | None = None
    began: float = 0.0  # the first look
    since: float = 0.0  # since when it has had this state


def after(wait: Wait | None, what: FileEvent, now: float) -> Wait | None:
    """The wait after an event; None: there is nothing to wait for."""
    if what is FileEvent.CREATED:
        return Wait(now + SETTLE, made=True)
    if what is FileEvent.FOUND:
        return wait or Wait(now)
    if what is FileEvent.WRITTEN:
        opens = max(0, wait.opens - 1) if wait else 0
        return Wait(now + (PATIENCE if opens else SETTLE), opens, written=True)
    if wait is None:
        return None
    if what is FileEvent.OPENED:  # its creator opens it first: the kernel reports CREATED, then OPENED
        return wait._replace(opens=wait.opens + 1, due=None if wait.made else now + PATIENCE)
    if what is FileEvent.READ:
        opens = max(0, wait.opens - 1)
        return wait._replace(opens=opens) if opens else wait._replace(opens=0, due=now + SETTLE)
    return Wait(now + SETTLE)


def is_closed(wait: Wait) -> bool:
    """Whether its writer closed it and no process has opened it since."""
    return wait.written and not wait.opens


def after_look(wait: Wait, look: Look | None, now: float, took: float = 0.0) -> tuple[Wait | None, bool]:
    """The result of a look: the remaining wait, and whether the match counts now.  `took`: the seconds that the look
    took; the next one is at least 20 times that later."""
    if look is None:
        return None, False
    if is_closed(wait):
        return None, True
    began = now if wait.look is None else wait.began
    since = wait.since if look == wait.look else now
    if look.folder:
        rest = max(FOLDER_SETTLE, FOLDER_SHARE * (since - began))
    else:
        rest = PATIENCE if wait.opens else SETTLE
    if now >= since + rest:
        return None, True
    due = max(min(since + rest, now + LOOKS), now + 20 * took)
    return wait._replace(due=due, look=look, began=began, since=since), False


def postponed(wait: Wait, now: float) -> Wait:
    """The wait when the disk does not answer, or when the match seems complete but is open for writing and its close
    may not be reported."""
    return wait._replace(due=now + LOOKS)
