"""The control connection of a rank to ftrun: packets of JSON on a Unix socket, read by a side thread.

ftrun asks this process to leave a round (`fence_rank`) and lets it begin the next one (`begin_round`); the process says
that it can recover (`said_hello`), leaves a round (`asked_retry`), waits for the next one (`left_round`), has loaded
the snapshot of another rank (`snapshot_restored`), which may then overwrite it (`release_snapshot`), or is done
(`function_finished`).  A process that does not obey is replaced, so nothing here has to succeed.
"""

from __future__ import annotations

import json
import os
import select
import socket
import threading
from queue import SimpleQueue
from typing import Any, Callable

from . import layout as at
from ._interrupt import Signal, deferred

LARGEST = 4096  # bytes of a packet
LONGEST = 300  # characters of a text
REPEAT = 100  # ms between two signals to a main thread that has not left its round


class ControlClient:
    """`connect` returns None where ranks do not recover: outside ftrun, and without --nproc-per-node.

    `working` is the round in which the training function runs, 0 if it does not; `fence` the last round that ftrun has
    ended, and `released` the last one in which no other rank needs the snapshot any more with which this one began
    it.  `orders` receives each `begin_round`, and None when ftrun has closed the connection.  `abort` is called by the
    side thread when a round is ended.
    """

    def __init__(self, connection: socket.socket, abort: Callable[[], None]) -> None:
        self._connection, self._abort = connection, abort
        self._signal = Signal()
        self.working = self.fence = self.released = 0
        self.finished = False
        self.orders: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self.owner = os.getpid()
        self._local_rank = int(os.environ["LOCAL_RANK"])

    @classmethod
    def connect(cls, abort: Callable[[], None]) -> ControlClient | None:
        folder = os.environ.get("FTRUN_BEAT_DIR")
        if not folder or not os.environ.get("LOCAL_RANK", "").isdigit():
            return None
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # not inherited by programs: PEP 446
        try:
            connection.connect(os.path.join(folder, at.RANKS))
        except OSError:
            connection.close()
            return None
        client = cls(connection, abort)
        os.register_at_fork(after_in_child=client._forked)
        return client

    def start(self, held: list[dict[str, object]]) -> None:
        self.send("said_hello", held=held)
        threading.Thread(target=self._listen, name="ftrun", daemon=True).start()

    def send(self, message: str, **fields: object) -> None:
        """Send a message, or nothing if the connection is closed, which the side thread notices."""
        try:
            self._connection.send(json.dumps({"type": message, "local_rank": self._local_rank, **fields}).encode())
        except OSError:
            pass

    def begin(self, number: int) -> bool:
        """The training function is about to run in this round.  False if the round has ended already."""
        self.working = number  # before the look at `fence`: the side thread does both in the other order
        return self.fence < number

    def _forked(self) -> None:
        """A forked child is no rank: it has no side thread, and must not keep the connection open."""
        deferred.disarm()
        self._connection.close()

    def _listen(self) -> None:
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        try:
            while True:
                asked = self.working and self.fence >= self.working
                if poll.poll(REPEAT if asked else None):
                    packet = self._connection.recv(LARGEST)
                    if not packet:
                        break
                    self._received(json.loads(packet))
                if self.working and self.fence >= self.working:
                    self._signal.send()
        except Exception:  # the connection, or a packet that no ftrun of this version sends
            pass
        self.orders.put(None)

    def _received(self, message: dict[str, Any]) -> None:
        if message["type"] == "begin_round":
            self.orders.put(message)
        elif message["type"] == "release_snapshot":
            self.released = int(message["round"])
        elif message["type"] == "fence_rank" and message["round"] > self.fence:
            deferred.why = str(message["why"])
            self.fence = int(message["round"])
            if self.finished:
                self.send("left_round", round=self.fence, held=[], problem="its training function has returned already")
            elif self.fence >= self.working:
                try:
                    self._abort()
                except Exception:  # the process is replaced if it cannot leave
                    pass
