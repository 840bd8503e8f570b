"""Finds the processes that a killed ftrun left running, which its successor on the same run dir may end, and no
others."""

import os
from typing import Final

from ftrun.core.named_tuple import NamedTuple
from ftrun.host import procfs
from ftrun.host.procfs import Stat

KEYS: Final = ("number", "start", "session", "place", "forks")  # of `CommandGroup` in `state.json`
REFRESH: Final = 60.0  # s between two reads of the kernel's count of forks


class NamespaceId(NamedTuple):
    """Identifies where process ids keep their meaning: this boot and this PID namespace.  The kernel may reuse the
    number of a namespace that has ended; the start time of its first process distinguishes the two."""

    boot: str
    namespace: int
    first: int


class CommandGroup(NamedTuple):
    """The process group in which a command was started.  While the kernel's count of forks is below `forks`, the number
    of the group cannot have been reused."""

    number: int
    start: int
    session: int
    pid_namespace: NamespaceId
    forks: int


class Recorder:
    """Keeps the group of the last command for `state.json`."""

    def __init__(self) -> None:
        self._group: CommandGroup | None = None
        self._counted_at = 0.0

    def follow(self, command: Stat | None, now: float) -> dict[str, object] | None:
        """Return the group for `state.json`.  `command`: it exists and is not reaped, so that the group's number is in
        use.  None: the group is unchanged."""
        if command is not None:
            known = self._group is not None and (self._group.number, self._group.start) == (command.pid, command.start)
            if not known or now >= self._counted_at + REFRESH:
                self._group, self._counted_at = _group(command), now
        if self._group is None:
            return None
        number, start, session, pid_namespace, forks = self._group
        return dict(zip(KEYS, (number, start, session, list(pid_namespace), forks), strict=True))


def load_group(state: dict[str, object]) -> CommandGroup | None:
    """Return the group that a state file names; None if there is none, or if its numbers belong to another boot or
    namespace."""
    group = state.get("group")
    if state.get("ended") is True:
        return None  # that ftrun was not killed: it ended its processes itself
    if not isinstance(group, dict) or group.keys() != set(KEYS):
        return None
    numbers = [group[name] for name in ("number", "start", "session", "forks")]
    here = current_namespace()
    if here is None or group["place"] != list(here) or not all(type(number) is int for number in numbers):
        return None
    number, start, session, forks = numbers
    # ftrun's own group is not the group of a dead command; 0 and 1 are not groups of a command.
    return CommandGroup(number, start, session, here, forks) if number > 1 and number != os.getpgrp() else None


def find_processes(
    marker: bytes, command: tuple[int, int], dead: CommandGroup | None, listings: int = procfs.COMPLETE
) -> list[Stat]:
    """Return living processes that an earlier, killed ftrun left: its command, by pid and start time; all processes
    with its marker in their environment; and the members of the command's group, whose environment may be cleared.
    `listings`: as in `procfs.all_processes`."""
    processes = procfs.all_processes(listings)
    others = [s for s in processes if s.pid != os.getpid() and not s.ended]
    found = [s for s in others if (s.pid, s.start) == command or marker in procfs.environment(s.pid)]
    if dead is None:
        return found
    members = [s for s in others if (s.group, s.session) == (dead.number, dead.session) and s.start >= dead.start]
    known = {s.pid for s in found}
    if not members or not _same(dead, processes, any(s.pid in known for s in members)):
        return found
    return found + [s for s in members if s.pid not in known]


def _same(dead: CommandGroup, processes: list[Stat], marked: bool) -> bool:
    """Return whether the group of this number is still the group of the dead command.

    The kernel does not reuse a number while a process of that number lives or a group of that number has a member
    (pid.c, `__change_pid`).  So the group is the same if the recorded leader still exists, as a zombie or not, or if
    one of the members carries the marker.  Otherwise the leader is gone, and its number can only have been reused after
    all other numbers were assigned: the kernel assigns numbers in a circle.
    """
    leader = next((s for s in processes if s.pid == dead.number), None)
    if leader is not None:
        return leader.start == dead.start
    counted = _forks()
    return marked or (counted is not None and counted < dead.forks)


def current_namespace() -> NamespaceId | None:
    """Return None if /proc does not provide the data."""
    first, boot = procfs.stat(1), procfs.boot_id()
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return None
    return NamespaceId(boot, namespace, first.start) if first is not None and boot else None


def _group(command: Stat) -> CommandGroup | None:
    here = current_namespace()
    if here is None or command.group != command.pid:
        return None  # it has moved to another process's group
    highest = procfs.read("/proc/sys/kernel/pid_max", 64) or b""
    # Half of the number range: a fork that fails late also uses a number, but is not counted.
    counted = _forks()
    forks = counted + int(highest) // 2 if counted is not None and highest.strip().isdigit() else 0
    return CommandGroup(command.pid, command.start, command.session, here, forks)


def _forks() -> int | None:
    """Return how many processes and threads the kernel has started since boot (proc_stat(5)); None if unknown."""
    _, found, rest = (procfs.read("/proc/stat", 1 << 20) or b"").partition(b"\nprocesses ")
    number = rest.partition(b"\n")[0]
    return int(number) if found and number.isdigit() else None
