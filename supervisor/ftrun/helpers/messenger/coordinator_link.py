"""Rank 0's side of the group: a ROUTER socket for all members, around the pure `core/group/coordinator.py`.

Everything that it knows comes from the members, so it may die at any time.  A client without the secret of the group
can connect, is reported, and finds out that something listens here; frames are bounded, and only a flood delays a
member that wants to join (connections.py).  A client with the secret can do what a member can, as any rank, which
docs/security.md lists; no order carries a command.
"""

import errno
import json
import math
import time
from collections.abc import Iterator, Mapping
from typing import Final

import zmq

from ftrun import __version__
from ftrun.config.option_table import ConfigError
from ftrun.core.group import coordinator, membership
from ftrun.core.group.lease import Place
from ftrun.core.group.losses import NodeLost, NodeNote
from ftrun.core.group.messages import MOST_LIVES, Life, MemberReport, Pulse, Starter
from ftrun.core.group.root_cause import MemberLost
from ftrun.core.text.durations import seconds
from ftrun.helpers.lines import MAX_PROBLEM_LENGTH, ProtocolLines
from ftrun.helpers.messenger.connections import HANDSHAKE, MemberConnections, is_own
from ftrun.helpers.messenger.death_watch import DeathWatch
from ftrun.helpers.messenger.group_view import CoordinatorSide
from ftrun.helpers.messenger.steps import read_pulse
from ftrun.helpers.messenger.transport import LATE, RESUMED, RETRY, secure, server, split
from ftrun.messages import group_view, peers
from ftrun.messages import messenger as messages
from ftrun.messages.codec import Malformed

NAME: Final = 100  # characters


class MemberProcess:
    """One ftrun process of a member."""

    def __init__(self, hello: peers.MemberHello, hello_frame: bytes = b"") -> None:
        self.hello, self.hello_frame = hello, hello_frame
        self.id, self.fd = b"", -1  # of its connection, if there is one
        self.report, self.seq, self.state = b"", 0, ""
        self.last_seen, self.stamp = 0.0, b""  # when the last message arrived, and the sender's time in it
        self.host = ""  # its address
        self.closed = self.until = math.inf  # when its connection closed, and until when it may reconnect
        self.gone = False  # the coordinator has counted it as lost or left
        self.renews = False  # it has announced that it renews its connection
        self.refused = ""
        self.lease: peers.LeaseView | None = None  # what it knows of the lease, by its last message
        self.lease_at = 0.0


def located(report: MemberReport, host: str) -> MemberReport:
    """The report, with the address at which the other members reach its sender, if it is known."""
    ranks = report.ranks and report.ranks._replace(address=report.ranks.address or host)
    return report._replace(address=host, ranks=ranks) if host else report


def sender(content: bytes) -> str:
    """The sender of a `Hello` for a person, as far as it can be decoded."""
    try:
        found = json.loads(content[: peers.LIMIT])
        return f"member {int(found['rank'])} ({peers.line(str(found['node'])[:NAME])})"
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return "a peer"


def job_text(name: str) -> str:
    return f"the job {name}" if name else "a job without a name"


BATCH: Final = 256  # messages that are read before other work is done
QUEUED: Final = 16  # messages to one peer; each carries a complete state, so the next one replaces a lost one
UNREAD: Final = 4  # messages of one peer, of which each keeps 18 KiB of libzmq's memory; more wait at the peer
RECONNECT: Final = 5.0  # s that a member has to reconnect: a messenger that died starts again
RESTARTING: Final = 30.0  # s for that while its PID 1 lives: on a crowded machine the imports alone may take 20 s
GIVEN_UP: Final = 3.0  # s beyond a heartbeat period; a connection that closes after such a silence was given up
CONNECTING: Final = 0.25  # s by which RECONNECT is extended while its host connects, at most to HANDSHAKE, or it lives
LEAVING: Final = 4.0  # s that rank 0 waits for the members to leave
MARKING: Final = 2.0  # s that it stays until the shared folder says that the group has ended
FLUSH: Final = 0.3  # s in which the last orders are sent; a member that has its own closes the connection earlier
SCAN: Final = 1.0  # s between two checks for silent members
PULSES_VALID: Final = 0.1  # s for which the collected pulses are reused
STAMP: Final = 32  # bytes
KEEPALIVE: Final = 60  # s until the kernel closes the connection of a machine that is gone


class CoordinatorLink:
    """The owner polls `sources`, and calls `process` after that and at `due`."""

    def __init__(self, address: peers.MemberAddress, beat_dir: str, lines: ProtocolLines) -> None:
        self._address, self._beat_dir, self._lines = address, beat_dir, lines
        self._period = peers.period(address.size)
        self._context = zmq.Context(io_threads=1)
        self._socket = router = self._context.socket(zmq.ROUTER)
        router.ipv6 = True
        router.maxmsgsize = peers.LIMIT
        router.rcvhwm, router.sndhwm = UNREAD, QUEUED
        router.backlog = max(100, address.size)
        router.tcp_keepalive, router.tcp_keepalive_idle = 1, KEEPALIVE // 2
        router.tcp_keepalive_intvl, router.tcp_keepalive_cnt = KEEPALIVE // 6, 3
        router.setsockopt(zmq.TCP_MAXRT, KEEPALIVE * 1000)
        self._connections = MemberConnections(router, address.size, lines)
        self.sources = (router, self._connections.source)
        self._bound, self._unbound = False, ""  # the second: why not
        self._misfit = "", ""  # the last node that can never join as it is, and why
        self._peers: dict[int, dict[str, MemberProcess]] = {}  # by rank and life
        self._by_id: dict[bytes, MemberProcess] = {}
        self._by_fd: dict[int, MemberProcess] = {}
        self._disconnected: list[MemberProcess] = []  # whose connection has just closed
        self._deaths: DeathWatch[MemberProcess] = DeathWatch()
        self._starters: DeathWatch[str] = DeathWatch()  # earlier processes of member 0, by life
        self._pulse_frames: dict[int, tuple[bytes, float]] = {}  # by rank: the last pulse as received, and when
        self._pulses: dict[int, Pulse] = {}
        self._pulses_at = -math.inf
        self._own_report: MemberReport | None = None
        self._left_at, self.marking = 0.0, False  # the shared folder does not say yet that the group has ended
        self._leaving = math.inf
        self._known_starters: Mapping[str, tuple[Starter, float]] = {}
        self._ended_lives: DeathWatch[tuple[int, str]] = DeathWatch()  # of other members, from before this process
        self._lives: tuple[Life, ...] = ()  # as sent last
        now = time.monotonic()
        self._coordinator = membership.new_coordinator(
            now,
            membership.GroupShape(address.size, address.least, address.spares, address.replaces, address.scale_out),
            *(address.wait, address.drain, address.heal, address.silence),
            Starter(address.life, address.node, address.boot, "", address.port, address.contained, rank=address.rank),
            folder_unproved=bool(address.folder),
        )
        self._stopped = 0.0  # s for which this process was stopped: see `_note_stop`
        self._order, self._sent_order, self._delivered_order = peers.dump(self._coordinator.order), b"", b""
        self._next = self._scan = self._planned = self._lenient_until = now
        self._more = False
        self.view = CoordinatorSide(address, lines, self._send_view)

    @property
    def due(self) -> float:
        """The time of the next action that no socket event triggers."""
        if self._more:
            return 0.0
        deadline = math.inf if self._coordinator.deadline is None else self._coordinator.deadline + self._stopped
        closed = min((peer.until for peer in self._disconnected), default=math.inf)
        watches = self._deaths.due, self._starters.due, self._ended_lives.due
        return min(self._next, self._scan, self._leaving, deadline, closed, *watches, self.view.due)

    def set_report(self, report: MemberReport, now: float) -> None:
        """Set the report of this node's own PID 1, which is a member like the others."""
        self._note_stop(now)
        if self._address.rank:  # it has taken over, and the endpoint of the group is another machine's
            report = located(report, split(self._address.endpoint)[0])
        self._own_report = report
        if report.state == "left" and self._leaving == math.inf:
            self._left_at, self._leaving = now, now + LEAVING
        self._decide(membership.Reported(self._running(now), report, self._pulses_if_failed(report, now)))

    def process(self, now: float) -> None:
        self._note_stop(now)
        self._read(now)
        self._handle_closed(now)
        self._connections.make_room(self._by_fd)
        self._check_lost(now)
        self._check_starters(now)
        self._check_lives(now)
        self._check_strangers(now)
        if now >= self._next:
            self._next = now + (self._period if self._bind() else RETRY)
            self._pulse_frames[self._address.rank] = peers.dump_pulse(read_pulse(self._beat_dir, now)), now
            if self._delivered_order:
                self._lines.send(messages.Contact())
        if self._coordinator.deadline is not None and self._running(now) >= self._coordinator.deadline:
            self._decide(membership.GroupDeadlineReached(self._running(now)))
        self._send_order()
        self.view.process(now, self._coordinator, self._present, self._stopped)
        if self._leaving < math.inf:
            self._check_leaving(now)
        self._planned = max(now, self.due)

    def _note_stop(self, now: float) -> None:
        """Whether this process was stopped, as with a whole job that is suspended.  All members get time to report
        then, and the coordinator's times do not run meanwhile: leases are longer, never shorter."""
        stopped = now - self._planned
        if stopped <= LATE:
            return
        self._stopped, self._planned = self._stopped + stopped, now
        for peer in self._all_peers():
            peer.last_seen, peer.closed, peer.until = (at + stopped for at in (peer.last_seen, peer.closed, peer.until))
        self._lenient_until = now + (RESUMED if stopped > RESUMED else LATE) + self._period

    def _running(self, at: float) -> float:
        """The coordinator's time, which does not run while this process is stopped."""
        return at - self._stopped

    def _check_leaving(self, now: float) -> None:
        """PID 1 ends this process after `LeaveConfirmed`, so the members get their last order before.  Members that
        this process, which may be new, has not heard of yet get the time to reconnect for that."""
        unknown = self._coordinator.size > len(self._coordinator.members)
        may_come = unknown and self._running(now) < self._coordinator.started + RECONNECT
        if self._coordinator.order.what != "end" or not (self._coordinator.staying or may_come):
            # Nobody needs the order, or they wait for another rank 0.
            self._leaving = min(self._leaving, now + FLUSH) if self._by_fd else now
        if now >= self._leaving and self.marking and now < self._left_at + MARKING:
            self._leaving = now + FLUSH / 4
        elif now >= self._leaving:
            self._leaving = math.inf
            self._lines.send(messages.LeaveConfirmed())
            self._own_report = None

    # --- the lease in a shared folder (lease_keeper.py) --------------------------------------------------------------

    @property
    def group(self) -> membership.Coordinator:
        return self._coordinator

    @property
    def lease_views(self) -> dict[tuple[int, str], tuple[peers.LeaseView, float]]:
        """What the connected members know of the lease, and when they reported it."""
        there = (peer for peer in self._by_id.values() if not (peer.gone or peer.refused))
        return {(p.hello.rank, p.hello.life): (p.lease, p.lease_at) for p in there if p.lease is not None}

    @property
    def certainly_dead(self) -> set[tuple[int, str]]:
        members = self._coordinator.members.values()
        ended = (m for m in members if m.report.state == "left" or (m.gone is not None and m.gone.certain))
        return {(m.report.rank, m.report.life) for m in ended}

    def folder_proved(self, now: float) -> None:
        self._note_stop(now)
        if self._coordinator.folder_unproved:
            self._decide(membership.FolderProved(self._running(now)))

    def lease_taken(self, before: Place | None, now: float) -> None:
        self._note_stop(now)
        self._decide(membership.LeaseTaken(self._running(now), before))

    def lease_foreign(self, holder: int, until: float | None, now: float) -> None:
        self._note_stop(now)
        until = None if until is None or until == math.inf else self._running(until)
        known = self._coordinator
        if (known.lease_state, known.lease_holder, known.lease_until) != ("foreign", holder, until):
            self._decide(membership.LeaseForeign(self._running(now), holder, until))

    def close(self, orphan: bool) -> None:
        """Close all connections, which is how the members detect the end of rank 0."""
        self.view.close()
        self._deaths.close()
        self._starters.close()
        self._ended_lives.close()
        self._socket.disable_monitor()
        self._context.destroy(linger=200)  # ms, for the last order

    def _bind(self) -> bool:
        if self._bound:
            return True
        try:
            address = server(self._address, True)
            secure(self._socket, self._address, True)
            self._socket.bind(address)
            self._bound, self._unbound = True, ""
        except ConfigError as error:
            self._lines.problem(f"no node can join: {error}")
        except zmq.ZMQError as error:
            taken = ": another process listens there, perhaps a second ftrun of member 0"
            taken = taken if error.errno == errno.EADDRINUSE else ""
            self._unbound = f"no node can join: {self._address.endpoint}: {error.strerror}{taken}"
            self._lines.problem(self._unbound)
        return self._bound

    def _can_refuse_finally(self, now: float) -> bool:
        """Whether a node with another group size or version can never join.  Not while the group ends: the node may be
        of a later schedule.  Not while a running group lacks a member: it gives up in the end, and then all of its
        containers are created anew, with one version."""
        own = self._own_report
        leaves = own is not None and own.state in ("leaving", "left")
        if leaves or isinstance(self._coordinator.phase, membership.Ended):
            return False
        since = now - self._period - GIVEN_UP
        present = {p.hello.rank for p in self._by_id.values() if p.last_seen >= since and not (p.gone or p.refused)}
        return not self._coordinator.epoch or len(present) == self._address.size - 1

    def _all_peers(self) -> Iterator[MemberProcess]:
        return (peer for peers_of_rank in self._peers.values() for peer in peers_of_rank.values())

    def _read(self, now: float) -> None:
        self._more = False
        for _ in range(BATCH):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            id, *content = (frame.bytes for frame in frames)
            peer: MemberProcess | None = None
            try:
                if len(content) == 2 and content[1] in (peers.BYE, peers.RENEW):
                    self._goodbye(id, content, now)
                    continue
                if len(content) == 3 and content[1] in group_view.KINDS:
                    self._receive_view(id, content, now)
                    continue
                if len(content) not in (4, 5) or len(content[3]) > STAMP:
                    raise Malformed("it does not use the protocol of a member")
                peer = self._by_id.get(id)
                if peer is None or peer.hello_frame != content[0]:
                    peer = self._admit(content[0])
                    self._misfit = self._misfit if self._misfit[0] != sender(content[0]) else ("", "")
                    self._attach(peer, id, int(frames[0].get(zmq.SRCFD)), now)
                self._receive_report(peer, content[1:], now)
                if peer.refused:
                    raise Malformed(peer.refused)
            except Malformed as why:
                who, final = sender(content[0]), isinstance(why, peers.Incompatible) and self._can_refuse_finally(now)
                self._lines.problem(f"{who} was refused: {why}")
                if final:
                    self._misfit = who, f"{who} was refused: {why}"
                over = self._ended_without if peer is not None and peer.refused else b""
                self._send([id, peers.REFUSED, str(why).encode(), peers.FINAL if final else over])
                continue
            self._send_order_to(peer)
        self._more = True

    def _receive_view(self, id: bytes, content: list[bytes], now: float) -> None:
        """A message about the view of the group, of a member that has reported; otherwise it is dropped."""
        peer = self._by_id.get(id)
        if peer is not None and peer.hello_frame == content[0]:
            self.view.receive(peer.hello.rank, content[1], content[2], now)

    def _send_view(self, rank: int, kind: bytes, content: bytes) -> bool:
        lives = reversed(self._peers.get(rank, {}).values())  # the newest first
        peer = next((one for one in lives if one.id and not one.refused), None)
        return peer is not None and self._send([peer.id, kind, content])

    def _present(self) -> dict[int, MemberProcess]:
        """The members that are connected."""
        return {peer.hello.rank: peer for peer in self._by_id.values() if peer.id and not peer.refused}

    def _goodbye(self, id: bytes, content: list[bytes], now: float) -> None:
        hello_frame, notice = content
        peer = self._by_id.get(id)
        if peer is None or peer.hello_frame != hello_frame or peer.gone:
            return
        if notice == peers.RENEW:
            peer.renews, peer.last_seen = True, now
        else:
            self._lose_member(peer, "its ftrun has died", True, now, peer.hello.contained)

    def _admit(self, content: bytes) -> MemberProcess:
        """The peer with this `Hello`; `Malformed` if it cannot be a member of this group."""
        hello = peers.load_hello(content, __version__)
        if hello.job != self._address.job:
            raise Malformed(f"it belongs to {job_text(hello.job)}, and rank 0 to {job_text(self._address.job)}")
        if hello.size != self._address.size:
            raise peers.Incompatible(f"it is in a group of {hello.size}, and rank 0 in one of {self._address.size}")
        if (hello.least, hello.spares) != (self._address.least, self._address.spares):
            theirs, ours = (peers.shape_text(one) for one in (hello, self._address))
            raise peers.Incompatible(f"it is in a group of {theirs}, and rank 0 in one of {ours}")
        if not 0 <= hello.rank < hello.size or hello.rank == self._address.rank:
            why = f"is the coordinator's own, or does not belong to a group of {hello.size}"
            raise Malformed(f"member {hello.rank} {why}")
        peers_of_rank = self._peers.setdefault(hello.rank, {})
        for life in [life for life, old in peers_of_rank.items() if old.gone and not old.id and life != hello.life]:
            del peers_of_rank[life]
        peer = peers_of_rank.setdefault(hello.life, MemberProcess(hello))
        peer.hello, peer.hello_frame = hello, content
        return peer

    def _attach(self, peer: MemberProcess, id: bytes, fd: int, now: float) -> None:
        self._by_id.pop(peer.id, None)
        self._by_fd.pop(peer.fd, None)
        before = self._by_fd.get(fd)
        if before is not None and before is not peer:
            self._connection_closed(fd, now)  # a descriptor has only one connection, so the earlier one is closed
        peer.id, peer.fd, peer.closed, peer.renews = id, fd, math.inf, False
        self._by_id[id] = self._by_fd[fd] = peer
        self._handle_closed(now)  # it may be closed already; otherwise it is listed in `open` now
        connection = self._connections.open.get(fd)
        if connection is None:
            self._connection_closed(fd, now)
        else:
            peer.host = connection.host
            self._connections.fits(peer.host)
            self._deaths.joined(peer, peer.host, peer.hello.port, now)

    def _receive_report(self, peer: MemberProcess, frames: list[bytes], now: float) -> None:
        """Process the report, pulse and time of a member.  A heartbeat without changes costs nothing further."""
        content, pulse, stamp = frames[:3]
        peer.last_seen, peer.stamp = now, stamp
        if len(frames) > 3:
            peer.lease, peer.lease_at = peers.load(peers.LeaseView, frames[3]), now
        if content != peer.report or peer.gone or peer.refused:
            report = peers.load_report(content)
            if (report.rank, report.life) != (peer.hello.rank, peer.hello.life):
                raise Malformed("its report names another member")
            peer.report, peer.seq, peer.state = content, report.seq, report.state
            peer.gone, peer.refused = False, ""
            self._pulse_frames[report.rank] = pulse, now
            pulses = self._pulses_if_failed(report, now)
            self._decide(membership.Reported(self._running(now), located(report, peer.host), pulses))
            peer.gone = report.state == "left"
        if not peer.refused:
            self._pulse_frames[peer.hello.rank] = pulse, now

    def _handle_closed(self, now: float) -> None:
        for fd in self._connections.closed(now):
            self._connection_closed(fd, now)

    def _connection_closed(self, fd: int, now: float) -> None:
        peer = self._by_fd.pop(fd, None)
        if peer is None:
            return  # it is not the current connection of a peer
        self._by_id.pop(peer.id, None)
        peer.id, peer.fd, peer.closed, peer.until = b"", -1, now, now + RECONNECT
        # A member that is killed closes its connection while messages flow.  After a silence the cause is the network:
        # both ends give a connection up when nothing arrives.
        if not peer.gone and not peer.renews and now < peer.last_seen + self._period + GIVEN_UP:
            self._disconnected.append(peer)
            self._deaths.closed(peer, now)

    def _check_lost(self, now: float) -> None:
        """Report members as lost that have not reconnected in time, or that are silent."""
        for peer in self._deaths.process(now):
            if peer.closed < math.inf and not peer.gone:
                self._lose_member(peer, "its ftrun has died", True, now, peer.hello.contained)
        self._disconnected = [peer for peer in self._disconnected if peer.closed < math.inf and not peer.gone]
        for peer in self._disconnected:
            if now < peer.until:
                continue
            unattached = (one.host for fd, one in self._connections.open.items() if fd not in self._by_fd)
            connects = peer.host in unattached and now < peer.closed + HANDSHAKE  # a slow network
            if connects or (self._deaths.lives(peer) and now < peer.closed + RESTARTING):
                peer.until = now + CONNECTING
            else:
                self._lose_member(peer, "its connection was closed", True, now)
        if now < self._scan:
            return
        self._scan = now + SCAN
        if (lives := self._find_lives()) and lives != self._lives:
            self._lives = lives
            self._order = peers.dump(self._coordinator.order._replace(lives=lives))
        if now >= self._lenient_until:
            silence = self._address.silence
            silent = [peer for peer in self._all_peers() if not peer.gone and now >= peer.last_seen + silence]
            progressing = bool(silent) and self._is_progressing()
            for peer in silent:
                if not progressing or now >= peer.last_seen + self._coordinator.lease:
                    why = f"no message arrived from it for {seconds(now - peer.last_seen)}"
                    self._lose_member(peer, why, False, now)

    def _check_starters(self, now: float) -> None:
        """Ask the machines of earlier processes of member 0 whether these are dead.  The command of one that was not
        PID 1 of its container may live on elsewhere; on this machine the same holds as for other members (fences.py).
        A process on another machine, whose address is ours now, may live there: a refusal then comes from this machine.
        """
        own = self._address
        known = self._coordinator.starters
        for starter, _ in known.values() if known is not self._known_starters else ():
            if not (starter.host and starter.port) or not (starter.contained or starter.boot == own.boot):
                continue
            if starter.node == own.node or starter.boot == own.boot or not is_own(starter.host):
                self._starters.suspect(starter.life, starter.host, starter.port, now)
        self._known_starters = known
        for life in self._starters.process(now):
            self._decide(membership.StarterDied(self._running(now), life))

    def _check_lives(self, now: float) -> None:
        """Ask the machines of the other members whether the processes are dead that may run the epoch that was
        found."""
        group = self._coordinator
        for rank, one in group.lives.items():
            successor = group.members.get(rank)
            on_its_machine = successor is not None and successor.report.boot == one.boot
            at_work = successor is not None and successor.report.life == one.life
            if rank not in group.dead and not at_work and (one.contained or on_its_machine):
                self._ended_lives.suspect((rank, one.life), one.host, one.port, now)
        for rank, life in self._ended_lives.process(now):
            self._decide(membership.LifeEnded(self._running(now), rank, life))

    def _find_lives(self) -> tuple[Life, ...]:
        """Of the processes that run the epoch, those that accept connections."""
        group = self._coordinator
        if group.size > MOST_LIVES or not isinstance(group.phase, membership.Steady) or group.order.what != "run":
            return ()
        found = []
        for peer in self._by_id.values():
            member = group.members.get(peer.hello.rank)
            if member is None or member.report.life != peer.hello.life or member.report.ran != group.epoch:
                continue
            hello, boot = peer.hello, member.report.boot
            if self._deaths.accepts(peer):
                found.append(Life(hello.rank, hello.life, boot, peer.host, hello.port, hello.contained))
        return tuple(sorted(found))

    def _check_strangers(self, now: float) -> None:
        """A member that has another secret cannot say so, but the attempts of one begin and end in a certain way."""
        if gave_up := self._connections.gave_up(now):
            self._connections.fits(gave_up.split()[0])
            self._decide(membership.JoiningHindered(self._running(now), gave_up, True))
        elif not self._coordinator.epoch:
            what = self._unbound or self._connections.misfit or self._misfit[1]
            if what != self._coordinator.obstacle:
                self._decide(membership.JoiningHindered(self._running(now), what))

    def _is_progressing(self) -> bool:
        """Whether training progresses here.  If so, it also does at a silent member: only its connection is broken."""
        found = read_pulse(self._beat_dir, time.monotonic())
        return found is not None and found.age < self._address.silence

    def _lose_member(self, peer: MemberProcess, why: str, closed: bool, now: float, certain: bool = False) -> None:
        peer.gone = True
        self._deaths.forget(peer)
        if not peer.refused:
            self._pulse_frames.pop(peer.hello.rank, None)
            shut = self._running(min(peer.closed, now)) if closed else None
            hello, seen = peer.hello, self._running(peer.last_seen)
            self._decide(MemberLost(self._running(now), hello.rank, hello.life, why, closed, seen, shut, certain))

    def _pulses_if_failed(self, report: MemberReport, now: float) -> dict[int, Pulse]:
        """The latest pulses of all members if the report contains a failure, else nothing."""
        if report.failure is None:
            return {}
        if now >= self._pulses_at + PULSES_VALID:
            self._pulses_at, self._pulses = now, {}
            for rank, (content, at) in self._pulse_frames.items():
                try:
                    found = peers.load_pulse(content)
                except Malformed:
                    continue  # the command has damaged its beat file
                if found is not None:
                    self._pulses[rank] = found._replace(age=found.age + now - at)
        return self._pulses

    def _decide(self, event: "membership.GroupEvent") -> None:
        self._coordinator, effects = coordinator.decide(self._coordinator, event)
        for effect in effects:
            match effect:
                case membership.SendOrder(order):
                    self._order, self._lives = peers.dump(order), ()
                case membership.RefuseMember(self._address.rank, _, why):
                    self._lines.send(messages.NodeRefused(why))
                case membership.RefuseMember(rank, life, why):
                    peer = self._peers.get(rank, {}).get(life)
                    if peer is not None:
                        peer.refused = why
                case NodeNote(what):
                    self._lines.send(effect._replace(what=what[:MAX_PROBLEM_LENGTH]))
                case NodeLost(why=why):
                    self._lines.send(effect._replace(why=why[:MAX_PROBLEM_LENGTH]))

    def _send_order(self) -> None:
        """Send the current order to all members and to PID 1, if it has changed."""
        if self._order != self._sent_order:
            self._sent_order = self._order
            for peer in self._by_id.values():
                if not peer.refused:
                    self._send_order_to(peer)
                elif self._ended_without:
                    self._send([peer.id, peers.REFUSED, peer.refused.encode(), self._ended_without])
        own = self._coordinator.own_order
        if self._own_report is not None and own is not None and self._order != self._delivered_order:
            self._delivered_order = self._order
            self._lines.send(messages.Contact())
            self._lines.send(messages.ChangedOrder(peers.load_order(self._order)._replace(lives=())))

    @property
    def _ended_without(self) -> bytes:
        """OVER if the group has ended without those that are refused.  Where it was stopped from outside, these may be
        of the next schedule, whose rank 0 they still wait for."""
        end = self._coordinator.order.end
        return peers.OVER if end is not None and not end.asked else b""

    def _send_order_to(self, peer: MemberProcess) -> None:
        frames = [peer.id, peers.ORDER, self._order, b"%d" % peer.seq, peer.stamp]
        if self._coordinator.lease_state == "held":
            frames.append(peers.dump_stamp(self._address.life, time.monotonic()))
        self._send(frames)

    def _send(self, frames: list[bytes]) -> bool:
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
            return True
        except zmq.ZMQError:
            return False  # it does not read; it will send its report again
