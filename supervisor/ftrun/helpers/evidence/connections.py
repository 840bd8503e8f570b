"""The TCP connections of the job's processes: with each other, or with something outside the job.  Pure."""

from collections.abc import Callable, Sequence

from ftrun.helpers.evidence.sockets import Socket
from ftrun.helpers.evidence.waits import WaitingProcess, World, host


class Connections:
    """The connections of one observation.  `inodes`: the sockets' inodes by local and remote address."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.inodes = {(s.local, s.remote): number for number, s in world.sockets.items() if s.kind == "tcp"}

    def other_end(self, found: Socket) -> int | None:
        """The inode of the socket at the other end, None where that is not on this machine.  For a connection that is
        not accepted yet: the inode of the listening socket."""
        number = self.inodes.get((found.remote, found.local))
        if number is None or number > 0:
            return number
        port = found.remote.rpartition(":")[2]
        listening = [(n, s) for n, s in self._world.sockets.items() if s.listens and s.local.rpartition(":")[2] == port]
        return next((n for n, s in listening if s.kind == "tcp"), None)

    def leads_outside(self, found: Socket) -> bool:
        """Whether no process of the job holds the other end of this socket."""
        if found.kind != "tcp" or found.listens or not found.remote:
            return False
        other = self.other_end(found)
        return other is None or not self._world.holders.get(f"socket:[{other}]")

    def elsewhere(self, process: WaitingProcess, ranks: Sequence[int], name: Callable[[int], str]) -> str | None:
        """Why some ranks of this rank's collectives must be outside this process tree; None if nothing shows it.
        `ranks`: the pids of the ranks in the tree, `name`: how to name a pid.

        torchrun gives each rank the number of all ranks and of those on its node.  Where only the number of all ranks
        is known, or none, a rank that has ended looks like one on another node, so a connection with something outside
        the job is required as well.
        """
        local, size = process.local_size, process.size
        if size is not None and local is not None:
            return f"{size - local} of which run on other nodes" if local < size else None
        same_job = {p.rank for p in self._world.processes.values() if p.size == size and p.rank is not None}
        if size is not None and len(same_job) >= size:
            return None
        for pid in ranks:
            seen = self._world.processes.get(pid)
            for end in seen.fds.values() if seen else ():
                found = self._world.sockets.get(inode(end.key)) if end.kind == "socket" else None
                if found is not None and self.leads_outside(found):
                    return f"and {name(pid)} is connected to {found.remote}, which is outside the job"
        return None


def traffic(before: World, after: World, pids: Sequence[int]) -> tuple[str | None, float]:
    """Which data these processes exchange with something outside the job (None if none), and the bytes per second that
    all their sockets transferred."""
    seconds, transferred, outside = max(0.001, after.at - before.at), 0.0, None
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
        transferred += max(0, count) / seconds
        other = connections.inodes.get((now.remote, now.local))
        inside = other is not None and (other < 0 or f"socket:[{other}]" in after.holders)
        changed = count > 0 or (then is not None and then.queued != now.queued)
        if changed and not inside and host(now.remote) not in after.group:
            rate = f"{max(0, count) / seconds:.0f} B/s"
            outside = outside or f"it exchanges {rate} with {now.remote}, which is outside the job"
    return outside, transferred


def inode(key: str) -> int:
    """The inode in the key of a socket's `Descriptor`; 0 if the key names no socket."""
    digits = key.removeprefix("socket:[").rstrip("]")
    return int(digits) if digits.isdigit() else 0
