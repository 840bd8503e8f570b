"""A member's side of the group: it sends its report to rank 0 whenever that changes, and again as a heartbeat; rank 0
replies with its order.

Every message carries the complete state: what a broken connection loses is sent again on the next, nothing is queued.
"""

import math
import os
import time
from collections.abc import Callable
from typing import Final

import zmq

from ftrun import __version__
from ftrun.config.group_config import read_secret
from ftrun.config.option_table import ConfigError
from ftrun.core.group.messages import GroupOrder, MemberReport
from ftrun.core.text.durations import seconds
from ftrun.helpers.lines import ProtocolLines
from ftrun.helpers.messenger.connections import describe, own_host
from ftrun.helpers.messenger.death_watch import POLL, Question
from ftrun.helpers.messenger.group_view import MemberSide
from ftrun.helpers.messenger.handshakes import ENDED, FAILED, Handshakes
from ftrun.helpers.messenger.known_lives import KnownLives
from ftrun.helpers.messenger.steps import read_pulse
from ftrun.helpers.messenger.transport import LATE, RESUMED, RETRY, monitor_events, secure, server
from ftrun.messages import group_view, peers
from ftrun.messages import messenger as messages
from ftrun.messages.codec import Malformed

BATCH: Final = 64  # messages that are read before other work is done
REPLY_TIMEOUT: Final = 5.0  # s, after which the connection is renewed: rank 0 may have another address
RENEW_DELAY: Final = 0.2  # s between the notice to rank 0 and the renewal of the connection
CONNECT: Final = 2000  # ms; the kernel would retry after 1, 2, 4, 8, ... s, and not notice that the network is back
SETTLED: Final = 10.0  # s after the last contact until failed handshakes are reported: a proxy also closes connections
LEAVING: Final = 3.0  # s that rank 0 has for its last reply; PID 1 waits a little longer
HANDSHAKE: Final = 5000  # ms
ASKING: Final = 8  # the highest rank of a member that finds out where the ftrun of member 0 can be asked


class MemberLink:
    """The owner polls `sources`, and calls `process` after that and at `due`."""

    def __init__(self, address: peers.MemberAddress, beat_dir: str, lines: ProtocolLines, lives: KnownLives) -> None:
        self._address, self._beat_dir, self._lines, self._lives = address, beat_dir, lines, lives
        who = address.job, address.size, address.rank, address.life, address.node
        shape = (address.least, address.spares, address.port, address.contained)
        self._hello = peers.dump(peers.MemberHello(__version__, *who, *shape))
        self._period = peers.period(address.size)
        # A context of its own: its I/O thread blocks during name resolution.
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.immediate = True  # without a connection nothing is queued
        self._socket.ipv6 = True
        self._socket.maxmsgsize = peers.LIMIT
        self._socket.handshake_ivl = HANDSHAKE
        self._socket.reconnect_ivl, self._socket.reconnect_ivl_max = 100, 1000  # ms
        self._socket.connect_timeout = CONNECT
        self._monitor = self._socket.get_monitor_socket(
            zmq.EVENT_CONNECTED
            | zmq.EVENT_HANDSHAKE_SUCCEEDED
            | zmq.EVENT_DISCONNECTED
            | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
            | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
            | zmq.EVENT_HANDSHAKE_FAILED_AUTH
        )
        self.sources = (self._socket, self._monitor)
        self._url: str | None = None  # None: not connected yet
        self._report: MemberReport | None = None
        self._frame = b""  # the report as it is sent; empty: must be encoded again
        self._reported_at = 0.0
        self._order = b""
        self._ordered: GroupOrder | None = None  # the same
        self._host = ""  # of rank 0
        self.own_host = ""  # of this member, as rank 0 reaches it
        # What this member reports of the lease in a shared folder; None: nothing.  Of the coordinator that has the
        # lease: the stamp of its newest answer, its life, and when that answer came.
        self.lease_view: Callable[[float], peers.LeaseView] | None = None
        self._stamp, self.lease_heard = b"", ("", 0.0)
        self._question: tuple[str, Question] | None = None  # to the ftrun of that life, whether it accepts connections
        self._accepts = ""  # the life of the one that does
        self._refusals: set[str] = set()
        self._refusal = ""
        self._handshakes = Handshakes(address)
        self._unanswered = 0  # consecutive connections without a reply in time
        self._secret: bytes | None = None  # the secret that the connection uses
        self._up = False  # there is a connection
        self.over = False  # the last order ended the group, or the shared folder says that it has ended
        self._left = self._cut = False
        now = time.monotonic()
        self._since = self._planned = now
        self._next = self._lenient_until = now
        self._resumed = -math.inf  # when this process ran again after it was stopped
        # When we sent the latest message that rank 0 has confirmed: it will not give us up before we give it up.
        self._confirmed: float | None = None
        self._awaiting = math.inf  # when the oldest message without a reply was sent
        self._sent_at = now
        self._contact_sent = 0.0
        self._renew_at = math.inf  # when the connection is renewed
        self.view = MemberSide(address, lines, self._try_send)

    @property
    def due(self) -> float:
        """The time of the next action that no socket event triggers."""
        silence_ends = math.inf if self._cut else self._silence_ends
        timeouts = min(self._awaiting + REPLY_TIMEOUT, self._renew_at, silence_ends)
        leave_by = self._reported_at + LEAVING if self._may_leave else math.inf
        answer = math.inf if self._question is None else time.monotonic() + POLL
        return min(self._next, max(timeouts, self._lenient_until), leave_by, answer, self.view.due)

    @property
    def _silence_ends(self) -> float:
        """When rank 0 counts as lost.  If a command is running, an earlier messenger has had contact before."""
        if self._confirmed is not None:
            return self._confirmed + self._address.silence
        at_work = self._report is not None and self._report.epoch > 0 and self._report.state != "ready"
        return self._since + (self._address.silence if at_work else self._address.wait)

    @property
    def _may_leave(self) -> bool:
        """Whether this member may leave without confirmation: the group ended, or rank 0 is lost or refuses it."""
        left = self._report is not None and self._report.state == "left"
        return left and not self._left and (self.over or self._cut or bool(self._refusal))

    def set_report(self, report: MemberReport, now: float) -> None:
        """Set the report of PID 1, which is sent at once."""
        self._report = report
        self._reported_at = self._next = self.view.row_due = now
        self._frame = b""
        self._lives.reported(report)

    def process(self, now: float) -> None:
        if now > self._planned + LATE:
            self._lenient_until = now + (RESUMED if now > self._planned + RESUMED else LATE)
            self._resumed = now
            self._lives.stopped()
        for event, value in monitor_events(self._monitor):
            self._connection_changed(event, value, now)
        self._read(now)
        if now >= self._next:
            self._next = now + self._period * (1 - os.urandom(1)[0] / 2560)
            if self._url is None:
                self._connect(now)
            elif self._report is not None:
                self._send(self._report, now)
        self._take_answer(now)
        if now >= self._lenient_until:
            self._check_timeouts(now)
        if now >= self._renew_at:
            self._renew()
        self.view.process(now)
        if self._may_leave and (not self._up or now >= self._reported_at + LEAVING):
            self._report_left()
        self._planned = max(now, self.due)

    def close(self, orphan: bool) -> None:
        """`orphan`: PID 1 has died.  Unless it had left the group, rank 0 gets a `BYE`, and is not left waiting."""
        if orphan and self._report is not None and self._report.state != "left":
            self._try_send(peers.BYE)
        self.view.close()
        if self._question is not None:
            self._question[1].close()
        self._socket.disable_monitor()
        self._context.destroy(linger=200)  # ms, for the last report

    def _connect(self, now: float) -> None:
        try:
            url = server(self._address, False)
            self._secret = secure(self._socket, self._address, False)
            self._socket.connect(url)
            self._url = url
        except (ConfigError, zmq.ZMQError) as error:
            why = error if isinstance(error, ConfigError) else f"{self._address.endpoint}: {error.strerror}"
            self._lines.problem(f"this node cannot join the group: {why}")
            self._next = now + RETRY

    def _connection_changed(self, event: int, value: int, now: float) -> None:
        if event == zmq.EVENT_CONNECTED:
            self._host, self.own_host = describe(value).host, own_host(value) or self.own_host
            return
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._next, self._up, self._unanswered = now, True, 0
            self._handshakes.reset()
            self._lives.connected()
            self._frame = b""  # a new rank 0 may have taken over, and it needs the current age of the failure
            return
        if event == zmq.EVENT_DISCONNECTED:
            self._up = False
            return
        if event != zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
            self._renew_at = min(self._renew_at, now + RETRY)  # after these events libzmq does not reconnect by itself
        if event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL and value not in ENDED:
            self._handshakes.reset()  # the reply may have been lost, so this shows nothing about the secret of rank 0
            self._unanswered += 1
            if self._confirmed is None and self._unanswered >= FAILED:
                self._lines.problem(f"rank 0 at {self._address.endpoint} accepts connections, but does not reply")
            return
        self._unanswered = 0
        self._handshakes.failed(now)
        if self._handshakes.count >= FAILED and not self.over:
            self._report_denied(now)

    def _report_denied(self, now: float) -> None:
        """Rank 0, or what listens at its address, closes every connection before a message."""
        where, handshakes = f"rank 0 at {self._address.endpoint}", self._handshakes
        closes = "closes every connection before the first message:"
        if self._confirmed is not None:
            if now >= self._confirmed + SETTLED:
                self._lines.problem(f"{where} {closes} it is gone, or the secret of the group has changed there")
            return
        hint = f"{closes} check that it is ftrun, and that the secret of the group is the same there"
        self._lines.problem(f"{where} {handshakes.why or hint}")
        if self._secret_changed():
            handshakes.reset()
            self._renew_at = min(self._renew_at, now + RETRY)
        elif handshakes.certain and not self._refusal:
            self._refusal = handshakes.refusal
            self._lines.send(messages.NodeRefused(self._refusal, True))

    def _secret_changed(self) -> bool:
        """Whether the secret file has changed since the connection was made, as when a platform replaces it."""
        try:
            return self._address.secret is not None and read_secret(self._address.secret) != self._secret
        except ConfigError:
            return False

    def _send(self, report: MemberReport, now: float) -> None:
        if not self._frame:
            failure = report.failure and report.failure._replace(age=report.failure.age + now - self._reported_at)
            self._frame = peers.dump(report._replace(failure=failure, lives=self._lives.of(report)))
        pulse = peers.dump_pulse(read_pulse(self._beat_dir, now))
        lease = None if self.lease_view is None else self.lease_view(now)._replace(heard=self._stamp.decode())
        if self._try_send(self._frame, pulse, peers.dump_time(now), *([] if lease is None else [peers.dump(lease)])):
            self._sent_at = now
            self._lives.sent(report)
            self._awaiting = min(self._awaiting, now)

    def _try_send(self, *frames: bytes) -> bool:
        """Send a message; False if there is no connection."""
        try:
            self._socket.send_multipart([self._hello, *frames], zmq.NOBLOCK)
            return True
        except zmq.ZMQError:
            return False

    def _read(self, now: float) -> None:
        for _ in range(BATCH):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                self._receive(frames, now)
            except Malformed as error:
                self._lines.problem(f"malformed message from rank 0: {error}")

    def _receive(self, frames: list[bytes], now: float) -> None:
        if frames[0] == peers.REFUSED and len(frames) == 3:
            self._awaiting = math.inf
            self._refusal = peers.load_why(frames[1])
            known = self._refusal in self._refusals or len(self._refusals) >= BATCH
            if not known or frames[2] == peers.OVER:
                self._refusals.add(self._refusal)
                self._lines.send(messages.NodeRefused(self._refusal, frames[2] == peers.FINAL, frames[2] == peers.OVER))
            return
        if frames[0] in group_view.KINDS and len(frames) == 2:
            self.view.receive(frames[0], frames[1], now)
            return
        if frames[0] != peers.ORDER or len(frames) not in (4, 5):
            raise Malformed("it is neither an order nor a refusal")
        if len(frames) == 5:
            self.lease_heard, self._stamp = (peers.load_stamp(frames[4])[0], now), frames[4]
        acknowledged, sent_at = peers.load_ack(frames[2]), peers.load_time(frames[3])
        self._confirmed, self._refusal = max(self._confirmed or sent_at, sent_at), ""
        self.view.heard(self._confirmed)
        # The reply gives the time of our message in whole microseconds.
        self._awaiting = math.inf if sent_at > self._sent_at - 1e-5 else self._sent_at
        if now < self._silence_ends and (self._cut or now >= self._contact_sent + self._period / 2):
            self._cut, self._contact_sent = False, now
            self._lines.send(messages.Contact(max(0.0, now - self._confirmed)))
        if frames[1] != self._order:
            self._ordered = order = peers.load_order(frames[1])
            self._order, self.over = frames[1], order.what == "end"
            self._ask_starter(order, now)
            self._lines.send(messages.ChangedOrder(self._located(order)))
        if self._ordered is not None and sent_at >= self._resumed:
            self._lives.ordered(self._ordered, self._report)
        left = self._report is not None and self._report.state == "left" and acknowledged >= self._report.seq
        if left and not self._left:
            self._report_left()

    def _ask_starter(self, order: GroupOrder, now: float) -> None:
        """Find out whether the ftrun of member 0 accepts connections, as long as it lives: its successor asks there."""
        starter = order.starter
        if starter is None or not (starter.port and self._host) or self._address.rank > ASKING:
            return
        if self._question is None and self._accepts != starter.life:
            self._question = starter.life, Question(self._host, starter.port, now)

    def _take_answer(self, now: float) -> None:
        if self._question is None or (answer := self._question[1].answer(now)) is None:
            return
        life, self._question = self._question[0], None
        if answer == "accepted" and self._ordered is not None:
            self._accepts = life
            self._lines.send(messages.ChangedOrder(self._located(self._ordered)))

    def _located(self, order: GroupOrder) -> GroupOrder:
        """The order, with the address at which its sender was reached."""
        order, starter = order._replace(lives=()), order.starter
        if starter is None:
            return order
        port = starter.port if self._accepts == starter.life else 0
        return order._replace(starter=starter._replace(host=self._host, port=port))

    def _report_left(self) -> None:
        self._left = True
        self._lines.send(messages.LeaveConfirmed())

    def _check_timeouts(self, now: float) -> None:
        if now >= self._awaiting + REPLY_TIMEOUT:
            self._awaiting = math.inf
            self._try_send(peers.RENEW)  # so that rank 0 does not take the closed connection for the end of this member
            self._renew_at = now + RENEW_DELAY
        if not self._cut and now >= self._silence_ends:
            self._cut = True
            takeover = max(0.0, self.view.takeover - now) if self.view.takeover else None
            self._lines.send(messages.RankZeroSilent(self._cut_reason(), takeover, self.view.holder))

    def _renew(self) -> None:
        self._renew_at = self._awaiting = math.inf
        if self._url is None:
            return
        self._up = False
        try:
            self._socket.disconnect(self._url)
        except zmq.ZMQError:
            pass  # it has already closed
        if self._confirmed is None and self._secret_changed():
            self._secret = secure(self._socket, self._address, False)
        self._socket.connect(self._url)

    def _cut_reason(self) -> str:
        who = f"member {self.view.holder}" if self.view.holder else "rank 0"
        where = f"{who} ({self._address.endpoint})"
        if self._refusal:
            return f"{where} does not accept this node: {self._refusal}"
        if self._confirmed is None:
            reason = f"{where} was not reached within {seconds(self._address.wait)}"
            return f"{reason}: it {self._handshakes.why}" if self._handshakes.why else reason
        return f"there was no reply from {where} for {seconds(self._address.silence)}"
