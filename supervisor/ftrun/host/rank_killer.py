"""Ends the processes of single ranks step by step without blocking, while the other ranks go on."""

import time
from functools import partial
from typing import Final

from ftrun.host import tree

RECHECK: Final = 0.02  # s; ftrun gets no signal when a process that is not its child ends


class RankKiller:
    """`recheck_at`: when to call `check` next; None: no rank is being ended."""

    def __init__(self, whole: tree.Tree) -> None:
        self._tree = whole
        self._killed: dict[int, set[int]] = {}  # the pids that got SIGKILL, by local rank
        self.recheck_at: float | None = None

    def end(self, local_rank: int) -> None:
        """Send SIGKILL to all processes of this rank; `check` says when none is left."""
        self._killed.setdefault(local_rank, set())
        self.recheck_at = 0.0

    def check(self) -> list[tuple[int, int]]:
        """End what is left of these ranks, also what was forked meanwhile.  The local ranks of which nothing is left,
        each with the number of its processes that were killed."""
        gone = []
        for local_rank, killed in [*self._killed.items()]:
            members, _ = tree.kill(partial(self._tree.rank_members, local_rank))
            killed |= {member.pid for member in members}
            if not members and local_rank not in self._tree.processes.values():
                del self._killed[local_rank]
                gone.append((local_rank, len(killed)))
        self.recheck_at = time.monotonic() + RECHECK if self._killed else None
        return gone

    def forget(self) -> None:
        """The whole tree is being ended."""
        self._killed.clear()
        self.recheck_at = None
