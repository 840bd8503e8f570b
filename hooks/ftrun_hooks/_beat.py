"""The calls with which a rank reports heartbeats, checkpoints, its planned end and a permanent failure; and the one
slot of the beat file that this process may write: it is mapped and claimed here, and released at a fork."""

from __future__ import annotations

import atexit
import fcntl
import mmap
import os
import sys
import threading
from _thread import get_ident
from itertools import chain
from time import monotonic_ns
from types import FrameType

from . import layout as at
from ._interrupt import deferred
from ._last import _parents, _remove, _stat
from .layout import ALIVE_AT, CREDIT, MOVED_AT, SHORT, STEP  # for speed

TOO_HIGH = (1 << 63) - 1
FIRST_PAUSE, LONGEST_PAUSE = 5_000_000, 10_000_000_000  # ns between tries to get access to the file
TRIES = 256  # slots that a claim tries: more processes than that with the same rank, or none, are not expected
WINDOW = 10  # batches, so that a step time that drifts is followed
TOP = 11  # of each batch: the 99th percentile of the whole window is among them


def beat(step: object = None) -> None:
    """This rank is alive; from the main thread, or with a step that advances, it also makes progress.

    Only the first call makes system calls.  A step that is not an integer from 0 to 2**63 - 2 is ignored.
    """
    try:
        words = own_slot.words
        if words is None:
            if own_slot.settled:
                return
            words = own_slot.claim()
            if words is None:
                return
        now = monotonic_ns()
        after = 0 if step is None else step + 1 if type(step) is int else _after(step)
        if own_slot.step < after <= TOO_HIGH:
            own_slot.step = words[STEP] = after
        elif get_ident() != own_slot.main:
            words[ALIVE_AT] = now
            return
        words[MOVED_AT] = now
        silence = now - own_slot.moved_at - own_slot.credit
        own_slot.moved_at = now
        if own_slot.credit:
            # After MOVED_AT: a read in between finds too much credit, but never too great an age.
            own_slot.credit = words[CREDIT] = 0
        if silence > SHORT:
            own_slot.long.append((silence, now))
        own_slot.left -= 1
        if own_slot.left <= 0:
            own_slot.learn()
    except Exception:  # at interpreter shutdown even the names above may be gone
        pass


def checkpoint(step: object, path: object = None) -> None:
    """A checkpoint of `step` is safe on disk, at `path`.  It is a heartbeat too, and a newer one always is progress."""
    try:
        words = own_slot.claim()
        if words is None:
            return
        beat(step)
        with deferred:
            own_slot.write_text(at.CHECKPOINT, None if path is None else os.fsdecode(path))  # type: ignore[arg-type]
            after = _after(step)
            now = monotonic_ns()
            if after > words[at.CHECKPOINT_STEP]:
                own_slot.moved_at = words[MOVED_AT] = now
            words[at.CHECKPOINT_STEP] = after
            words[at.CHECKPOINT_AT] = now
            own_slot.ring()
    except Exception:
        pass


def done() -> None:
    """This rank has trained to its end and is about to exit.  Called automatically at an exit without an
    uncaught exception, whatever its status.

    It is a heartbeat, and from now on the process has as long as between any two of them: one that hangs while it
    shuts down is a hang like any other, but its training has not failed.  More heartbeats undo it.
    """
    _flag(at.DONE)


def fail(why: object, recoverable: bool = False) -> None:
    """No restart will cure this: the job ends, for the reason `why`.  A recoverable failure need not be reported."""
    if recoverable:
        return
    try:
        if own_slot.claim() is not None:
            own_slot.write_text(at.FAIL, str(why))
            _flag(at.FATAL)
    except Exception:
        pass


def _flag(flag: int) -> None:
    try:
        words = own_slot.claim()
        if words is None:
            return
        with deferred, own_slot.lock:
            words[at.FLAGS] |= flag
            if flag == at.DONE:
                own_slot.moved_at = words[MOVED_AT] = monotonic_ns()
                own_slot.credit = words[CREDIT] = 0
        own_slot.ring()
    except Exception:
        pass


def _after(step: object) -> int:
    """The step as the file stores it: step + 1, and zero for a value that is not a step."""
    try:
        from operator import index  # numpy's and torch's integers have __index__ and are no int

        after = index(step) + 1  # type: ignore[arg-type]
    except Exception:
        return 0
    return after if 0 < after <= TOO_HIGH else 0


def _at_exit() -> None:
    # The interpreter leaves an uncaught exception in sys.last_type before it runs this: a crash is not a `done`.
    # An excepthook would notice the same only until the program sets its own.
    if own_slot.words is not None and not hasattr(sys, "last_type"):
        done()


def _main_thread_ended() -> None:
    """The main thread has ended, and the interpreter waits for the other threads; only then do functions of atexit run.

    Where another thread trains, the program is not at its end.  A process that never sent a heartbeat reports that it
    waits for threads: after a restart there may be nothing left to train.
    """
    if hasattr(sys, "last_type"):
        return
    if own_slot.words is not None:
        waits = own_slot.mover == own_slot.main
    else:
        waits = any(not thread.daemon and thread.ident != get_ident() for thread in threading.enumerate())
    if waits:
        done()


def _watch_main_thread() -> None:
    # `threading._register_atexit` has functions called last that were registered first, after those that wait for
    # the threads of executors.
    wait_for_threads = threading._shutdown  # type: ignore[attr-defined]

    def _shutdown() -> None:
        try:
            _main_thread_ended()
        except Exception:
            pass
        wait_for_threads()

    threading._shutdown = _shutdown  # type: ignore[attr-defined]


# --- the slot ---------------------------------------------------------------------------------------------------------


class Slot:
    """`words` is the claimed slot, or None.  `settled`: the claim was tried, which happens once in a process; it is
    repeated, not before `again`, while the supervisor has not yet given this user access, and with the next heartbeat
    if a signal handler raised in the middle of it.

    `main` is the main thread, `mover` the one whose steps advance.  `step`, `moved_at` and `credit` are copies of
    the mapped words, which are slower to read.  `long` has the long silences (duration, end) of the current batch; the
    batch is processed when `left` has counted down to 0.
    """

    def __init__(self) -> None:
        main = threading.main_thread().ident
        self._unclaimed(get_ident() if main is None else main)

    def _unclaimed(self, main: int) -> None:
        self.words: memoryview | None = None
        self.header: memoryview | None = None
        self.settled = self.reported = False
        self.claiming: FrameType | None = None  # the call that claims
        self.again = 0
        self.pause = FIRST_PAUSE
        self.step = self.moved_at = self.credit = 0
        self.long: list[tuple[int, int]] = []
        self.digester = Silences()
        self.left = self.digester.batch
        self.folder = ""
        self.rank = 0
        self.source = 0  # as in the flags
        self.mark = "0"  # in the names of its files
        self.main = self.mover = main
        # Re-entrant, because a signal handler may call a hook while its own thread holds the lock.
        self.lock = threading.RLock()

    def forked(self) -> None:
        """Called in the child: nothing is claimed, the lock is free, and the only thread left is the main thread."""
        self._unclaimed(get_ident())

    def claim(self, rank: int | None = None, framework: str = "") -> memoryview | None:
        """A slot for this rank; always None outside ftrun.  `rank` is used if the environment names none.
        `framework`: one of FRAMEWORKS, which gives the heartbeats."""
        if self.settled or self.words is not None or (self.again and monotonic_ns() < self.again):
            return self.words
        self.source = at.FRAMEWORKS.index(framework) + 1 if framework else 0
        # Other threads wait here for the first claim; a signal handler in the middle of it does not claim.
        with deferred, self.lock:
            done = self.settled or self.words is not None  # by another thread meanwhile
            if not (done or self._is_claiming() or (self.again and monotonic_ns() < self.again)):
                self.claiming = sys._getframe()
                try:
                    self._claim(rank)
                except PermissionError:  # this process changed its user, and has no access yet
                    self._request_access()
                except (OSError, ValueError) as error:  # no such file, cannot be mapped
                    # Without a number it is not the kernel's: a signal handler raised it, as a TimeoutError.
                    self.settled = not isinstance(error, OSError) or error.errno is not None
                else:
                    self.settled = True
                self.claiming = None
        return self.words

    def _is_claiming(self) -> bool:
        """Whether this is called in the middle of a claim, by a signal handler.  A claim that a handler ended by an
        exception is no longer among the calls."""
        call: FrameType | None = sys._getframe(1)
        while call is not None and call is not self.claiming:
            call = call.f_back
        return call is not None

    def _request_access(self) -> None:
        """Request access from the supervisor, which grants it to the users of the processes of the command."""
        self.again = monotonic_ns() + self.pause
        self.pause = min(2 * self.pause, LONGEST_PAUSE)
        try:
            os.close(os.open(os.path.join(os.environ["FTRUN_BEAT_DIR"], at.REQUEST), os.O_RDONLY | os.O_CLOEXEC))
        except (OSError, LookupError):
            pass

    def learn(self) -> None:
        """Process the silences: with every hundredth progress report, in a few microseconds."""
        words = self.words
        if words is None:
            return
        look = False
        with deferred, self.lock:
            if self.left <= 0:  # not if another thread was faster
                # A freeze that has just ended may not have been recorded by the supervisor yet.
                early = monotonic_ns() - at.RECORDED_WITHIN
                later = [(silence, end) for silence, end in self.long if silence >= at.FREEZE and end > early]
                known = [pair for pair in self.long if pair not in later] if later else self.long
                self.long = later
                look = self.digester.digest(words, awake(known, self.header))
                self.left, self.mover = self.digester.batch, get_ident()
                if words[at.FLAGS] & at.DONE:  # it was not the end
                    words[at.FLAGS] &= ~at.DONE
        if not self.reported:
            self.reported = True
            self.report_imports()
        if look:
            self.ring()

    def report_imports(self) -> None:
        """With the first heartbeat, if the supervisor asks for it: it keeps standbys for the next start."""
        if os.path.exists(os.path.join(self.folder, at.IMPORTS, at.COMMAND)):
            from . import _report

            _report.write(self.folder)

    def ring(self) -> None:
        """Wake the supervisor, if there is one.  Never blocks."""
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
        """Replace the whole file of this process; it is removed if there is no text, or no space for it."""
        path = os.path.join(self.folder, f"{prefix}{self.mark}")
        fresh = os.path.join(self.folder, f".{prefix}{self.rank}.{os.getpid()}")
        try:
            if text is not None:
                content = text.encode("utf-8", "surrogateescape")
                _remove(fresh)
                # Never through a link of another user with access; the supervisor may read it also as another user.
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                mode = 0o600 if os.stat(self.folder).st_uid == os.geteuid() else 0o640
                with open(os.open(fresh, flags, mode), "wb") as file:
                    file.write(content)
                os.replace(fresh, path)
                return
        except (OSError, ValueError):
            _remove(fresh)
        _remove(path)

    def _claim(self, default_rank: int | None) -> None:
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
            rank, flags, ranked = _rank(default_rank)
            for number in range(rank, rank + TRIES):
                start = at.slot_of(number)
                slot = words[start : start + at.SLOT_WORDS]
                # Closing the file ends this lock: it only keeps two processes from claiming in the same moment.
                if _locked(file, start) and not _held_by_another(slot):
                    break
            else:
                return
            self.moved_at = _take(slot, rank, flags | self.source << at.SOURCE_SHIFT, ranked)
        finally:
            os.close(file)
        self.folder, self.rank, self.header = folder, rank, words[: at.HEADER_WORDS]
        self.mark = str(rank) if start == at.slot_of(rank) else f"{rank}.{os.getpid()}"  # a second one of this rank
        self.ring()
        self.words = slot  # last: up to here a claim that is interrupted is made again


def _take(slot: memoryview, rank: int, flags: int, ranked: bool) -> int:
    """The time at which it was claimed."""
    for word in range(at.SLOT_WORDS):
        slot[word] = 0
    slot[at.PID] = os.getpid()
    slot[at.START_TICKS] = _start_ticks(os.getpid()) or 0
    slot[at.RANK] = rank
    slot[at.FLAGS] = flags
    slot[at.UNRANKED] = not ranked
    if not ranked:
        for level, pid in enumerate(_parents()[: at.PARENTS_KEPT]):
            slot[at.PARENTS + level] = pid if pid > 1 else 0
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
        fields = _stat(pid)
        return None if fields[0] in (b"Z", b"X") else int(fields[19])
    except (OSError, ValueError, IndexError):
        return None


def _locked(file: int, start: int) -> bool:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, at.WORD, start * at.WORD)
    except (BlockingIOError, PermissionError):  # another process is claiming it
        return False
    except OSError:  # a file system without locks
        pass
    return True


def _rank(default: int | None) -> tuple[int, int, bool]:
    """The rank from the environment, flags that describe an error in it, and whether any rank was given."""
    text = os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or ""
    if text.isascii() and text.isdigit() and len(text) < 20:
        return int(text), 0, True
    if text:
        return default or 0, at.NO_RANK, True
    return default or 0, 0, default is not None


# --- the usual time between two progress reports, from which `--hang-timeout auto` is learned -------------------------


def awake(silences: list[tuple[int, int]], header: memoryview | None) -> list[int]:
    """The durations of these silences (duration, end), in ns, without the time in which the whole tree was frozen."""
    freezes = []
    if header is not None and any(silence >= at.FREEZE for silence, _ in silences):
        found = header[at.H_FREEZES : at.H_FREEZES + 2 * at.FREEZES].tolist()
        freezes = [(found[n], found[n + 1]) for n in range(0, len(found), 2) if found[n] < found[n + 1]]
    lengths = []
    for silence, end in silences:
        if freezes and silence >= at.FREEZE:
            begun = end - silence
            frozen = sum(max(0, min(end, until) - max(begun, since)) for since, until in freezes)
            silence = max(0, silence - frozen)
        if silence > at.SHORT:
            lengths.append(silence)
    return lengths


class Silences:
    """Processes the silences in batches, because a heartbeat must cost next to nothing: it only counts, and keeps the
    long silences.

    `batch` is the size of the next batch: one, the rest of the warm-up, the rest of ENOUGH, and from then on ENOUGH.
    """

    __slots__ = ("batch", "counts", "longest", "seen", "tops")

    def __init__(self) -> None:
        self.batch, self.seen, self.longest = 1, 0, 0
        self.tops: list[list[int]] = []
        self.counts: list[int] = []

    def digest(self, words: memoryview, long: list[int]) -> bool:
        """Update the figures in the slot with a batch, whose silences over SHORT are `long`, in ns.  True if the
        supervisor should read them now."""
        longest = max(long, default=at.SHORT)
        if self.seen < at.WARMUP:
            words[at.SLOWEST_START] = max(words[at.SLOWEST_START], longest)
        else:
            self.tops = [*self.tops[1 - WINDOW :], sorted(long)[-TOP:]]
            self.counts = [*self.counts[1 - WINDOW :], self.batch]
            highest, above = sorted(chain.from_iterable(self.tops)), sum(self.counts) // 100
            words[at.USUAL] = highest[-1 - above] if above < len(highest) else at.SHORT
            words[at.LONGEST] = self.longest = max(self.longest, longest)
        words[at.INTERVALS] = self.seen = self.seen + self.batch
        self.batch = next((end - self.seen for end in (at.WARMUP, at.ENOUGH) if self.seen < end), at.ENOUGH)
        return self.seen in (1, at.ENOUGH)


own_slot = Slot()
os.register_at_fork(after_in_child=own_slot.forked)
atexit.register(_at_exit)
if hasattr(threading, "_shutdown") and os.environ.get("FTRUN_BEAT_DIR"):
    _watch_main_thread()
