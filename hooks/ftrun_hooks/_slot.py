"""The one slot of the beat file that this process may write: mapped, claimed, and given up at a fork."""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
from _thread import get_ident
from time import monotonic_ns

from . import layout as at


class Slot:
    """`words` is the claimed slot, or None.  `settled` tells that a claim was tried: it is tried once a process.

    `main` is the main thread.  `moved` tells that a moving beat was given, `step` is the STEP word: beats read them
    faster than the mapped words.
    """

    __slots__ = ("folder", "header", "lock", "main", "moved", "rank", "settled", "step", "words")

    def __init__(self) -> None:
        main = threading.main_thread().ident
        self._unclaimed(get_ident() if main is None else main)

    def _unclaimed(self, main: int) -> None:
        self.words: memoryview | None = None
        self.header: memoryview | None = None
        self.settled = False
        self.moved = False
        self.step = 0
        self.folder = ""
        self.rank = 0
        self.main = main
        # Re-entrant, because a signal handler may call a hook while its own thread holds the lock.
        self.lock = threading.RLock()

    def forked(self) -> None:
        """In the child: nothing is claimed, the lock is free, the one thread left is the main one."""
        self._unclaimed(get_ident())

    def claim(self) -> memoryview | None:
        """The slot of this rank; None for ever outside ftrun, or while another live process holds the rank."""
        if self.settled:
            return self.words
        with self.lock:
            if not self.settled:
                try:
                    self._claim()
                except (OSError, ValueError):  # no such file, not ours to write, cannot be mapped
                    pass
                finally:
                    self.settled = True
        return self.words

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
        """Replace the whole file of this rank; without a text, or without room for it, there is none."""
        path = os.path.join(self.folder, f"{prefix}{self.rank}")
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

    def _claim(self) -> None:
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
            rank = _rank()
            start = at.slot_of(rank)
            slot = words[start : start + at.SLOT_WORDS]
            # Closing the file ends this lock: it only keeps two processes from claiming in the same moment.
            if not _locked(file, start) or _held_by_another(slot):
                slot[at.REFUSED] = os.getpid()
                return
            _take(slot, rank)
        finally:
            os.close(file)
        self.folder, self.rank, self.header, self.words = folder, rank, words[: at.HEADER_WORDS], slot
        self.ring()


def _take(slot: memoryview, rank: int) -> None:
    for word in range(at.SLOT_WORDS):
        slot[word] = 0
    slot[at.PID] = os.getpid()
    slot[at.START_TICKS] = _start_ticks(os.getpid()) or 0
    slot[at.RANK] = rank
    slot[at.CLAIMED_AT] = monotonic_ns()
    slot[at.MAGIC_WORD] = at.MAGIC


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


def _rank() -> int:
    text = os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or ""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


mine = Slot()
os.register_at_fork(after_in_child=mine.forked)
