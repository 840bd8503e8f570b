"""The paces of the ranks of this node: seconds per step, and how many of them are work, for `paces.json` and the search
for stragglers (core/rules/stragglers.py, ADR 36).

A pace is the median of the last stretches.  A stretch has at least one step, so a long pause, such as a checkpoint or
an evaluation of one rank now and then, is one stretch, and changes nothing.
"""

import json
import os
import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final

from ftrun.core.rules.idle import median
from ftrun.core.rules.stragglers import LEAST, Pace, Persistence, Slowness, stragglers
from ftrun.helpers.lines import Lines
from ftrun.helpers.messenger.main_threads import MainThread, ThreadUse, plus, uses_accelerator
from ftrun.host import safe_files
from ftrun.messages import group_view
from ftrun.messages.messenger import Straggler
from ftrun_hooks import layout as at

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

    def __init__(self, lines: Lines | None, stretch: float = STRETCH) -> None:
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

    def _compare(self, paces: dict[int, Pace], now: float, lines: Lines) -> None:
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
        from ftrun.records.run_snapshot import read_snapshot  # seldom needed: it takes time and memory

        shown = read_snapshot(os.getcwd(), now)
        return next((one.device or "" for one in shown.ranks if one.rank == rank), ""), shown.node
    except Exception:  # the record does without
        return "", ""
