"""The process tree of the command: everything below ftrun but its helpers, what was there before it, and what came in
from outside (`docker exec`)."""

import os
import signal
from collections.abc import Callable, Iterable

from ftrun.host import procfs
from ftrun.host.procfs import Stat
from ftrun.host.tty import Terminal

FREEZE_ROUNDS = 64


class Tree:
    """`marker`: the environment entry that only this ftrun's command and its descendants have."""

    def __init__(self, marker: bytes) -> None:
        self._marker = marker
        self._me = os.getpid()
        self._session = os.getsid(0)
        self._foreign_sessions: set[int] = set()
        self.command: int | None = None
        # A shell that exec'ed us may have left children of its own to us: they are not ours to end.
        inherited = (procfs.stat(pid) for pid in procfs.children(self._me))
        self._spared = {(s.pid, s.start) for s in inherited if s is not None}

    @property
    def mark(self) -> dict[str, str]:
        """The marker, for the environment of what is ours."""
        name, _, value = os.fsdecode(self._marker).partition("=")
        return {name: value}

    def spare(self, pid: int) -> None:
        """A helper of ours: not part of the command's tree, nor is anything below it."""
        if found := procfs.stat(pid):
            self._spared.add((found.pid, found.start))

    def members(self) -> list[Stat]:
        """All living members.  Orphans are included: as PID 1 or as subreaper we are their parent."""
        below: dict[int, list[Stat]] = {}
        for process in procfs.everyone():
            below.setdefault(process.parent, []).append(process)
        if self._me == 1:
            self._foreign_sessions |= {s.session for s in below.get(0, ()) if s.pid != 1}
        found: list[Stat] = []
        roots = [s for s in below.get(self._me, ()) if (s.pid, s.start) not in self._spared and not self._foreign(s)]
        while roots:
            process = roots.pop()
            found.append(process)
            roots += below.get(process.pid, ())
        return [process for process in found if not process.ended]

    def gone(self) -> bool:
        """Whether nothing is left, told by the kernel's list of our children and not by a look that a fork can slip by.

        Each member is below a child of ours, new ones are put at the end of that list, and only our own reaping takes
        one off it.  A zombie may have been alive when it was listed: it has to be reaped first.
        """
        ours = [procfs.stat(pid) for pid in procfs.children(self._me)]
        return all(s and not s.ended and ((s.pid, s.start) in self._spared or self._foreign(s)) for s in ours)

    def _foreign(self, process: Stat) -> bool:
        """Whether an orphan that PID 1 adopted stems from a shell that was opened from outside.

        Its parent is dead, so this is told from what it carries: our marker; else the session of a shell from outside;
        else an environment that is whole and has no marker.  A cleared environment is a daemon's way, not a shell's.
        """
        if self._me != 1 or process.pid == self.command:
            return False
        environment = _entries(process.pid)
        if self._marker in environment:
            return False
        if process.session == self._session and (self._session != 0 or process.group != 0):
            return False
        return (
            process.session in self._foreign_sessions
            or process.group == 0
            or any(e.startswith(b"PATH=") for e in environment)
        )

    def forward(self, number: int, terminal: Terminal | None) -> None:
        """To the command's process group; with a terminal, whose keys reach the group anyway, to the command alone."""
        if self.command is None:
            return
        if number == signal.SIGCONT and terminal is not None:
            terminal.continued(self.command)
        try:
            if terminal is None:
                os.killpg(self.command, number)
            else:
                os.kill(self.command, number)
        except OSError:
            pass  # it has just ended

    def terminate(self) -> list[Stat]:
        """SIGTERM to all, and SIGCONT so that stopped ones can act on it."""
        members = self.members()
        _send(members, signal.SIGTERM)
        _send(members, signal.SIGCONT)
        return members

    def kill(self) -> list[Stat]:
        return kill(self.members)


def _send(processes: Iterable[Stat], number: int) -> None:
    for process in processes:
        try:
            os.kill(process.pid, number)
        except OSError:
            pass  # ended meanwhile, or set-uid out of our reach: the next look shows it


def left_behind(marker: bytes, command: tuple[int, int]) -> list[Stat]:
    """Living processes that an earlier, killed ftrun left: its command, by pid and start time, and all that carry its
    marker in their environment."""
    others = [s for s in procfs.everyone() if s.pid != os.getpid() and not s.ended]
    return [s for s in others if (s.pid, s.start) == command or marker in _entries(s.pid)]


def kill(look: Callable[[], list[Stat]]) -> list[Stat]:
    """Freeze until a look shows nobody new, for a frozen tree cannot fork; then SIGKILL to all."""
    frozen: dict[tuple[int, int], Stat] = {}
    for _ in range(FREEZE_ROUNDS):
        fresh = [s for s in look() if (s.pid, s.start) not in frozen]
        if not fresh:
            break
        _send(fresh, signal.SIGSTOP)
        frozen.update({(s.pid, s.start): s for s in fresh})
    _send(frozen.values(), signal.SIGKILL)
    return list(frozen.values())


def _entries(pid: int) -> list[bytes]:
    return (procfs.environment(pid) or b"").split(b"\0")
