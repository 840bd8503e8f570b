"""The side of a member: its report goes to rank 0 whenever it changes, and again as a heartbeat; orders come back.

Whole states travel: what is lost on a connection that breaks is said again on the next, and nothing is queued.
"""

import ipaddress
import math
import os
import struct
import time
from typing import TYPE_CHECKING, Final

from ftrun import __version__
from ftrun.core.group.messages import Report
from ftrun.core.text.durations import seconds
from ftrun.helpers.lines import Lines
from ftrun.helpers.messenger import keys, last_step
from ftrun.helpers.messenger.handshakes import ENDED, FAILED, Handshakes
from ftrun.messages import messenger as messages
from ftrun.messages import peers
from ftrun.messages.codec import Malformed

if TYPE_CHECKING:
    import zmq

A_TURN: Final = 64  # messages
OFTEN: Final = 1.0  # s between two heartbeats of a member
SELDOM: Final = 4.5  # in a large group; PID 1 has its `contact` at least each 5 s
MANY: Final = 200  # heartbeats a second that rank 0 takes at most
ANSWER: Final = 5.0  # s after which a connection that is silent is made anew: rank 0 may have another address
PARTING: Final = 0.2  # s before that, in which rank 0 is told that we do so
CONNECT: Final = 2000  # ms; the kernel would ask again after 1, 2, 4, 8, ... s, and not notice that a network is back
RETRY: Final = 1.0  # s
LATE: Final = 1.0  # s; who is woken that much later than planned was stopped, and does not judge at once
SETTLED: Final = 10.0  # s without rank 0 after which that is told of one that was there: a proxy closes them too
LEAVING: Final = 3.0  # s that rank 0 has for its last answer; PID 1 waits for a little longer
HANDSHAKE: Final = 5000  # ms


def period(size: int) -> float:
    """Of the heartbeats."""
    return min(max(OFTEN, size / MANY), SELDOM)


def server(place: peers.MemberAddress, bind: bool) -> str:
    """The address for zmq; `keys.Unusable` if there is none that may be used."""
    host, _, port = place.endpoint.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise keys.Unusable(f"the group's endpoint is no HOST:PORT: {place.endpoint}")
    host = "127.0.0.1" if host == "localhost" else host
    try:
        here = ipaddress.ip_address(host).is_loopback
    except ValueError:
        here = False
    if place.secret is None and not here:
        raise keys.Unusable(f"without a secret a group has a loopback endpoint, and no {place.endpoint}")
    if bind and not here:
        return f"tcp://*:{port}"
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def secured(socket: "zmq.Socket[bytes]", place: peers.MemberAddress, bind: bool) -> bytes | None:
    """It speaks with who knows the secret, and with nobody else; without a secret only within this machine."""
    if place.secret is None:
        return None
    secret = keys.read(place.secret)
    servers, clients = keys.made(secret, "server"), keys.made(secret, "client")
    if bind:
        socket.curve_secretkey, socket.curve_publickey, socket.curve_server = servers.secret, servers.public, True
    else:
        socket.curve_secretkey, socket.curve_publickey = clients.secret, clients.public
        socket.curve_serverkey = servers.public
    return secret


def happened(monitor: "zmq.Socket[bytes]") -> list[tuple[int, int]]:
    """What its socket monitor has to say: event and value."""
    import zmq

    found: list[tuple[int, int]] = []
    try:
        while True:
            event, value = struct.unpack("=Hi", monitor.recv_multipart(zmq.NOBLOCK)[0])
            found.append((event, value))
    except zmq.Again:
        return found


class MemberLink:
    """`sources` are to be polled; then, and when `due`, `tend`."""

    def __init__(self, place: peers.MemberAddress, beat_dir: str, lines: Lines) -> None:
        import zmq

        self._place, self._beat_dir, self._lines = place, beat_dir, lines
        hello = peers.Hello(__version__, place.job, place.size, place.rank, place.life, place.node)
        self._hello = peers.dump_hello(hello)
        self._period = period(place.size)
        # An own context: where names are looked up, nothing else is done meanwhile.
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.immediate = True  # without a connection nothing is queued
        self._socket.ipv6 = True
        self._socket.maxmsgsize = peers.LIMIT
        self._socket.handshake_ivl = HANDSHAKE
        self._socket.reconnect_ivl, self._socket.reconnect_ivl_max = 100, 1000  # ms
        self._socket.connect_timeout = CONNECT
        self._monitor = self._socket.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED
            | zmq.EVENT_DISCONNECTED
            | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
            | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
            | zmq.EVENT_HANDSHAKE_FAILED_AUTH
        )
        self.sources = (self._socket, self._monitor)
        self._address: str | None = None  # None: not yet connected to
        self._report: Report | None = None
        self._content = b""  # as it is sent; empty: to be made
        self._reported = 0.0
        self._order = b""
        self._refusals: set[str] = set()
        self._refused = ""
        self._handshakes = Handshakes(place)
        self._unanswered = 0  # connections in a row without an answer in time
        self._secret: bytes | None = None  # as the connection has it
        self._up = False  # there is a connection
        self._over = False  # by the last order
        self._left = self._cut = False
        now = time.monotonic()
        self._since = self._planned = now
        self._next = self._patient = now
        # When we asked what rank 0 has answered: it has heard of us since, and does not give us up before we do.
        self._heard: float | None = None
        self._asked: float | None = None  # the oldest question that has no answer
        self._sent = now
        self._said = 0.0
        self._renewing: float | None = None  # when the connection is made anew

    @property
    def due(self) -> float:
        """When something has to be done that nobody announces."""
        judged = min(
            math.inf if self._asked is None else self._asked + ANSWER,
            math.inf if self._renewing is None else self._renewing,
            math.inf if self._cut else self._silent,
        )
        parted = self._reported + LEAVING if self._parting else math.inf
        return min(self._next, max(judged, self._patient), parted)

    @property
    def _silent(self) -> float:
        """When rank 0 is lost to us.  Who has a command at work has heard of it before, by another messenger."""
        if self._heard is not None:
            return self._heard + self._place.silence
        at_work = self._report is not None and self._report.epoch > 0 and self._report.state != "ready"
        return self._since + (self._place.silence if at_work else self._place.wait)

    @property
    def _parting(self) -> bool:
        """Nobody loses anything if rank 0 does not hear our last word: all is over, or it is lost to us."""
        left = self._report is not None and self._report.state == "left"
        return left and not self._left and (self._over or self._cut or bool(self._refused))

    def take(self, report: Report, now: float) -> None:
        """The report of PID 1."""
        self._report = report
        self._reported = self._next = now
        self._content = b""

    def tend(self, now: float) -> None:
        if now > self._planned + LATE:
            self._patient = now + LATE
        for event, value in happened(self._monitor):
            self._connected(event, value, now)
        self._read(now)
        if now >= self._next:
            self._next = now + self._period * (1 - os.urandom(1)[0] / 2560)
            if self._address is None:
                self._connect(now)
            elif self._report is not None:
                self._send(self._report, now)
        if now >= self._patient:
            self._judge(now)
        if self._renewing is not None and now >= self._renewing:
            self._renew()
        if self._parting and (not self._up or now >= self._reported + LEAVING):
            self._leave()
        self._planned = max(now, self.due)

    def close(self, orphan: bool) -> None:
        """`orphan`: PID 1 is no more; if it did not take its leave, we do, so that nobody has to find out."""
        import zmq

        if orphan and self._report is not None and self._report.state != "left":
            try:
                self._socket.send_multipart([self._hello, peers.BYE], zmq.NOBLOCK)
            except zmq.ZMQError:
                pass  # there is no connection
        self._socket.disable_monitor()
        self._context.destroy(linger=200)  # ms, for the last report

    def _connect(self, now: float) -> None:
        import zmq

        try:
            address = server(self._place, False)
            self._secret = secured(self._socket, self._place, False)
            self._socket.connect(address)
            self._address = address
        except keys.Unusable as why:
            self._lines.problem(f"this node cannot join the group: {why}")
            self._next = now + RETRY
        except zmq.ZMQError as error:
            self._lines.problem(f"this node cannot join the group: {self._place.endpoint}: {error.strerror}")
            self._next = now + RETRY

    def _connected(self, event: int, value: int, now: float) -> None:
        import zmq

        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._next, self._up, self._unanswered = now, True, 0
            self._handshakes.forget()
            self._content = b""  # rank 0 may be another, which takes the age of a trouble as it comes
            return
        if event == zmq.EVENT_DISCONNECTED:
            self._up = False
            return
        if event != zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL and self._renewing is None:
            self._renewing = now + RETRY  # after these libzmq does not connect again by itself
        if event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL and value not in ENDED:
            self._handshakes.forget()  # the answer may be lost on its way: that says nothing of rank 0's secret
            self._unanswered += 1
            if self._heard is None and self._unanswered >= FAILED:
                self._lines.problem(f"rank 0 at {self._place.endpoint} accepts a connection, and then does not answer")
            return
        self._unanswered = 0
        self._handshakes.ended(now)
        if self._handshakes.count >= FAILED and not self._over:
            self._denied(now)

    def _denied(self, now: float) -> None:
        """Rank 0, or what listens in its place, ends every connection."""
        where, found = f"rank 0 at {self._place.endpoint}", self._handshakes
        ends = "ends every connection before a word:"
        if self._heard is not None:
            if now >= self._heard + SETTLED:
                self._lines.problem(f"{where} {ends} it is gone, or the group's secret there is another now")
            return
        asks = f"{ends} is the group's secret the same there, and is it ftrun?"
        self._lines.problem(f"{where} {found.why or asks}")
        if self._secret_changed():
            found.forget()
            self._renewing = self._renewing or now + RETRY
        elif found.certain and not self._refused:
            self._refused = found.refusal
            self._lines.say(messages.Refused(self._refused, True))

    def _secret_changed(self) -> bool:
        """Whether the file has another one than the connection, as where a platform has replaced it meanwhile."""
        try:
            return self._place.secret is not None and keys.read(self._place.secret) != self._secret
        except keys.Unusable:
            return False

    def _send(self, report: Report, now: float) -> None:
        import zmq

        if not self._content:
            trouble = report.trouble and report.trouble._replace(age=report.trouble.age + now - self._reported)
            self._content = peers.dump(report._replace(trouble=trouble))
        beat = peers.dump_pulse(last_step.read(self._beat_dir, now))
        try:
            self._socket.send_multipart([self._hello, self._content, beat, peers.dump_time(now)], zmq.NOBLOCK)
        except zmq.Again:
            return  # there is no connection
        self._sent = now
        if self._asked is None:
            self._asked = now

    def _read(self, now: float) -> None:
        import zmq

        for _ in range(A_TURN):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                self._take(frames, now)
            except Malformed as why:
                self._lines.problem(f"what rank 0 says is not understood: {why}")

    def _take(self, frames: list[bytes], now: float) -> None:
        if frames[0] == peers.REFUSED and len(frames) == 3:
            self._asked = None
            self._refused = peers.load_why(frames[1])
            if self._refused not in self._refusals and len(self._refusals) < A_TURN:
                self._refusals.add(self._refused)
                self._lines.say(messages.Refused(self._refused, frames[2] == peers.MISFIT))
            return
        if frames[0] != peers.ORDER or len(frames) != 4:
            raise Malformed("neither an order nor a refusal")
        ack, asked = peers.load_ack(frames[2]), peers.load_time(frames[3])
        self._heard, self._refused = max(self._heard or asked, asked), ""
        # The time travels in whole microseconds.
        self._asked = None if asked > self._sent - 1e-5 else self._sent
        if now < self._silent and (self._cut or now >= self._said + OFTEN / 2):
            self._cut, self._said = False, now
            self._lines.say(messages.Contact(max(0.0, now - self._heard)))
        if frames[1] != self._order:
            order = peers.load_order(frames[1])
            self._order, self._over = frames[1], order.what == "end"
            self._lines.say(messages.Ordered(order))
        if self._report is not None and self._report.state == "left" and ack >= self._report.seq and not self._left:
            self._leave()

    def _leave(self) -> None:
        self._left = True
        self._lines.say(messages.Left())

    def _judge(self, now: float) -> None:
        if self._asked is not None and now >= self._asked + ANSWER:
            self._asked = None
            self._part(now)
        if not self._cut and now >= self._silent:
            self._cut = True
            self._lines.say(messages.Cut(self._why()))

    def _part(self, now: float) -> None:
        """The connection is made anew, soon; where our words reach rank 0 it does not take that for our end."""
        import zmq

        try:
            self._socket.send_multipart([self._hello, peers.AGAIN], zmq.NOBLOCK)
        except zmq.ZMQError:
            pass  # there is no connection
        self._renewing = now + PARTING

    def _renew(self) -> None:
        self._renewing = self._asked = None
        if self._address is None:
            return
        import zmq

        self._up = False
        try:
            self._socket.disconnect(self._address)
        except zmq.ZMQError:
            pass  # it has ended by itself
        if self._heard is None and self._secret_changed():
            self._secret = secured(self._socket, self._place, False)
        self._socket.connect(self._address)

    def _why(self) -> str:
        where = f"rank 0 ({self._place.endpoint})"
        if self._refused:
            return f"{where} does not take this node: {self._refused}"
        if self._heard is None:
            why = f"{where} was not reached within {seconds(self._place.wait)}"
            return f"{why}: it {self._handshakes.why}" if self._handshakes.why else why
        return f"nothing was heard of {where} for {seconds(self._place.silence)}"
