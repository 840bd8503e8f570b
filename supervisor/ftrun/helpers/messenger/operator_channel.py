"""The control channel: a ROUTER that takes orders, and answers each when PID 1 has decided.

Nothing that comes in can do more than be refused: requests are bounded in size, orders in number and in time, and
whoever does not fetch an answer loses it.
"""

import math
import time
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from ftrun import __version__
from ftrun.helpers.lines import Lines
from ftrun.messages import operator
from ftrun.messages.messenger import Answer, OperatorOrder, Verb

if TYPE_CHECKING:
    import zmq

A_TURN: Final = 64  # requests
OPEN: Final = 16  # orders that wait for an answer
PATIENCE: Final = 10.0  # s
RATE: Final = 5.0  # orders a second, and as many at once as
BURST: Final = 10.0


class Asked(NamedTuple):
    """`envelope`: the frames before the message, and before its answer; a REQ has an empty one among them."""

    envelope: tuple[bytes, ...]
    id: str
    until: float


class Channel:
    """`socket` None: it cannot be made, as `problem` said."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", lines: Lines) -> None:
        import zmq

        self._lines, self._again, self._error = lines, zmq.Again, zmq.ZMQError
        self._asked: dict[str, Asked] = {}
        self._count = 0
        self._tokens, self._at = BURST, time.monotonic()
        self._unread = False
        router: zmq.Socket[bytes] = context.socket(zmq.ROUTER)
        router.maxmsgsize = operator.LIMIT
        router.handshake_ivl = operator.HANDSHAKE
        router.rcvhwm = router.sndhwm = A_TURN
        self.socket: zmq.Socket[bytes] | None = router
        try:
            router.bind(f"ipc://{operator.SOCKET}")
        except zmq.ZMQError as error:
            lines.problem(f"no control channel, so that ftctl cannot steer: {operator.SOCKET}: {error.strerror}")
            router.close()
            self.socket = None

    @property
    def due(self) -> float:
        """When something has to be done that nobody announces."""
        if self._unread:
            return 0.0
        return min((asked.until for asked in self._asked.values()), default=math.inf)

    def tend(self, now: float) -> None:
        """Take what has come, a turn's worth; give up what is not answered."""
        for key in [key for key, asked in self._asked.items() if now >= asked.until]:
            self._reply(self._asked.pop(key), False, "ftrun does not answer")
        self._unread = False
        if self.socket is None:
            return
        import zmq

        for _ in range(A_TURN):
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except self._again:
                return
            self._take(frames, now)
        self._unread = True

    def answer(self, answer: Answer) -> None:
        """PID 1 has decided."""
        asked = self._asked.pop(answer.id, None)
        if asked is not None:
            self._reply(asked, answer.ok, answer.why)

    def _take(self, frames: list[bytes], now: float) -> None:
        envelope = tuple(frames[:-1]) if len(frames) <= 3 else (frames[0],)
        try:
            request = operator.load_request(frames[-1])
        except operator.RequestRefused as why:
            self._reply(Asked(envelope, why.id, now), False, str(why))
            return
        until = now + PATIENCE
        asked = Asked(envelope, request.id, until if request.until is None else min(until, request.until))
        if request.verb == operator.PING:
            self._reply(asked, True, f"ftrun {__version__}")
        elif now >= asked.until:
            self._reply(asked, False, "it came too late")  # the messenger itself was stopped
        elif not self._may(now):
            self._reply(asked, False, "too many orders")
        else:
            self._count += 1
            self._asked[str(self._count)] = asked
            order = OperatorOrder(str(self._count), cast(Verb, request.verb), request.by, request.lasting, asked.until)
            self._lines.say(order)

    def _may(self, now: float) -> bool:
        self._tokens, self._at = min(BURST, self._tokens + RATE * (now - self._at)), now
        if self._tokens < 1 or len(self._asked) >= OPEN:
            return False
        self._tokens -= 1
        return True

    def _reply(self, asked: Asked, ok: bool, why: str) -> None:
        import zmq

        assert self.socket is not None
        try:
            reply = operator.dump_reply(operator.Reply(asked.id, ok, why), version=__version__)
            self.socket.send_multipart([*asked.envelope, reply], zmq.NOBLOCK)
        except self._error:
            pass  # gone, or it fetches nothing
