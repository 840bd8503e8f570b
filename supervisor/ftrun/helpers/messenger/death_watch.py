"""Finds out whether the ftrun of a member is dead whose connection has closed.

As long as it lives, PID 1 of a member accepts TCP connections on a port (`host.ports.LifeSign`).  A machine that
accepted one there before, and refuses one now, has no such process any more; one that does not answer shows nothing.
Nothing here blocks, and nothing is sent.
"""

import errno
import math
import select
import socket
from collections.abc import Hashable
from typing import Final, Generic, Literal, TypeVar

Key = TypeVar("Key", bound=Hashable)
ConnectionResult = Literal["accepted", "refused", "none"]
ANSWER: Final = 1.0  # s that a machine has to answer
AGAIN: Final = 0.1  # s between two questions to a machine whose member may be dead
SLOWER: Final = 0.1  # the same for each second since its connection closed: nobody may read the questions meanwhile
POLL: Final = 0.02  # s between two looks at an answer
FIRST: Final = 3  # questions to a member that has just joined


class Question:
    """One attempt to connect, until its result is known.  Raises nothing."""

    def __init__(self, host: str, port: int, now: float) -> None:
        self.until = now + ANSWER
        self._answer: ConnectionResult | None = None
        self._socket: socket.socket | None = None
        try:
            self._socket = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
            self._socket.setblocking(False)
            self._settle(self._socket.connect_ex((host, port)))
        except (OSError, ValueError):
            self._answer = "none"

    def answer(self, now: float) -> ConnectionResult | None:
        """The result of the connection; None: not yet known."""
        if self._answer is None and self._socket is not None:
            poll = select.poll()
            poll.register(self._socket, select.POLLOUT)
            if poll.poll(0):
                self._settle(self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
            elif now >= self.until:
                self._answer = "none"
        if self._answer is not None:
            self.close()
        return self._answer

    def _settle(self, error: int) -> None:
        if error != errno.EINPROGRESS:
            self._answer = {0: "accepted", errno.ECONNREFUSED: "refused"}.get(error, "none")  # type: ignore[assignment]

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class WatchedMember:
    """A member.  `accepted`: it was reached before.  `closed`: when its connection closed, so that it may be dead.
    `lives`: it was reached after that, when it was asked last."""

    def __init__(self, host: str, port: int, now: float) -> None:
        self.host, self.port = host, port
        self.question: Question | None = None
        self.accepted = self.lives = False
        self.closed: float | None = None
        self.asked, self.next = 0, now


class DeathWatch(Generic[Key]):
    """The owner calls `joined` for a member with a connection, `closed` when that closes, and `process` at `due`."""

    def __init__(self) -> None:
        self._members: dict[Key, WatchedMember] = {}
        self._active: set[Key] = set()

    @property
    def due(self) -> float:
        """The time of the next action."""
        return min((self._members[key].next for key in self._active), default=math.inf)

    def joined(self, key: Key, host: str, port: int, now: float) -> None:
        known = self._members.get(key)
        if known is not None and (known.host, known.port) == (host, port):
            known.closed, known.lives = None, False
            return
        self.forget(key)
        if host and port:
            self._members[key] = WatchedMember(host, port, now)
            self._active.add(key)

    def closed(self, key: Key, now: float) -> None:
        member = self._members.get(key)
        if member is not None and member.accepted:
            member.closed, member.lives, member.next = now, False, now
            self._active.add(key)

    def suspect(self, key: Key, host: str, port: int, now: float) -> None:
        """Watch a process that others have reached, until it is dead or forgotten."""
        if key not in self._members:
            self._members[key] = member = WatchedMember(host, port, now)
            member.accepted, member.closed = True, now
            self._active.add(key)

    def lives(self, key: Key) -> bool:
        """Whether a member lives whose connection has closed."""
        return (member := self._members.get(key)) is not None and member.lives

    def accepts(self, key: Key) -> bool:
        """Whether a member was reached."""
        return (member := self._members.get(key)) is not None and member.accepted

    def forget(self, key: Key) -> None:
        member = self._members.pop(key, None)
        self._active.discard(key)
        if member is not None and member.question is not None:
            member.question.close()

    def process(self, now: float) -> list[Key]:
        """The members that are dead, each once."""
        dead = list[Key]()
        for key in [key for key in self._active if now >= self._members[key].next]:
            member = self._members[key]
            if member.question is None:
                member.question, member.asked = Question(member.host, member.port, now), member.asked + 1
            answer = member.question.answer(now)
            if answer is None:
                member.next = now + POLL
                continue
            age = 0.0 if member.closed is None else now - member.closed
            member.question, member.next = None, now + max(AGAIN, age * SLOWER)
            member.accepted = member.accepted or answer == "accepted"
            member.lives = member.closed is not None and answer == "accepted"
            if member.closed is not None and answer == "refused":
                dead.append(key)
            elif member.closed is None and (member.accepted or member.asked >= FIRST):
                self._active.discard(key)
        for key in dead:
            self.forget(key)
        return dead

    def close(self) -> None:
        for key in [*self._members]:
            self.forget(key)
