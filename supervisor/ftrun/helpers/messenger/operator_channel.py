"""The control channel: a ROUTER socket that receives operator requests, and replies to each once PID 1 has decided.

The size, number and waiting time of requests are bounded, and a reply that a client does not read is dropped.
"""

import math
import time
from collections.abc import Callable
from typing import Final, cast

import zmq

from ftrun import __version__
from ftrun.core.machine.effects import AnswerOperator
from ftrun.core.named_tuple import NamedTuple
from ftrun.helpers.lines import ProtocolLines
from ftrun.messages import operator
from ftrun.messages.group_view import FilePart, FileRequest
from ftrun.messages.messenger import OperatorRequest, Verb

BATCH: Final = 64  # messages that are read before other work is done
MAX_PENDING: Final = 16  # requests that wait for a reply
REPLY_TIMEOUT: Final = 10.0  # s that PID 1 has for its decision
RATE: Final = 5.0  # requests a second on average
BURST: Final = 10.0  # requests at once
READS: Final = 100.0  # requests for a part of a file, at once and in a second
Ask = Callable[[FileRequest, Callable[[FilePart], None], float], None]


class PendingRequest(NamedTuple):
    """A request that waits for its reply.  `envelope`: the frames before the message, which also precede the reply; a
    REQ socket adds an empty one."""

    envelope: tuple[bytes, ...]
    id: str
    until: float


class OperatorChannel:
    """`socket` is None if it could not be created, which was reported as a problem."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], lines: ProtocolLines) -> None:
        self._lines = lines
        self._pending: dict[str, PendingRequest] = {}
        self._count = 0
        self._tokens, self._at = BURST, time.monotonic()
        self._reads, self._reads_at = READS, time.monotonic()
        self.ask: Ask | None = None  # passes a request for a file on, in a group
        self._more = False
        router: zmq.Socket[bytes] = context.socket(zmq.ROUTER)
        router.maxmsgsize = operator.LIMIT
        router.handshake_ivl = operator.HANDSHAKE
        router.rcvhwm = router.sndhwm = BATCH
        self.socket: zmq.Socket[bytes] | None = router
        try:
            router.bind(f"ipc://{operator.SOCKET}")
        except zmq.ZMQError as error:
            lines.problem(f"ftctl cannot control this run: {operator.SOCKET} cannot be created: {error.strerror}")
            router.close()
            self.socket = None

    @property
    def due(self) -> float:
        """The time of the next action that no socket event triggers."""
        if self._more:
            return 0.0
        return min((pending.until for pending in self._pending.values()), default=math.inf)

    def process(self, now: float) -> None:
        """Read at most `BATCH` requests, and refuse those that PID 1 has not answered in time."""
        for key in [key for key, pending in self._pending.items() if now >= pending.until]:
            self._send_reply(self._pending.pop(key), False, "ftrun has not replied in time")
        self._more = False
        if self.socket is None:
            return
        for _ in range(BATCH):
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._receive(frames, now)
        self._more = True

    def reply(self, answer: AnswerOperator) -> None:
        """Send the decision of PID 1."""
        pending = self._pending.pop(answer.id, None)
        if pending is not None:
            self._send_reply(pending, answer.ok, answer.why)

    def _receive(self, frames: list[bytes], now: float) -> None:
        envelope = tuple(frames[:-1]) if len(frames) <= 3 else (frames[0],)
        try:
            request = operator.load_request(frames[-1])
        except operator.RequestRefused as error:
            self._send_reply(PendingRequest(envelope, error.id, now), False, str(error))
            return
        until = now + REPLY_TIMEOUT
        pending = PendingRequest(envelope, request.id, until if request.until is None else min(until, request.until))
        if request.verb == operator.PING:
            self._send_reply(pending, True, f"ftrun {__version__}")
        elif request.read is not None:
            self._read(pending, request.read, now)
        elif now >= pending.until:
            # The messenger itself was stopped meanwhile, or the clock of ftctl differs.
            self._send_reply(pending, False, operator.EXPIRED)
        elif not self._admit(now):
            self._send_reply(pending, False, "too many requests")
        else:
            self._count += 1
            self._pending[str(self._count)] = pending
            verb = cast(Verb, request.verb)
            self._lines.send(OperatorRequest(str(self._count), verb, request.by, request.lasting, pending.until))

    def _read(self, pending: PendingRequest, request: FileRequest, now: float) -> None:
        """Answer with a part of a file of a member; PID 1 is not asked."""
        self._reads, self._reads_at = min(READS, self._reads + READS * (now - self._reads_at)), now
        if self.ask is None:
            self._send_reply(pending, False, "this run is not a member of a group")
        elif self._reads < 1:
            self._send_reply(pending, False, "too many requests")
        else:
            self._reads -= 1

            def reply(part: FilePart) -> None:
                self._send_reply(pending, part.ok, part.why, part=part._asdict())

            self.ask(request, reply, now)

    def _admit(self, now: float) -> bool:
        self._tokens, self._at = min(BURST, self._tokens + RATE * (now - self._at)), now
        if self._tokens < 1 or len(self._pending) >= MAX_PENDING:
            return False
        self._tokens -= 1
        return True

    def _send_reply(self, pending: PendingRequest, ok: bool, why: str, **more: object) -> None:
        assert self.socket is not None
        try:
            reply = operator.dump_reply(operator.ControlReply(pending.id, ok, why), version=__version__, **more)
            self.socket.send_multipart([*pending.envelope, reply], zmq.NOBLOCK)
        except zmq.ZMQError:
            pass  # the client is gone, or does not read
