"""A messenger's part in the proof of deadlocks over several members (core/group/waits.py): it passes on what the helper
`evidence` of this node has written into the run dir, which is the working directory, and keeps rank 0's answer there.

A job that moves sends nothing.  A failure here means that no deadlock is proved, and nothing else.
"""

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Protocol

from ftrun.core.group import waits
from ftrun.core.group.waits import Waits, Waves
from ftrun.helpers.lines import ProtocolLines
from ftrun.host import safe_files
from ftrun.messages import group_waits as messages

if TYPE_CHECKING:
    from ftrun.messages.peers import MemberAddress

PERIOD: Final = 1.0  # s between two checks for new waits of this member, and at least between two answers to a member
ANSWERS_PER_SECOND: Final = 200  # that rank 0 sends at most


class OwnWaits:
    """The file with the waits of this member."""

    def __init__(self, address: "MemberAddress", lines: ProtocolLines) -> None:
        self._address, self._lines = address, lines
        self._seen: tuple[int, int, int] | None = None
        self._due = 0.0

    def read(self, now: float) -> Waits | None:
        """The waits, if the file has changed since the last call."""
        if now < self._due:
            return None
        self._due = now + PERIOD
        try:
            status = os.stat(messages.OWN_FILE)
            seen = status.st_ino, status.st_mtime_ns, status.st_size
            if seen == self._seen:
                return None
            self._seen = seen
            content = safe_files.read(messages.OWN_FILE, messages.LIMIT) or b""
            return messages.load_waits(content, self._address.rank, self._address.size)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            self._lines.problem(f"{messages.OWN_FILE}: {error}")
            return None


def keep(content: bytes, lines: ProtocolLines) -> None:
    """Keep rank 0's answer for the helper `evidence`."""
    try:
        safe_files.replace(messages.ANSWER_FILE, content, durable=False)
    except OSError as error:
        lines.problem(f"{messages.ANSWER_FILE}: {error.strerror}")


class MemberWaits:
    """At a member other than rank 0.  `send` passes a message to rank 0; False: there is no connection."""

    def __init__(self, address: "MemberAddress", lines: ProtocolLines, send: Callable[[bytes, bytes], bool]) -> None:
        self._own, self._lines, self._send = OwnWaits(address, lines), lines, send
        self._size = address.size
        self._unsent: Waits | None = None

    def process(self, now: float) -> None:
        self._unsent = self._own.read(now) or self._unsent
        if self._unsent is not None and self._send(messages.WAITS, messages.dump_waits(self._unsent, self._size)):
            self._unsent = None

    def receive(self, content: bytes) -> None:
        """The answer of rank 0; Malformed if it is not valid."""
        messages.load_answer(content)
        keep(content, self._lines)


class Connected(Protocol):
    """A member that is connected: the name of its connection."""

    id: bytes


class CoordinatorWaits:
    """At rank 0.  `send` passes a message to that member; False: it is not connected."""

    def __init__(
        self, address: "MemberAddress", lines: ProtocolLines, send: Callable[[int, bytes, bytes], bool]
    ) -> None:
        self._own, self._lines, self._send = OwnWaits(address, lines), lines, send
        self._address = address
        self._waves, self._prefix = Waves(0), os.urandom(8).hex()
        self._kept: Waves | None = None  # the waves whose answer to this member is in the file
        self._names = {address.rank: address.node}
        self._sent: dict[int, tuple[bytes, Waves]] = {}  # to each member: on which connection, and the answer to what
        self._due = 0.0

    def process(self, now: float, epoch: int, present: Callable[[], Mapping[int, Connected]]) -> None:
        if epoch != self._waves.epoch:
            self._waves = Waves(epoch, self._waves.number + 1)
        if (own := self._own.read(now)) is not None:
            self._take(own)
        if self._kept is not self._waves:
            self._kept, self._due = self._waves, now
            keep(self._answer(self._address.rank), self._lines)
        if now < self._due:
            return
        self._due = now + max(PERIOD, self._address.size / ANSWERS_PER_SECOND)
        for rank, peer in present().items():
            connection, answered = self._sent.get(rank, (b"", None))
            if connection == peer.id and answered is self._waves:
                continue
            if self._send(rank, messages.ANSWER, self._answer(rank)):
                self._sent[rank] = peer.id, self._waves

    def receive(self, rank: int, node: str, content: bytes) -> None:
        """The waits of that member; Malformed if they are not valid."""
        found = messages.load_waits(content, rank, self._address.size)
        self._names[rank] = node
        self._take(found)

    def _take(self, found: Waits) -> None:
        self._waves = waits.take(self._waves, found, self._prefix, self._names)

    def _answer(self, member: int) -> bytes:
        return messages.dump(waits.answer(self._waves, self._prefix, member))
