"""The records as they come, to whoever subscribes: a PUB, the name of the record first, then its line of JSON.

`events.jsonl` is the truth: a subscriber that is too slow loses records here, and none there.
"""

import math
import os
from typing import TYPE_CHECKING, Final

from ftrun.helpers.lines import Lines
from ftrun.host.inotify import MODIFY, Inotify
from ftrun.messages import operator

if TYPE_CHECKING:
    import zmq

FILE: Final = "events.jsonl"
BATCH: Final = 0.02  # s: records that come all the time wake us at most 50 times a second
READ: Final = 1 << 18  # bytes a turn
LINE: Final = 1 << 20  # bytes of a record
KEPT: Final = 1000  # records for a subscriber that does not read


class RecordPublisher:
    """`fd` is to be polled, and not from `changed` to `send`; None: there is no stream, as `problem` said."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", lines: Lines) -> None:
        import zmq

        self.fd: int | None = None
        self.due = math.inf
        self._rest = b""
        self._socket: zmq.Socket[bytes] = context.socket(zmq.PUB)
        self._socket.sndhwm = KEPT
        self._socket.maxmsgsize = operator.LIMIT
        self._socket.handshake_ivl = operator.HANDSHAKE
        try:
            self._socket.bind(f"ipc://{operator.RECORDS}")
            self._file = os.open(FILE, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            os.lseek(self._file, 0, os.SEEK_END)
            self._notify = Inotify()
            self._notify.add(FILE, MODIFY)
            self.fd = self._notify.fd
        except (OSError, zmq.ZMQError) as error:
            lines.problem(f"no stream of records: {error.strerror}")

    def changed(self, now: float) -> None:
        self._notify.read()
        self.due = now + BATCH

    def send(self) -> None:
        self.due = math.inf
        while content := os.read(self._file, READ):
            *lines, self._rest = (self._rest + content).split(b"\n")
            for line in lines:
                self._socket.send_multipart([_name(line), line])
            if len(self._rest) > LINE:
                self._rest = b""


def _name(line: bytes) -> bytes:
    """Of a record, without reading all of it: ftrun writes the fields in one order."""
    return line.partition(b'"event": "')[2].partition(b'"')[0][:64]
