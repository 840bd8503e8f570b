"""The one slot of the beat file that this process may write: mapped, claimed, and given up at a fork."""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
from _thread import get_ident
from time import monotonic_ns

from . import layout as at
from ._silences import Silences

TRIES = 64  # slots that a claim looks at; so many processes would have to claim one rank, or clash


class Slot:
    """`words` is the claimed slot, or None.  `settled` tells that a claim was tried: it is tried once a process.

    `main` is the main thread, `mover` the one whose steps advance.  `step`, `moved_at` and `credit` are those words:
    beats read them faster than the mapped ones.  `long` silences wait to be digested when no movements are `left` of
    their batch.
    """

    __slots__ = (
        "credit",
        "digester",
        "folder",
        "header",
        "left",
        "lock",
        "long",
        "main",
        "mark",
        "moved_at",
        "mover",
        "rank",
        "settled",
        "step",
        "words",
    )

    def __init__(self) -> None:
        main = threading.main_thread().ident
        self._unclaimed(get_ident() if main is None else main)

    def _unclaimed(self, main: int) -> None:
        self.words: memoryview | None = None
        self.header: memoryview | None = None
        self.settled = False
        self.step = self.moved_at = self.credit = 0
        self.long: list[int] = []
        self.digester = Silences()
        self.left = self.digester.batch
        self.folder = ""
        self.rank = 0
        self.mark = "0"  # in the names of its files
        self.main = self.mover = main
        # Re-entrant, because a signal handler may call a hook while its own thread holds the lock.
        self.lock = threading.RLock()

    def forked(self) -> None:
        """In the child: nothing is claimed, the lock is free, the one thread left is the main one."""
        self._unclaimed(get_ident())

    def claim(self, rank: int | None = None) -> memoryview | None:
        """A slot for this rank; None for ever outside ftrun.  `rank` stands in where the environment names none."""
        if self.settled:
            return self.words
        with self.lock:
            if not self.settled:
                try:
                    self._claim(rank or 0)
                except (OSError, ValueError):  # no such file, not ours to write, cannot be mapped
                    pass
                finally:
                    self.settled = True
        return self.words

    def learn(self) -> None:
        """Digest the silences: every hundredth movement, a few microseconds."""
        words = self.words
        if words is None:
            return
        look = False
        with self.lock:
            if self.left <= 0:  # not if another thread was faster
                long, self.long = self.long, []
                look = self.digester.digest(words, long)
                self.left, self.mover = self.digester.batch, get_ident()
        if look:
            self.ring()

    def ring(self) -> None:
        """Wake the supervisor, if one listens.  Never blocks."""
        try:
            bell = os.open(os.path.join(self.folder, at.BELL), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return
        try:
            os.write(bell, b"!")
        except OSError:
            pass
        finally:
            os.close(bell)

    def write_text(self, prefix: str, text: str | None) -> None:
        """Replace the whole file of this process; without a text, or without room for it, there is none."""
        path = os.path.join(self.folder, f"{prefix}{self.mark}")
        fresh = os.path.join(self.folder, f".{prefix}{self.rank}.{os.getpid()}")
        try:
            if text is not None:
                with open(fresh, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
                    file.write(text)
                os.replace(fresh, path)
                return
        except (OSError, ValueError):
            _remove(fresh)
        _remove(path)

    def _claim(self, default_rank: int) -> None:
        folder = os.environ.get("FTRUN_BEAT_DIR")
        if not folder:
            return
        file = os.open(os.path.join(folder, at.BEATS), os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if os.fstat(file).st_size != at.FILE_BYTES:
                return
            words = memoryview(mmap.mmap(file, at.FILE_BYTES)).cast("Q")
            if words[at.H_MAGIC] != at.MAGIC:
                return
            rank, flags = _rank(default_rank)
            for number in range(rank, rank + TRIES):
                start = at.slot_of(number)
                slot = words[start : start + at.SLOT_WORDS]
                # Closing the file ends this lock: it only keeps two processes from claiming in the same moment.
                if _locked(file, start) and not _held_by_another(slot):
                    break
            else:
                return
            self.moved_at = _take(slot, rank, flags)
        finally:
            os.close(file)
        self.folder, self.rank, self.header, self.words = folder, rank, words[: at.HEADER_WORDS], slot
        self.mark = str(rank) if start == at.slot_of(rank) else f"{rank}.{os.getpid()}"  # a second one of this rank
        self.ring()


def _take(slot: memoryview, rank: int, flags: int) -> int:
    """The time at which it was claimed."""
    for word in range(at.SLOT_WORDS):
        slot[word] = 0
    slot[at.PID] = os.getpid()
    slot[at.START_TICKS] = _start_ticks(os.getpid()) or 0
    slot[at.RANK] = rank
    slot[at.FLAGS] = flags
    slot[at.CLAIMED_AT] = now = monotonic_ns()
    slot[at.MAGIC_WORD] = at.MAGIC
    return now


def _held_by_another(slot: memoryview) -> bool:
    owner = slot[at.PID]
    if slot[at.MAGIC_WORD] != at.MAGIC or owner == os.getpid():
        return False
    return _start_ticks(owner) == slot[at.START_TICKS]


def _start_ticks(pid: int) -> int | None:
    """When the process began (proc(5), field 22); None for one that ended, a zombie included."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return None if fields[0] in (b"Z", b"X") else int(fields[19])
    except (OSError, ValueError, IndexError):
        return None


def _locked(file: int, start: int) -> bool:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, at.WORD, start * at.WORD)
    except (BlockingIOError, PermissionError):  # somebody else claims it just now
        return False
    except OSError:  # a file system without locks
        pass
    return True


def _rank(default: int) -> tuple[int, int]:
    """The rank that the environment names, and the flags that say what is wrong with it."""
    text = os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or ""
    if text.isascii() and text.isdigit() and len(text) < 20:
        return int(text), 0
    return default, at.NO_RANK if text else 0


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


mine = Slot()
os.register_at_fork(after_in_child=mine.forked)
