"""With whom the processes of the job are connected over TCP: each other, or somebody outside.  Pure."""

from collections.abc import Callable, Sequence

from ftrun.helpers.evidence.sockets import Socket
from ftrun.helpers.evidence.waits import Process, World, host


class Connections:
    """Those of one observation.  `inodes`: of the sockets, by their local and remote address."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.inodes = {(s.local, s.remote): number for number, s in world.sockets.items() if s.kind == "tcp"}

    def other_end(self, found: Socket) -> int | None:
        """The inode of the socket at the other end, None where it is not on this machine.  Of a connection that nobody
        has accepted yet: of the socket that listens there."""
        number = self.inodes.get((found.remote, found.local))
        if number is None or number > 0:
            return number
        port = found.remote.rpartition(":")[2]
        listening = [(n, s) for n, s in self._world.sockets.items() if s.listens and s.local.rpartition(":")[2] == port]
        return next((n for n, s in listening if s.kind == "tcp"), None)

    def leads_outside(self, found: Socket) -> bool:
        """Whether no process of the job has the other end of this socket."""
        if found.kind != "tcp" or found.listens or not found.remote:
            return False
        other = self.other_end(found)
        return other is None or not self._world.holders.get(f"socket:[{other}]")

    def elsewhere(self, process: Process, ranks: Sequence[int], name: Callable[[int], str]) -> str | None:
        """What shows that some ranks of this rank's collectives are outside this tree; None: nothing does.  `ranks`:
        the pids of those in it, `name`: what they are called.

        torchrun tells each rank how many there are in all and on its node.  Where only the number of all is told, or
        none, a rank that is gone looks like one elsewhere: so it also takes a connection with somebody outside.
        """
        local, size = process.local_size, process.size
        if size is not None and local is not None:
            return f"{size - local} of which run on other nodes" if local < size else None
        alike = {p.rank for p in self._world.processes.values() if p.size == size and p.rank is not None}
        if size is not None and len(alike) >= size:
            return None
        for pid in ranks:
            seen = self._world.processes.get(pid)
            for end in seen.fds.values() if seen else ():
                found = self._world.sockets.get(inode(end.key)) if end.kind == "socket" else None
                if found is not None and self.leads_outside(found):
                    return f"and {name(pid)} is connected with {found.remote}, which is outside the job"
        return None


def traffic(before: World, after: World, pids: Sequence[int]) -> tuple[str | None, float]:
    """What these processes exchange with somebody outside the job, and the bytes a second that all their sockets
    moved."""
    seconds, moved, outside = max(0.001, after.at - before.at), 0.0, None
    connections = Connections(after)
    inodes = {
        inode(e.key)
        for pid in pids
        if pid in after.processes
        for e in after.processes[pid].fds.values()
        if e.kind == "socket"
    }
    for number in sorted(inodes):
        now, then = after.sockets.get(number), before.sockets.get(number)
        if now is None or now.listens or now.kind != "tcp":
            continue
        count = (now.moved or 0) - ((then.moved or 0) if then else 0)
        moved += max(0, count) / seconds
        other = connections.inodes.get((now.remote, now.local))
        inside = other is not None and (other < 0 or f"socket:[{other}]" in after.holders)
        changed = count > 0 or (then is not None and then.queued != now.queued)
        if changed and not inside and host(now.remote) not in after.group:
            rate = f"{max(0, count) / seconds:.0f} B/s"
            outside = outside or f"it exchanges {rate} with {now.remote}, which is outside the job"
    return outside, moved


def inode(key: str) -> int:
    """Of the key of a socket's `GroupEnd`."""
    digits = key.removeprefix("socket:[").rstrip("]")
    return int(digits) if digits.isdigit() else 0
