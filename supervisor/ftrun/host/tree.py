"""The process tree of the command: everything below ftrun but its helpers, what was there before it, and what came in
from outside (`docker exec`)."""

import os
import signal
from collections.abc import Callable, Iterable, Sequence

from ftrun.host import procfs
from ftrun.host.job_control import JobControl
from ftrun.host.leftovers import environment_entries
from ftrun.host.procfs import Stat

FREEZE_ROUNDS = 64


class Tree:
    """`marker`: the environment entry that only this ftrun's command and its descendants have."""

    def __init__(self, marker: bytes) -> None:
        self._marker = marker
        self._me = os.getpid()
        self._session = os.getsid(0)
        self._foreign_sessions: set[int] = set()
        self.command: int | None = None
        self._refused: set[tuple[int, int]] = set()  # what the last signal to all was not permitted to (EPERM)
        self._not_forwarded: set[int] = set()
        # A shell that exec'ed us may have left children of its own to us: they are not ours to end.
        inherited = (procfs.stat(pid) for pid in procfs.children(self._me))
        self._spared = {(s.pid, s.start) for s in inherited if s is not None}

    @property
    def marker_environment(self) -> dict[str, str]:
        """The marker, for the environment of what is ours."""
        name, _, value = os.fsdecode(self._marker).partition("=")
        return {name: value}

    def exclude(self, pid: int) -> None:
        """A helper of ours: not part of the command's tree, nor is anything below it."""
        if found := procfs.stat(pid):
            self._spared.add((found.pid, found.start))

    def members(self) -> list[Stat]:
        """All living members.  Orphans are included: as PID 1 or as subreaper we are their parent."""
        below: dict[int, list[Stat]] = {}
        for process in procfs.all_processes():
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

    def is_empty(self) -> bool:
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
        environment = environment_entries(process.pid)
        if self._marker in environment:
            return False
        if process.session == self._session and (self._session != 0 or process.group != 0):
            return False
        return (
            process.session in self._foreign_sessions
            or process.group == 0
            or any(e.startswith(b"PATH=") for e in environment)
        )

    def forward(self, number: int, control: JobControl) -> str | None:
        """To the command's process group; where the terminal's keys reach that anyway, to the command alone.

        One line for a person if it cannot be delivered, once for each signal.
        """
        if self.command is None:
            return None
        if number == signal.SIGCONT:
            control.continued(self.command)
        try:
            if control.keys_reach_command:
                os.kill(self.command, number)
            else:
                os.killpg(self.command, number)
        except PermissionError:
            if number in self._not_forwarded:
                return None
            self._not_forwarded.add(number)
            name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
            found = procfs.stat(self.command)
            whom = procfs.describe_with_user(found) if found else "the command"
            return f"{name} cannot be forwarded to {whom}: no permission to signal it (CAP_KILL)"
        except OSError:
            pass  # it has just ended
        return None

    def is_not_permitted(self, process: Stat) -> bool:
        """Whether the last signal to all was not permitted to this one."""
        return (process.pid, process.start) in self._refused

    def beyond_reach(self, members: Sequence[Stat]) -> bool:
        """Whether these, which live, are all that is left, and none of them may be signalled."""
        left = {member.pid for member in members}
        return all(map(self.is_not_permitted, members)) and (self.command is None or self.command in left)

    def terminate(self) -> list[Stat]:
        """SIGTERM to all, and SIGCONT so that stopped ones can act on it."""
        members = self.members()
        self._refused = _send(members, signal.SIGTERM)
        _send(members, signal.SIGCONT)
        return members

    def kill(self) -> list[Stat]:
        members, self._refused = kill(self.members)
        return members


def _send(processes: Iterable[Stat], number: int) -> set[tuple[int, int]]:
    """Those that we are not permitted to signal, by pid and start time."""
    refused = set()
    for process in processes:
        try:
            os.kill(process.pid, number)
        except PermissionError:
            refused.add((process.pid, process.start))
        except OSError:
            pass  # ended meanwhile
    return refused


def kill(look: Callable[[], list[Stat]]) -> tuple[list[Stat], set[tuple[int, int]]]:
    """Freeze until a look shows nobody new, for a frozen tree cannot fork; then SIGKILL to all.  All of them, and those
    that we are not permitted to signal, by pid and start time."""
    frozen: dict[tuple[int, int], Stat] = {}
    for _ in range(FREEZE_ROUNDS):
        fresh = [s for s in look() if (s.pid, s.start) not in frozen]
        if not fresh:
            break
        _send(fresh, signal.SIGSTOP)
        frozen.update({(s.pid, s.start): s for s in fresh})
    refused = _send(frozen.values(), signal.SIGKILL)
    return list(frozen.values()), refused
