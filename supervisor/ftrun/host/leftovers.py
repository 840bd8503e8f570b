"""What a killed ftrun left running: the processes that its successor on the same run dir may end, and no others."""

import os
from typing import Final, NamedTuple

from ftrun.host import procfs
from ftrun.host.procfs import Stat

REFRESH: Final = 60.0  # s between two readings of the kernel's count of forks


class NamespaceId(NamedTuple):
    """Where process numbers mean what they meant: this boot, and this PID namespace.  The kernel gives the number of a
    namespace that has ended to a later one; the start of its first process tells the two apart."""

    boot: str
    namespace: int
    first: int


class Group(NamedTuple):
    """The process group that a command was started in.  `forks`: as long as the kernel has counted fewer, the number
    of the group cannot have been given to another one."""

    number: int
    start: int
    session: int
    place: NamespaceId
    forks: int


class Recorder:
    """Keeps the group of the last command for `state.json`."""

    def __init__(self) -> None:
        self._group: Group | None = None
        self._counted_at = 0.0

    def follow(self, command: Stat | None, now: float) -> dict[str, object] | None:
        """`command`: it is there, and we have not reaped it, so that the group's number is in use.  None: as it was."""
        if command is not None:
            known = self._group is not None and (self._group.number, self._group.start) == (command.pid, command.start)
            if not known or now >= self._counted_at + REFRESH:
                self._group, self._counted_at = _group(command), now
        return None if self._group is None else self._group._asdict() | {"place": list(self._group.place)}


def load_group(state: dict[str, object]) -> Group | None:
    """The group that a state names; None where there is none, or where its numbers mean something else here."""
    found = state.get("group")
    if state.get("ended") is True:
        return None  # it was not killed: it has ended all that it may end
    if not isinstance(found, dict) or found.keys() != set(Group._fields):
        return None
    numbers = [found[name] for name in ("number", "start", "session", "forks")]
    here = current_namespace()
    if here is None or found["place"] != list(here) or not all(type(number) is int for number in numbers):
        return None
    number, start, session, forks = numbers
    # A group of ours is not that of a dead command, and what is in no group of its own has the numbers 0 and 1.
    return Group(number, start, session, here, forks) if number > 1 and number != os.getpgrp() else None


def find_processes(marker: bytes, command: tuple[int, int], dead: Group | None) -> list[Stat]:
    """Living processes that an earlier, killed ftrun left: its command, by pid and start time; all that carry its
    marker in their environment; and the members of the command's group, whose environment may be cleared."""
    everyone = procfs.all_processes()
    others = [s for s in everyone if s.pid != os.getpid() and not s.ended]
    found = [s for s in others if (s.pid, s.start) == command or marker in environment_entries(s.pid)]
    if dead is None:
        return found
    members = [s for s in others if (s.group, s.session) == (dead.number, dead.session) and s.start >= dead.start]
    known = {s.pid for s in found}
    if not members or not _same(dead, everyone, any(s.pid in known for s in members)):
        return found
    return found + [s for s in members if s.pid not in known]


def _same(dead: Group, everyone: list[Stat], marked: bool) -> bool:
    """Whether the group of this number is still that of the dead command.

    The kernel gives a number to no other process or group while a process of that number lives or a group of it has a
    member (pid.c, `__change_pid`).  So it is the same one where the leader that was recorded is still there, a zombie
    or not; or where one of its members carries the marker.  Else the leader is gone, and the number could have come
    back only after all others had their turn: numbers are given in a circle.
    """
    leader = next((s for s in everyone if s.pid == dead.number), None)
    if leader is not None:
        return leader.start == dead.start
    counted = _forks()
    return marked or (counted is not None and counted < dead.forks)


def current_namespace() -> NamespaceId | None:
    """None where /proc does not tell."""
    first, boot = procfs.stat(1), procfs.read("/proc/sys/kernel/random/boot_id", 64)
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return None
    return (
        None
        if first is None or not boot
        else NamespaceId(boot.decode("ascii", "replace").strip(), namespace, first.start)
    )


def _group(command: Stat) -> Group | None:
    here = current_namespace()
    if here is None or command.group != command.pid:
        return None  # it has gone to the group of another process
    highest = procfs.read("/proc/sys/kernel/pid_max", 64) or b""
    # Half of a turn: a fork that fails late has taken a number as well, and is not counted.
    counted = _forks()
    forks = counted + int(highest) // 2 if counted is not None and highest.strip().isdigit() else 0
    return Group(command.pid, command.start, command.session, here, forks)


def _forks() -> int | None:
    """How many processes and threads the kernel has started since boot (proc_stat(5)); None where it is not told."""
    _, found, rest = (procfs.read("/proc/stat", 1 << 20) or b"").partition(b"\nprocesses ")
    number = rest.partition(b"\n")[0]
    return int(number) if found and number.isdigit() else None


def environment_entries(pid: int) -> list[bytes]:
    return (procfs.environment(pid) or b"").split(b"\0")
