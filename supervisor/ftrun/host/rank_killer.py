"""Ends the processes of single ranks step by step without blocking, while the other ranks go on."""

import time
from typing import Final

from ftrun.core.machine import events as ev
from ftrun.core.named_tuple import NamedTuple
from ftrun.host import procfs
from ftrun.host.tree import MAX_NAMED, RECHECK, Tree

RARELY: Final = 1.0  # s; the longest pause while a grace lasts
SETTLED: Final = 1.0  # s after its end in which what a rank started may end by itself


class RankKiller:
    """`recheck_at`: when to call `check` next; None: nothing is to be done."""

    def __init__(self, whole: Tree) -> None:
        self._tree = whole
        self._killed: dict[int, set[int]] = {}  # the pids that got SIGKILL, by local rank
        self._done: dict[int, float] = {}  # local ranks that are done, and when to look for what they have left
        self._graces: dict[int, Grace] = {}
        self.recheck_at: float | None = None

    def end(self, local_rank: int) -> None:
        """Send SIGKILL to all processes of this rank; `check` says when none is left."""
        self._done.pop(local_rank, None)
        self._graces.pop(local_rank, None)
        self._killed.setdefault(local_rank, set())
        self.recheck_at = 0.0

    def find_leftovers(self, local_rank: int) -> None:
        """Look for what this rank has left once that had time to end by itself; `check` says what there is."""
        self._done[local_rank] = time.monotonic() + SETTLED
        self._plan()

    def end_leftovers(self, local_rank: int, grace: float) -> None:
        """Send SIGTERM to all processes of this rank, and SIGKILL after `grace` seconds; `check` says when none is
        left."""
        if grace <= 0:
            self.end(local_rank)
            return
        self._tree.terminate_leftovers(self._tree.rank_members(local_rank))
        now = time.monotonic()
        self._graces[local_rank] = Grace(grace, now, now + RECHECK)
        self._plan()

    def check(self) -> list[ev.Event]:
        """Do what is due.  What is killed is listed again until nothing is left, as it may have forked meanwhile."""
        now = time.monotonic()
        found: list[ev.Event] = []
        for local_rank in [one for one, at in self._done.items() if now >= at]:
            del self._done[local_rank]
            if members := self._tree.rank_members(local_rank):
                names = tuple(procfs.describe(member) for member in members[:MAX_NAMED])
                found.append(ev.LeftoversFound(now, local_rank, names))
        for local_rank in [one for one, grace in self._graces.items() if now >= grace.check_at]:
            grace = self._graces.pop(local_rank).checked(now)
            if not self._tree.rank_members(local_rank):
                found.append(ev.RankTreeEnded(now, local_rank))
            elif grace.left > 0:
                self._graces[local_rank] = grace
            else:
                self._killed[local_rank] = set()
        for local_rank, killed in [*self._killed.items()]:
            members = self._tree.kill_rank(local_rank).members
            killed |= {member.pid for member in members}
            if not members and local_rank not in self._tree.processes.values():
                del self._killed[local_rank]
                found.append(ev.RankTreeEnded(now, local_rank, len(killed)))
        self._plan()
        return found

    def _plan(self) -> None:
        due = [*self._done.values(), *(grace.check_at for grace in self._graces.values())]
        due += [time.monotonic() + RECHECK] if self._killed else []
        self.recheck_at = min(due, default=None)

    def forget(self) -> None:
        """Forget all ranks, since the whole tree is being ended."""
        self._killed.clear()
        self._done.clear()
        self._graces.clear()
        self.recheck_at = None


class Grace(NamedTuple):
    """The time that processes have to end after SIGTERM.  `left`: seconds, as of `since`; `check_at`: when to look
    whether they have ended."""

    left: float
    since: float
    check_at: float

    def checked(self, now: float) -> "Grace":
        """The grace after a check, with the time of the next one.  Time in which ftrun was frozen does not count."""
        planned = self.check_at - self.since
        left = self.left - min(now - self.since, planned + RARELY)
        return Grace(left, now, now + min(2 * planned, RARELY, max(left, RECHECK)))
