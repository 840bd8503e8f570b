"""PID 1's side of the control socket: which connection is which rank, and what the ranks report.

PID 1 relies on no rank: a connection that is closed, silent or full changes nothing by itself, and a rank that does not
come to the next round in time is replaced.  A malformed packet, or one of a process that does not belong to the rank
that it names, ends its connection, with one `problem` record.
"""

import select
from collections.abc import Iterator
from typing import Final

from ftrun.core.ranks.table import AskedRetry, FenceRank, Finished, LeftRound, Report, Restored, SaidHello, Snapshot
from ftrun.host.rank_socket import Peer, RankSocket
from ftrun.host.tree import Tree
from ftrun.messages import ranks
from ftrun.messages.codec import Malformed

MOST: Final = 1024  # connections
BATCH: Final = 16  # packets of one connection in a row
LONGEST_WHY: Final = 300  # characters
MOST_HELD: Final = 8  # snapshots of one rank


class RankChannel:
    """Listens at `path` until `close`.  Raises OSError if it cannot.  `problems`: lines for records."""

    def __init__(self, path: str, poll: select.poll, tree: Tree) -> None:
        self._poll, self._tree = poll, tree
        self._socket = RankSocket(path)
        self._poll.register(self._socket.fd, select.POLLIN)
        self._peers: dict[int, Peer] = {}  # by descriptor
        self._ranks: dict[int, int] = {}  # local ranks, by the descriptor of those that have said hello
        self.problems: list[str] = []

    def receive(self, ready: set[int] | None) -> list[Report]:
        """What the ranks report on the descriptors that are readable; None: on all, new connections included."""
        reports = [] if ready is None else self._receive_all(ready)
        if ready is None or self._socket.fd in ready:
            while (peer := self._socket.accept()) is not None:
                self._peers[peer.fd] = peer
                self._poll.register(peer.fd, select.POLLIN)
                if len(self._peers) > MOST:
                    self._refuse(peer.fd, f"more than {MOST} connections")
        return self._receive_all({*self._peers}) if ready is None else reports

    def _receive_all(self, ready: set[int]) -> list[Report]:
        return [report for fd in sorted(ready & self._peers.keys()) for report in self._receive_from(fd)]

    def _receive_from(self, fd: int) -> Iterator[Report]:
        for _ in range(BATCH):
            if fd not in self._peers:  # another connection has taken its place
                return
            packet = self._peers[fd].receive(ranks.LARGEST + 1)
            if packet is None:
                return
            if not packet:
                self._close(fd)
                return
            try:
                if len(packet) > ranks.LARGEST:
                    raise Malformed(f"more than {ranks.LARGEST} bytes")
                report = self._report(fd, ranks.FROM_RANK.load(packet))
            except Malformed as why:
                self._refuse(fd, str(why))
                return
            yield report

    def _report(self, fd: int, message: ranks.FromRank) -> Report:
        if isinstance(message, ranks.Hello):
            return self._said_hello(fd, message)
        if fd not in self._ranks:
            raise Malformed("a message before `hello`")
        local_rank = self._ranks[fd]
        match message:
            case ranks.Retry(number, why, kind):
                return AskedRetry(local_rank, number, why[:LONGEST_WHY], kind == "collective")
            case ranks.Barrier(number, held, problem):
                return LeftRound(local_rank, number, _snapshots(held), problem and problem[:LONGEST_WHY])
            case ranks.Restored(number):
                return Restored(local_rank, number)
            case ranks.Finished(number):
                return Finished(local_rank, number)

    def _said_hello(self, fd: int, message: ranks.Hello) -> Report:
        """The first message of a process.  A later connection of a rank replaces the earlier one."""
        if not self._tree.is_below(self._peers[fd].pid, message.local_rank):
            raise Malformed(f"process {self._peers[fd].pid} is not one of local rank {message.local_rank}")
        for other in [known for known, rank in self._ranks.items() if rank == message.local_rank and known != fd]:
            self._close(other)
        self._ranks[fd] = message.local_rank
        return SaidHello(message.local_rank, _snapshots(message.held))

    def send(self, act: ranks.ToRank) -> None:
        """Send it to the rank, if it is connected."""
        fd = next((fd for fd, rank in self._ranks.items() if rank == act.local_rank), None)
        if fd is None:
            return
        if isinstance(act, FenceRank):
            act = act._replace(why=act.why[:LONGEST_WHY])
        if not self._peers[fd].send(ranks.TO_RANK.dump(act)):
            self._close(fd)

    def _refuse(self, fd: int, why: str) -> None:
        self.problems.append(f"a connection to the control socket of the ranks was closed: {why}")
        self._close(fd)

    def _close(self, fd: int) -> None:
        self._poll.unregister(fd)
        self._peers.pop(fd).close()
        self._ranks.pop(fd, None)

    def close(self) -> None:
        """End all connections, and remove the socket."""
        for fd in [*self._peers]:
            self._close(fd)
        self._poll.unregister(self._socket.fd)
        self._socket.close()


def _snapshots(held: ranks.Held) -> tuple[Snapshot, ...]:
    return tuple(Snapshot(step, shard) for step, shard in held[-MOST_HELD:] if step >= 0)
