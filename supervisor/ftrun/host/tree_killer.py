"""Ends the command's tree, one look after another: nothing in here waits.  What a look shows comes as events."""

import time

from ftrun.core.machine import events as ev
from ftrun.host import procfs
from ftrun.host.procfs import Stat
from ftrun.host.tree import Tree

RECHECK = 0.02  # s; those that are not our children end without telling us
NAMED = 20  # processes in a message
RECHECK_EACH = 0.0001  # s; and for each member of it, so that looking stays cheaper than ending


class TreeKiller:
    """`awaited`: members that the last look showed and that were not reaped since.  The next look is due when there are
    none left, or at `recheck_at`.  `dead`: the pids that SIGKILL was sent to in the attempt that has ended."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._killed: set[int] = set()
        self.awaited: set[int] = set()
        self.dead: set[int] = set()
        self.recheck_at = 0.0

    def terminate(self) -> list[ev.Event]:
        return self._seen(self._tree.terminate())

    def kill(self) -> list[ev.Event]:
        members = self._tree.kill()
        self._killed |= {member.pid for member in members if not self._tree.is_not_permitted(member)}
        return self._seen(members)

    def look(self) -> list[ev.Event]:
        return self._seen(self._tree.members())

    def inspect(self) -> list[ev.Event]:
        """Names what SIGKILL did not end; TreeEnded if nothing is left after all."""
        members = self._tree.members()
        if not members:
            return [ev.TreeEnded(time.monotonic(), len(self._killed))]
        return [self._survived(members)]

    def _survived(self, members: list[Stat]) -> ev.Event:
        refused = self._tree.beyond_reach(members)
        named = procfs.describe_with_user if refused else procfs.describe
        names = tuple(named(member) for member in members[:NAMED])
        return ev.ProcessesSurvived(time.monotonic(), names, refused, self._tree.command is not None, len(self._killed))

    def _seen(self, members: list[Stat]) -> list[ev.Event]:
        """Nothing as long as waiting is of use: then TreeEnded with how many needed SIGKILL, or Survived if all that is
        left is what we are not permitted to signal."""
        self.awaited = {member.pid for member in members}
        self.recheck_at = time.monotonic() + RECHECK + len(members) * RECHECK_EACH
        if members and self._tree.beyond_reach(members):
            return [self._survived(members)]
        if members or self._tree.command is not None or not self._tree.is_empty():
            return []
        self.dead, self._killed = self._killed, set()
        return [ev.TreeEnded(time.monotonic(), len(self.dead))]
