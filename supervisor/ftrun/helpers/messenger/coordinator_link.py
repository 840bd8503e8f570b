"""Rank 0's side: a ROUTER that all members speak to, around the pure coordinator (`core/group/coordinator.py`).

All it knows it has from the members, so that it may die at any time.  What comes in can do no more than be refused:
only who knows the secret gets a word in, frames are bounded, and who is not of this job has no part in it.

Who does not know it can connect, be told of, and find out that something listens here; no word goes in or out, none
that was recorded counts again, and it takes a flood to delay who wants to join (connections.py).
Who knows it by mistake, as a second container of a rank, is refused while the first is there, and has its place later.
Who knows it and means harm can say all that a member can, of any rank: stop or end the job, hold its start up, fill the
room, and read the orders.  It runs nothing anywhere: no order carries a command.
"""

import json
import math
import time
from collections.abc import Iterator
from typing import Final

from ftrun import __version__
from ftrun.core.group import coordinator
from ftrun.core.group.messages import Pulse, Report
from ftrun.core.text.durations import seconds
from ftrun.helpers.lines import PROBLEM, Lines
from ftrun.helpers.messenger import keys, last_step
from ftrun.helpers.messenger.connections import HANDSHAKE, Connections
from ftrun.helpers.messenger.member_link import LATE, RETRY, period, secured, server
from ftrun.messages import messenger as messages
from ftrun.messages import peers
from ftrun.messages.codec import Malformed

A_TURN: Final = 256  # messages
QUEUED: Final = 16  # messages of one peer; of whole states the next is as good
CLOSED: Final = 2.0  # s that who lost its connection has for a new one: a messenger that died has to start again
STILL: Final = 3.0  # s without a word beyond a heartbeat: a connection that closes then was given up, by whoever
CALLING: Final = 0.25  # s more, again and again, while somebody connects from there; at most HANDSHAKE
LEAVING: Final = 4.0  # s that rank 0 waits for the others to leave
ANSWERED: Final = 0.3  # s in which the last answers go out; who has its own closes the connection before
SCAN: Final = 1.0  # s between two looks for who is silent
DRAWN: Final = 0.1  # s that a picture of all pulses is good for
NAME: Final = 100  # characters
STAMP: Final = 32  # bytes
FADED: Final = 60  # s until the kernel ends the connection of a machine that is gone


class Peer:
    """One life of one member."""

    def __init__(self, hello: peers.Hello, introduction: bytes = b"") -> None:
        self.hello, self.introduction = hello, introduction
        self.id, self.fd = b"", -1  # of its connection, while there is one
        self.report, self.seq, self.state = b"", 0, ""
        self.heard, self.stamp = 0.0, b""  # the last word, and its sender's time
        self.where = ""  # its address
        self.closed = self.until = math.inf  # when its connection was, and how long it is waited for
        self.gone = False  # as the coordinator knows
        self.renews = False  # it has said that it makes its connection anew
        self.refused = ""


class CoordinatorLink:
    """`sources` are to be polled; then, and when `due`, `tend`."""

    def __init__(self, place: peers.MemberAddress, beat_dir: str, lines: Lines) -> None:
        import zmq

        self._place, self._beat_dir, self._lines = place, beat_dir, lines
        self._period = period(place.size)
        self._context = zmq.Context(io_threads=1)
        self._socket = router = self._context.socket(zmq.ROUTER)
        router.ipv6 = True
        router.maxmsgsize = peers.LIMIT
        router.rcvhwm = router.sndhwm = QUEUED
        router.backlog = max(100, place.size)
        router.tcp_keepalive, router.tcp_keepalive_idle = 1, FADED // 2
        router.tcp_keepalive_intvl, router.tcp_keepalive_cnt = FADED // 6, 3
        router.setsockopt(zmq.TCP_MAXRT, FADED * 1000)
        self._connections = Connections(router, place.size, lines)
        self.sources = (router, self._connections.source)
        self._bound = False
        self._lives: dict[int, dict[str, Peer]] = {}  # of each rank
        self._by_id: dict[bytes, Peer] = {}
        self._by_fd: dict[int, Peer] = {}
        self._lost: list[Peer] = []  # whose connection was closed a moment ago
        self._beats: dict[int, tuple[bytes, float]] = {}  # the last pulse of a rank as it came, and when
        self._pulses: dict[int, Pulse] = {}
        self._drawn = -math.inf
        self._own: Report | None = None
        self._leaving = math.inf
        now = time.monotonic()
        self._coordinator = coordinator.gather(now, place.size, place.wait, place.drain, place.heal, place.silence)
        self._order, self._told, self._said = peers.dump(self._coordinator.order), b"", b""
        self._next = self._scan = self._planned = self._patient = now
        self._unread = False

    @property
    def due(self) -> float:
        """When something has to be done that nobody announces."""
        if self._unread:
            return 0.0
        deadline = math.inf if self._coordinator.deadline is None else self._coordinator.deadline
        closed = min((peer.until for peer in self._lost), default=math.inf)
        return min(self._next, self._scan, self._leaving, deadline, closed)

    def take(self, report: Report, now: float) -> None:
        """The report of our own PID 1, a member as all are."""
        self._own = report
        if report.state == "left" and self._leaving == math.inf:
            self._leaving = now + LEAVING
        self._decide(coordinator.Reported(now, report, self._stopped(report, now)))

    def tend(self, now: float) -> None:
        if now > self._planned + LATE:
            self._patient = now + self._period + LATE  # we were stopped: all get the time to be heard
        self._read(now)
        self._watch(now)
        self._connections.make_room(self._by_fd)
        self._gone(now)
        if now >= self._next:
            self._next = now + (self._period if self._bind() else RETRY)
            self._beats[0] = peers.dump_pulse(last_step.read(self._beat_dir, now)), now
            if self._said:
                self._lines.say(messages.Contact())
        if self._coordinator.deadline is not None and now >= self._coordinator.deadline:
            self._decide(coordinator.DeadlineReached(now))
        self._tell()
        if self._leaving < math.inf:
            self._leave(now)
        self._planned = max(now, self.due)

    def _leave(self, now: float) -> None:
        """PID 1 ends us then, at once: who waits for an answer has it before."""
        if not self._coordinator.staying:
            self._leaving = min(self._leaving, now + ANSWERED) if self._by_fd else now
        if now >= self._leaving:
            self._leaving = math.inf
            self._lines.say(messages.Left())
            self._own = None

    def close(self, orphan: bool) -> None:
        """The members find out: their connections close."""
        self._socket.disable_monitor()
        self._context.destroy(linger=200)  # ms, for the last order

    def _bind(self) -> bool:
        import zmq

        if self._bound:
            return True
        try:
            address = server(self._place, True)
            secured(self._socket, self._place, True)
            self._socket.bind(address)
            self._bound = True
        except keys.Unusable as why:
            self._lines.problem(f"no node can join: {why}")
        except zmq.ZMQError as error:
            self._lines.problem(f"no node can join: {self._place.endpoint}: {error.strerror}")
        return self._bound

    def _is_final(self, now: float) -> bool:
        """Whether nothing makes a node fit whose size or version is another.  A group that is ending may be of an
        earlier schedule than that node.  A running group that lacks a member gives up in the end, and then all of its
        containers are made anew, with one version."""
        own = self._own
        if isinstance(self._coordinator.phase, coordinator.Ended) or (
            own is not None and own.state in ("leaving", "left")
        ):
            return False
        since = now - self._period - STILL
        present = {p.hello.rank for p in self._by_id.values() if p.heard >= since and not (p.gone or p.refused)}
        return not self._coordinator.epoch or len(present) == self._place.size - 1

    def _all(self) -> Iterator[Peer]:
        return (peer for lives in self._lives.values() for peer in lives.values())

    def _read(self, now: float) -> None:
        import zmq

        self._unread = False
        for _ in range(A_TURN):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            id, *content = (frame.bytes for frame in frames)
            try:
                if len(content) == 2 and content[1] in (peers.BYE, peers.AGAIN):
                    self._bye(id, content, now)
                    continue
                if len(content) != 4 or len(content[3]) > STAMP:
                    raise Malformed("it does not speak the protocol of a member")
                peer = self._by_id.get(id)
                if peer is None or peer.introduction != content[0]:
                    peer = self._introduced(content[0])
                    self._connected(peer, id, int(frames[0].get(zmq.SRCFD)), now)
                self._heard(peer, content[1:], now)
                if peer.refused:
                    raise Malformed(peer.refused)
            except Malformed as why:
                self._lines.problem(f"{_who(content[0])} is refused: {why}")
                misfit = isinstance(why, peers.Misfit) and self._is_final(now)
                self._send([id, peers.REFUSED, str(why).encode(), peers.MISFIT if misfit else b""])
                continue
            self._answer(peer)
        self._unread = True

    def _bye(self, id: bytes, content: list[bytes], now: float) -> None:
        introduction, word = content
        peer = self._by_id.get(id)
        if peer is None or peer.introduction != introduction or peer.gone:
            return
        if word == peers.AGAIN:
            peer.renews, peer.heard = True, now
        else:
            self._lose(peer, "its ftrun has died", True, now)

    def _introduced(self, content: bytes) -> Peer:
        """The peer that says this of itself, if it may be one."""
        hello = peers.load_hello(content, __version__)
        if hello.job != self._place.job:
            raise Malformed(f"it is of {_job(hello.job)}, and rank 0 of {_job(self._place.job)}")
        if hello.size != self._place.size:
            raise peers.Misfit(f"it is in a group of {hello.size}, and rank 0 in one of {self._place.size}")
        if not 0 < hello.rank < hello.size:
            raise Malformed(f"member {hello.rank} is rank 0 itself, or does not belong to a group of {hello.size}")
        lives = self._lives.setdefault(hello.rank, {})
        for life in [life for life, old in lives.items() if old.gone and not old.id and life != hello.life]:
            del lives[life]
        peer = lives.setdefault(hello.life, Peer(hello))
        peer.hello, peer.introduction = hello, content
        return peer

    def _connected(self, peer: Peer, id: bytes, fd: int, now: float) -> None:
        self._by_id.pop(peer.id, None)
        self._by_fd.pop(peer.fd, None)
        before = self._by_fd.get(fd)
        if before is not None and before is not peer:
            self._closed(fd, now)  # a descriptor has one connection: that one is no more
        peer.id, peer.fd, peer.closed, peer.renews = id, fd, math.inf, False
        self._by_id[id] = self._by_fd[fd] = peer
        self._watch(now)  # it may be closed already; what was opened before its first word is known then
        connection = self._connections.open.get(fd)
        if connection is None:
            self._closed(fd, now)
        else:
            peer.where = connection.where

    def _heard(self, peer: Peer, frames: list[bytes], now: float) -> None:
        """A heartbeat brings nothing new, and costs nothing."""
        content, beat, stamp = frames
        peer.heard, peer.stamp = now, stamp
        if content != peer.report or peer.gone or peer.refused:
            report = peers.load_report(content)
            if (report.rank, report.life) != (peer.hello.rank, peer.hello.life):
                raise Malformed("its report is of another than itself")
            peer.report, peer.seq, peer.state = content, report.seq, report.state
            peer.gone, peer.refused = False, ""
            self._beats[report.rank] = beat, now
            self._decide(coordinator.Reported(now, report, self._stopped(report, now)))
            peer.gone = report.state == "left"
        if not peer.refused:
            self._beats[peer.hello.rank] = beat, now

    def _watch(self, now: float) -> None:
        for fd in self._connections.closed():
            self._closed(fd, now)

    def _closed(self, fd: int, now: float) -> None:
        peer = self._by_fd.pop(fd, None)
        if peer is None:
            return  # it never was of a peer, or is not any more
        self._by_id.pop(peer.id, None)
        peer.id, peer.fd, peer.closed, peer.until = b"", -1, now, now + CLOSED
        # Who is killed closes it in the middle of its words.  One that was silent before has met the network: either
        # end gives a connection up when nothing passes.
        if not peer.gone and not peer.renews and now < peer.heard + self._period + STILL:
            self._lost.append(peer)

    def _gone(self, now: float) -> None:
        """Who has no connection, or is silent on it."""
        self._lost = [peer for peer in self._lost if peer.closed < math.inf and not peer.gone]
        for peer in self._lost:
            if now < peer.until:
                continue
            others = (one.where for fd, one in self._connections.open.items() if fd not in self._by_fd)
            if peer.where in others and now < peer.closed + HANDSHAKE:
                peer.until = now + CALLING  # over a slow line a handshake takes its time
            else:
                self._lose(peer, "its connection was closed", True, now)
        if now < self._scan:
            return
        self._scan = now + SCAN
        if now >= self._patient:
            silent = [peer for peer in self._all() if not peer.gone and now >= peer.heard + self._place.silence]
            moves = bool(silent) and self._moves()
            for peer in silent:
                if not moves or now >= peer.heard + self._coordinator.lease:
                    self._lose(peer, f"nothing was heard of it for {seconds(now - peer.heard)}", False, now)

    def _moves(self) -> bool:
        """Whether the training here moves: then it does at a member, too, that has only a bad connection to us."""
        found = last_step.read(self._beat_dir, time.monotonic())
        return found is not None and found.age < self._place.silence

    def _lose(self, peer: Peer, why: str, closed: bool, now: float) -> None:
        peer.gone = True
        if not peer.refused:
            self._beats.pop(peer.hello.rank, None)
            shut = min(peer.closed, now) if closed else None
            self._decide(coordinator.MemberLost(now, peer.hello.rank, peer.hello.life, why, closed, peer.heard, shut))

    def _stopped(self, report: Report, now: float) -> dict[int, Pulse]:
        """The pulses of all, where somebody is in trouble."""
        if report.trouble is None:
            return {}
        if now >= self._drawn + DRAWN:
            self._drawn, self._pulses = now, {}
            for rank, (content, at) in self._beats.items():
                try:
                    found = peers.load_pulse(content)
                except Malformed:
                    continue  # what its command wrote is no pulse
                if found is not None:
                    self._pulses[rank] = found._replace(age=found.age + now - at)
        return self._pulses

    def _decide(self, event: "coordinator.Event") -> None:
        self._coordinator, effects = coordinator.decide(self._coordinator, event)
        for effect in effects:
            match effect:
                case coordinator.ReportReceived(order):
                    self._order = peers.dump(order)
                case coordinator.MemberRefused(0, _, why):
                    self._lines.say(messages.Refused(why))
                case coordinator.MemberRefused(rank, life, why):
                    peer = self._lives.get(rank, {}).get(life)
                    if peer is not None:
                        peer.refused = why
                case coordinator.NodeNote(what):
                    self._lines.say(messages.Noted(what[:PROBLEM]))

    def _tell(self) -> None:
        """The order as it stands, to all that do not have it."""
        if self._order != self._told:
            self._told = self._order
            for peer in self._by_id.values():
                if not peer.refused:
                    self._answer(peer)
        if self._own is not None and self._order != self._said:
            self._said = self._order
            self._lines.say(messages.Contact())
            self._lines.say(messages.Ordered(peers.load_order(self._order)))

    def _answer(self, peer: Peer) -> None:
        self._send([peer.id, peers.ORDER, self._order, b"%d" % peer.seq, peer.stamp])

    def _send(self, frames: list[bytes]) -> None:
        import zmq

        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.ZMQError:
            pass  # it fetches nothing: it will ask again


def _who(content: bytes) -> str:
    """For a person, as far as it says."""
    try:
        found = json.loads(content[: peers.LIMIT])
        return f"member {int(found['rank'])} ({peers.line(str(found['node'])[:NAME])})"
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return "a peer"


def _job(name: str) -> str:
    return f"the job {name}" if name else "a job without a name"
