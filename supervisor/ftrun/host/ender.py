"""Ends the command's tree, one look after another: nothing in here waits."""

import time

from ftrun.host.procfs import Stat
from ftrun.host.tree import Tree

RECHECK = 0.02  # s; those that are not our children end without telling us
RECHECK_EACH = 0.0001  # s; and for each member of it, so that looking stays cheaper than ending


class Ender:
    """`awaited`: members that the last look showed and that were not reaped since.  The next look is due when there are
    none left, or at `recheck_at`.  `dead`: the pids that SIGKILL was sent to in the attempt that has ended."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._killed: set[int] = set()
        self.awaited: set[int] = set()
        self.dead: set[int] = set()
        self.recheck_at = 0.0

    @property
    def killed(self) -> int:
        return len(self._killed)

    def terminate(self) -> int | None:
        return self._seen(self._tree.terminate())

    def kill(self) -> int | None:
        members = self._tree.kill()
        self._killed |= {member.pid for member in members}
        return self._seen(members)

    def look(self) -> int | None:
        return self._seen(self._tree.members())

    def _seen(self, members: list[Stat]) -> int | None:
        """None as long as something is left, then how many of it needed SIGKILL."""
        self.awaited = {member.pid for member in members}
        self.recheck_at = time.monotonic() + RECHECK + len(members) * RECHECK_EACH
        if members or self._tree.command is not None or not self._tree.gone():
            return None
        self.dead, self._killed = self._killed, set()
        return len(self.dead)
