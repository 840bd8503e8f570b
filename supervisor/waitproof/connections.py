"""The TCP connections of the job's processes: with each other, or with something outside the job.  Pure."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from waitproof.world import Socket, WaitingProcess, World, host, is_accepted

FTRUN: Final = "ranks.sock"  # the name of the socket through which ftrun and a rank exchange messages
# Services of the machine that keep connections of ordinary programs and take no descriptor for later: of users' names,
# of logs and of devices.  By the names of their sockets.
_SERVICES: Final = re.compile(
    r"/sss/pipes/|/nscd/socket$|\.nscd_socket$|/nslcd/socket$|/systemd/userdb/|/systemd/journal/|^/dev/log$"
    r"|/nvidia-persistenced/socket$"
)
_CLOSED: Final = "socket:[0]"  # the other end of a Unix socket that was closed
_EVERYWHERE: Final = ("0.0.0.0", "[::]")  # a socket that listens there accepts connections to any address


class Connections:
    """The connections of one observation."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._keys = {(s.local, s.remote): key for key, s in world.sockets.items() if s.kind == "tcp"}

    def other_end(self, found: Socket) -> str | None:
        """The key of the socket at the other end, None where that is not on this machine.  For a connection that is
        not accepted yet: the key of the listening socket, None if there is more than one that may accept it."""
        if found.kind != "tcp":
            return found.peer or None
        key = self._keys.get((found.remote, found.local))
        if key is None or is_accepted(key):
            return key
        address, _, port = found.remote.rpartition(":")
        listening = [
            (k, s.local.rpartition(":")) for k, s in self._world.sockets.items() if s.kind == "tcp" and s.listens
        ]
        same = [(k, at) for k, (at, _, own) in listening if own == port]
        # A socket that listens at exactly this address goes before one that listens at all of them.
        keys = [k for k, at in same if at == address] or [k for k, at in same if at in _EVERYWHERE]
        return keys[0] if len(keys) == 1 else None

    def leads_outside(self, found: Socket) -> bool:
        """Whether no process of the job holds the other end of this connection."""
        if found.kind != "tcp" or found.listens or not found.remote:
            return False
        return not self._world.holders.get(self.other_end(found) or "")

    def on_this_machine(self, pid: int) -> bool:
        """Whether this process has a connection with a process outside the job on this machine, which may have got a
        key.  The connection of a rank with ftrun does not count."""
        for _, found in sockets_of(self._world, [pid]):
            key = self.other_end(found)
            other = self._world.sockets.get(key or "")
            local = key is not None and (found.kind == "unix" or other is not None)
            to_ftrun = other is not None and found.kind == "unix" and other.local.endswith(f"/{FTRUN}")
            if local and not to_ftrun and found.state == "ESTABLISHED" and not self._world.holders.get(key or ""):
                return True
        return False

    def strangers(self) -> dict[str, tuple[str, int]]:
        """The Unix sockets of the job whose other end no process of it has, and over which it may hand descriptors to
        somebody: by the key of the other end, the own one and a process that has it."""
        found = dict[str, tuple[str, int]]()
        for key, own in sockets_of(self._world, self._world.processes):
            if own.kind != "unix" or own.peer in ("", _CLOSED) or self._world.holders.get(own.peer):
                continue
            name = self._world.sockets.get(own.peer, own).local
            if not name.endswith(f"/{FTRUN}") and not _SERVICES.search(name):
                found[own.peer] = key, min(self._world.holders[key])
        return found

    def links(self) -> list[tuple[str, Socket]]:
        """The connections of the job whose other end no process of it holds, with their keys."""
        found = sockets_of(self._world, self._world.processes)
        return [(key, s) for key, s in found if s.state == "ESTABLISHED" and self.leads_outside(s)]

    def peers(self, pid: int) -> set[int] | None:
        """The processes of the job with which this one has TCP connections; None if some connection leads elsewhere, or
        ranks connect only when they first need each other."""
        found = set[int]()
        if self._world.processes[pid].connects_late:
            return None
        for _, seen in sockets_of(self._world, [pid]):
            if seen.kind == "tcp" and seen.state == "ESTABLISHED":
                holders = self._world.holders.get(self.other_end(seen) or "")
                if not holders:
                    return None
                found |= holders.keys()
        return found

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
            for _, found in sockets_of(self._world, [pid]):
                if self.leads_outside(found):
                    return f"and {name(pid)} is connected to {found.remote}, which is outside the job"
        return None


def sockets_of(world: World, pids: Iterable[int]) -> list[tuple[str, Socket]]:
    """The sockets that these processes have open, with their keys, each once."""
    opened = (world.processes[pid].fds.values() for pid in pids if pid in world.processes)
    keys = dict.fromkeys(end.key for fds in opened for end in fds if end.key in world.sockets)
    return [(key, world.sockets[key]) for key in keys]


def traffic(before: World, after: World, pids: Sequence[int]) -> tuple[str | None, float]:
    """Which data these processes exchange with something outside the job (None if none), and the bytes per second that
    all their sockets transferred."""
    seconds, transferred, outside = max(0.001, after.at - before.at), 0.0, None
    connections = Connections(after)
    for key, now in sockets_of(after, pids):
        if now.listens or now.kind != "tcp":
            continue
        then = before.sockets.get(key)
        rate = max(0, (now.moved or 0) - ((then.moved or 0) if then else 0)) / seconds
        transferred += rate
        changed = rate > 0 or (then is not None and then.queued != now.queued)
        if changed and connections.leads_outside(now) and host(now.remote) not in after.group:
            outside = outside or f"it exchanges {rate:.0f} B/s with {now.remote}, which is outside the job"
    return outside, transferred
