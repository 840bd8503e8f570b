"""Ends the command's tree step by step without blocking: each step lists the tree, and its results are events."""

import time

from ftrun.core.machine import effects as do
from ftrun.core.machine import events as ev
from ftrun.host import procfs
from ftrun.host.procfs import Stat
from ftrun.host.tree import Tree

RECHECK = 0.02  # s; ftrun gets no signal when a process that is not its child ends
MAX_NAMED = 20  # at most so many processes are named in a message
RECHECK_EACH = 0.0001  # s; added for each member, so that listing stays cheaper than killing


class TreeKiller:
    """`awaited`: members that the last listing showed and that were not reaped since.  The next look is due at
    `recheck_at`: at once when the last of them was reaped.  `dead`: the pids that got SIGKILL in the attempt that has
    ended."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._killed: set[int] = set()
        self._in_turn = False  # each process gets SIGTERM once its parent has ended
        self.awaited: set[int] = set()
        self.dead: set[int] = set()
        self.recheck_at = 0.0

    def perform(self, effect: do.Terminate | do.Kill | do.Inspect) -> list[ev.Event]:
        """Do one step towards the end of the tree.  TreeEnded may be among its results at once."""
        match effect:
            case do.Terminate(in_turn):
                return self.terminate(in_turn)
            case do.Kill():
                return self.kill()
            case do.Inspect():
                return self.inspect()

    def terminate(self, in_turn: bool = False) -> list[ev.Event]:
        self._in_turn = in_turn
        if self._tree.has_ended():
            return self._ended()
        return self._evaluate(self._tree.terminate_orphans() if in_turn else self._tree.terminate())

    def kill(self) -> list[ev.Event]:
        if self._tree.has_ended():
            return self._ended()
        killed = self._tree.kill()
        self._killed |= {member.pid for member in killed.members if not self._tree.is_not_permitted(member)}
        events = self._evaluate(killed.members)
        if not killed.all_stopped:
            self.recheck_at = 0.0  # as soon as what has ended is reaped
        return events

    def check(self) -> list[ev.Event]:
        if self._tree.has_ended():
            return self._ended()
        return self._evaluate(self._tree.terminate_orphans() if self._in_turn else self._tree.members())

    def reaped(self, pid: int) -> None:
        """A process was reaped.  After the last one that is awaited, nothing has to be waited for any more."""
        if pid in self.awaited:
            self.awaited.remove(pid)
            if not self.awaited:
                self.recheck_at = 0.0

    def inspect(self) -> list[ev.Event]:
        """Name the processes that survived SIGKILL; TreeEnded if none is left after all."""
        members = self._tree.members()
        if not members:
            return [ev.TreeEnded(time.monotonic(), len(self._killed))]
        return [self._survived(members)]

    def _survived(self, members: list[Stat]) -> ev.Event:
        refused = self._tree.beyond_reach(members)
        describe = procfs.describe_with_user if refused else procfs.describe
        names = tuple(describe(member) for member in members[:MAX_NAMED])
        return ev.ProcessesSurvived(time.monotonic(), names, refused, bool(self._tree.processes), len(self._killed))

    def _evaluate(self, members: list[Stat]) -> list[ev.Event]:
        """Return no event while waiting can help; then TreeEnded with how many processes needed SIGKILL, or
        ProcessesSurvived if ftrun may signal none of the remaining ones."""
        self.awaited = {member.pid for member in members}
        self.recheck_at = time.monotonic() + RECHECK + len(members) * RECHECK_EACH
        if members and self._tree.beyond_reach(members):
            return [self._survived(members)]
        return [] if members or not self._tree.has_ended(listed=True) else self._ended()

    def _ended(self) -> list[ev.Event]:
        self.awaited = set()
        self.dead, self._killed, self._in_turn = self._killed, set(), False
        return [ev.TreeEnded(time.monotonic(), len(self.dead))]
