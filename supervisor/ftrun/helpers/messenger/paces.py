"""The paces of the ranks of this node: seconds per step, and how many of them are work, for `paces.json` and the search
for stragglers (core/rules/stragglers.py, ADR 36).

A pace is the median of the last stretches, of at least one step each: a long pause now and then changes nothing.
"""

import json
import os
import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final

from ftrun.core.named_tuple import NamedTuple
from ftrun.core.rules.idle import median
from ftrun.core.rules.stragglers import LEAST, Pace, Persistence, Slowness, stragglers
from ftrun.helpers.lines import ProtocolLines
from ftrun.host import procfs, safe_files
from ftrun.messages import group_view
from ftrun.messages.messenger import Straggler
from ftrun_hooks import layout as at
from waitproof import calls
from waitproof.world import ACCELERATORS

DESCRIPTORS: Final = 4096  # of a process that are examined
KNOWN: Final = 0.1  # of a period: what was blocked for less needs no glance

_CALLS: Final = calls.table(os.uname().machine)  # empty for a machine whose numbers are not known
FUTEX: Final = frozenset(str(number).encode() for number, call in _CALLS.items() if call.kind == "futex")


class ThreadUse(NamedTuple):
    """What the main thread has used of a period of `seconds`: `ran`, on a processor or in the queue for one, in s.
    `futex`, `other`: how often it was seen blocked there."""

    seconds: float = 0.0
    ran: float = 0.0
    futex: int = 0
    other: int = 0

    @property
    def share(self) -> float | None:
        """The part of the period in which it did not wait for other ranks; None: unknown."""
        if self.seconds <= 0:
            return None
        ran = min(1.0, self.ran / self.seconds)
        if not self.futex + self.other:
            return 1.0 if 1 - ran < KNOWN else None
        return ran + (1 - ran) * self.other / (self.futex + self.other)


def plus(one: ThreadUse, other: ThreadUse) -> ThreadUse:
    return ThreadUse(one.seconds + other.seconds, one.ran + other.ran, one.futex + other.futex, one.other + other.other)


class MainThread:
    """The main thread of one process; the object outlives the process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._task = f"/proc/{pid}/task/{pid}"
        self._ran = self._read_ran()
        self._futex = self._other = 0

    def glance(self) -> None:
        """Count where the thread is blocked now, if it is blocked."""
        call = (procfs.read(f"{self._task}/syscall", 512, at_once=True) or b"").split()
        if call and FUTEX:
            if call[0] in FUTEX:
                self._futex += 1
            elif call[0] != b"running":
                self._other += 1
            return
        # Under Yama only an ancestor may read the call.  The kernel's function is visible to the same user, if at all.
        wchan = procfs.read(f"{self._task}/wchan", 128, at_once=True) or b"0"
        if b"futex" in wchan:
            self._futex += 1
        elif wchan != b"0":
            self._other += 1

    def used(self, seconds: float) -> ThreadUse | None:
        """What the thread has used since the last call, which was `seconds` ago; None: unknown."""
        before, self._ran = self._ran, self._read_ran()
        seen, self._futex, self._other = (self._futex, self._other), 0, 0
        return None if before is None or self._ran is None else ThreadUse(seconds, self._ran - before, *seen)

    def _read_ran(self) -> float | None:
        """Documentation/scheduler/sched-stats.rst of Linux: on a processor, in the queue for one, in ns; how often."""
        fields = (procfs.read(f"{self._task}/schedstat", 128, at_once=True) or b"").split()
        if len(fields) < 3 or fields[2] == b"0":  # the kernel does not count
            return None
        return (int(fields[0]) + int(fields[1])) / 1e9


def uses_accelerator(pid: int) -> bool:
    """Whether the process has opened one, or this cannot be known."""
    try:
        for number in os.listdir(f"/proc/{pid}/fd")[:DESCRIPTORS]:
            try:
                if os.readlink(f"/proc/{pid}/fd/{number}").startswith(ACCELERATORS):
                    return True
            except FileNotFoundError:  # closed meanwhile
                continue
    except OSError:
        return True
    return False


FILE: Final = "paces.json"
LOOK: Final = 1.0  # s between two reads of the beat file
GLANCE: Final = 0.2  # s between two glances at the main threads, on average
STRETCH: Final = 5.0  # s that a stretch has at least
STRETCHES: Final = 12  # the last ones, that count
ENOUGH: Final = 6  # of them
CHECK: Final = 30.0  # s after which is checked again whether a process uses an accelerator
WRITTEN: Final = 2.0  # s between two changes of the file
MOST: Final = group_view.PACES  # ranks


class _Rank:
    """What was seen of one process.  `begun`: the look that began the stretch, the last movement and step then."""

    def __init__(self, pid: int, now: float, moved: float, step: int) -> None:
        self.begun, self.last = (now, moved, step), now
        self.thread: MainThread | None = None if uses_accelerator(pid) else MainThread(pid)
        self.checked = now
        self.used = ThreadUse()
        self.known = True
        self.stretches: deque[Pace] = deque(maxlen=STRETCHES)

    def look(self, now: float, moved: float, step: int, stretch: float) -> None:
        if self.thread is not None and now >= self.checked + CHECK:
            self.checked = now
            self.thread = None if uses_accelerator(self.thread.pid) else self.thread
        used = None if self.thread is None else self.thread.used(now - self.last)
        self.last, self.known = now, self.known and used is not None
        self.used = plus(self.used, used or ThreadUse())
        began, moved_then, step_then = self.begun
        if step > step_then and moved > moved_then and now >= began + stretch:
            time, share = (moved - moved_then) / (step - step_then), self.used.share if self.known else None
            self.stretches.append(Pace(time, None if share is None else share * time))
            self.begun, self.used, self.known = (now, moved, step), ThreadUse(), True

    def pace(self) -> Pace | None:
        """None until there are enough stretches."""
        if len(self.stretches) < ENOUGH:
            return None
        works = [one.work for one in self.stretches if one.work is not None]
        work = median(works) if 2 * len(works) > len(self.stretches) else None  # one stretch may be unknown
        return Pace(median(one.step_time for one in self.stretches), work)


class Paces:
    """Follows the slots of the beat file.  `lines`: for the stragglers of this node; None: in a group rank 0 compares
    the ranks of all members (group_view.py).  `stretch`: in s."""

    def __init__(self, lines: ProtocolLines | None, stretch: float = STRETCH) -> None:
        self._lines, self._stretch = lines, stretch
        self.due = self._looked = 0.0
        self._written_at = 0.0
        self._begin(0)

    def _begin(self, attempt: int) -> None:
        self._attempt = attempt
        self._ranks: dict[tuple[int, int], _Rank] = {}  # by rank and pid
        self._slow: Persistence[int] = Persistence()

    def follow(self, read: Callable[[], Iterable[Sequence[int]]], attempt: int, now: float) -> None:
        """To be called when it is `due`.  `read` returns the slots; `now`: CLOCK_MONOTONIC."""
        if now < self.due:
            return
        # Not periodic: a period could be that of the steps.
        compared = len(self._ranks) >= (LEAST if self._lines is not None else 1)
        self.due = now + (GLANCE * (0.5 + random.random()) if compared else LOOK)
        if compared:
            for known in self._ranks.values():
                if known.thread is not None:
                    known.thread.glance()
        if now >= self._looked + LOOK or attempt != self._attempt:
            self._looked = now
            self._look(read(), attempt, now)

    def _look(self, slots: Iterable[Sequence[int]], attempt: int, now: float) -> None:
        if attempt != self._attempt:
            self._begin(attempt)
        present = {
            (row[at.RANK], row[at.PID]): (row[at.MOVED_AT] / 1e9, row[at.STEP])
            for row in slots
            if row[at.STEP] and row[at.MOVED_AT] and not row[at.UNRANKED] and not row[at.FLAGS] & at.DONE
        }
        self._ranks = {key: known for key, known in self._ranks.items() if key in present}
        for key, (moved, step) in islice(present.items(), MOST):
            if key in self._ranks:
                self._ranks[key].look(now, moved, step, self._stretch)
            else:
                self._ranks[key] = _Rank(key[1], now, moved, step)
        paces = {key: pace for key, known in self._ranks.items() if (pace := known.pace()) is not None}
        if now >= self._written_at + WRITTEN and paces:
            self._written_at = now
            self._write(paces, now)
        if self._lines is not None:
            self._compare({rank: pace for (rank, _), pace in paces.items()}, now, self._lines)

    def _write(self, paces: dict[tuple[int, int], Pace], now: float) -> None:
        ranks = [{"rank": rank, "pid": pid, **_rounded(pace)} for (rank, pid), pace in paces.items()]
        content = {"mono": round(now, 3), "attempt": self._attempt, "ranks": ranks}
        try:
            safe_files.replace(FILE, json.dumps(content).encode("ascii") + b"\n", durable=False)
        except OSError as error:
            if self._lines is not None:
                self._lines.problem(f"{FILE}: {error.strerror}")

    def _compare(self, paces: dict[int, Pace], now: float, lines: ProtocolLines) -> None:
        found = stragglers(paces)
        for rank in self._slow.update(found, now):
            device, node = _place(rank, now)
            pace = group_view.RankPace(rank, paces[rank].step_time, device)
            lines.send(straggler(found[rank], pace, self._slow.seconds(rank, now), node))


def straggler(
    found: Slowness, pace: group_view.RankPace, lasting: float, node: str, member: int | None = None
) -> Straggler:
    """The message about a rank that has been slow for so many seconds."""
    work = None if found.work is None else round(found.work, 4)
    times = round(pace.step_time, 4), round(found.usual, 4), round(lasting, 1)
    return Straggler(pace.rank, *times, member, node, pace.device, work)


def _rounded(pace: Pace) -> dict[str, float | None]:
    return {"step_time": round(pace.step_time, 6), "work": None if pace.work is None else round(pace.work, 6)}


def _place(rank: int, now: float) -> tuple[str, str]:
    """The device and the host of a rank, as `ftctl status` shows them; empty where they are not known."""
    try:
        from ftrun.records.present.run_snapshot import read_snapshot  # seldom needed: it takes time and memory

        shown = read_snapshot(os.getcwd(), now)
        return next((one.device or "" for one in shown.ranks if one.rank == rank), ""), shown.node
    except Exception:  # the record does without
        return "", ""
