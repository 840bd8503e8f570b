"""When a match counts: pure.  A match waits from the moment it is made until it has been left alone.

Times are monotonic, in seconds.  inotify says who opens and closes here; what is made by others, or before anybody
listened, is only looked at: two equal looks make it complete.
"""

from enum import Enum, auto
from typing import Final, NamedTuple

SETTLE: Final = 0.5  # a file that was closed and is left alone for so long is complete
PATIENCE: Final = 5.0  # the same while someone has it open again: a reader, or a writer that goes on
FOLDER_SETTLE: Final = 5.0  # the same for a folder, and for all that is in it; at least,
FOLDER_SHARE: Final = 0.25  # and for this share of the time that it took to write: a slow disk is also slow to close
LOOKS: Final = 1.0  # between two looks at what takes long to settle


class What(Enum):
    """What was seen of a match that is not renamed in."""

    MADE = auto()  # here: by open, link, symlink, mkdir
    OPENED = auto()  # for whatever
    WRITTEN = auto()  # closed by one that could write
    READ = auto()  # closed by one that could not
    FOUND = auto()  # by a listing: new, or another inode
    LOST = auto()  # events were lost: whatever we believe of it may be wrong


class Look(NamedTuple):
    """What it is at one instant.  `print` stands for its size and time; of a folder, for those of all in it."""

    ino: int
    print: int
    folder: bool = False


class Wait(NamedTuple):
    """A match that does not count yet.  `due`: when to look at it; None: its maker has it open and will close it."""

    due: float | None
    opens: int = 0
    made: bool = False  # here, and not closed by a writer since
    written: bool = False  # closed by a writer: it needs no second look unless it is opened again
    look: Look | None = None
    began: float = 0.0  # the first look
    since: float = 0.0  # it looks like that


def after(wait: Wait | None, what: What, now: float) -> Wait | None:
    """None: nothing to wait for."""
    if what is What.MADE:
        return Wait(now + SETTLE, made=True)
    if what is What.FOUND:
        return wait or Wait(now)
    if what is What.WRITTEN:
        opens = max(0, wait.opens - 1) if wait else 0
        return Wait(now + (PATIENCE if opens else SETTLE), opens, written=True)
    if wait is None:
        return None
    if what is What.OPENED:  # the first to open what was made is its maker: the kernel tells MADE, then OPENED
        return wait._replace(opens=wait.opens + 1, due=None if wait.made else now + PATIENCE)
    if what is What.READ:
        opens = max(0, wait.opens - 1)
        return wait._replace(opens=opens) if opens else wait._replace(opens=0, due=now + SETTLE)
    return Wait(now + SETTLE)


def closed(wait: Wait) -> bool:
    """By its writer, and nobody has opened it since."""
    return wait.written and not wait.opens


def looked(wait: Wait, look: Look | None, now: float, took: float = 0.0) -> tuple[Wait | None, bool]:
    """The look that was due: what to wait for still, and whether the match counts now.  `took`: seconds that the look
    cost; the next one waits 20 times that."""
    if look is None:
        return None, False
    if closed(wait):
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


def later(wait: Wait, now: float) -> Wait:
    """The disk does not answer; or it seems complete, but somebody has it open for writing, and that we shall hear of
    the close is not sure."""
    return wait._replace(due=now + LOOKS)
