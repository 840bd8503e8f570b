"""A PUB socket that publishes each record as it is written: first the name of the record, then its line of JSON.

`events.jsonl` is authoritative: a subscriber that is too slow loses records here, but they remain in the file.
"""

import math
import os
from typing import Final

import zmq

from ftrun.helpers.lines import ProtocolLines
from ftrun.host.inotify import MODIFY, Inotify
from ftrun.messages import operator

FILE: Final = "events.jsonl"
BATCH: Final = 0.02  # s between two batches: a steady flow of records wakes the messenger at most 50 times a second
READ: Final = 1 << 18  # bytes per read
LINE: Final = 1 << 20  # bytes of a record
QUEUED: Final = 1000  # records that wait for a subscriber that does not read


class RecordPublisher:
    """The owner polls `fd`, except between `changed` and `send`.  None: nothing is published, which was reported."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], lines: ProtocolLines) -> None:
        self.fd: int | None = None
        self.due = math.inf
        self._partial = b""
        self._socket: zmq.Socket[bytes] = context.socket(zmq.PUB)
        self._socket.sndhwm = QUEUED
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
            lines.problem(f"records are not published: {error.strerror}")

    def changed(self, now: float) -> None:
        self._notify.read()
        self.due = now + BATCH

    def send(self) -> None:
        self.due = math.inf
        while content := os.read(self._file, READ):
            *lines, self._partial = (self._partial + content).split(b"\n")
            for line in lines:
                self._socket.send_multipart([_event_name(line), line])
            if len(self._partial) > LINE:
                self._partial = b""


def _event_name(line: bytes) -> bytes:
    """The event name of a record, without parsing it: ftrun always writes the fields in the same order."""
    return line.partition(b'"event": "')[2].partition(b'"')[0][:64]
