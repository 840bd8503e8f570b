"""This member's part in the lease of the group (core/group/lease.py): what its messenger knows of the shared folder,
and asks its clerk (lease_clerk.py) to do there.  Nothing here blocks.
"""

import json
import math
import os
import signal
import subprocess
import sys
import time
from typing import Final

from ftrun.core.group import lease
from ftrun.core.group.lease import Place, Watch, Witness
from ftrun.core.group.messages import GroupEnd, Places
from ftrun.core.named_tuple import NamedTuple
from ftrun.core.text import sentences
from ftrun.helpers.lines import ProtocolLines
from ftrun.helpers.messenger.transport import digest
from ftrun.host import mounts, spawn
from ftrun.host.helpers import CODE
from ftrun.messages import peers
from ftrun.messages.codec import Malformed

LOOK: Final = 0.5  # s between two looks of a member at the folder; more in a group in which all together would make
LOOKS_PER_SECOND: Final = 200
LONGEST: Final = 5.0  # s
MOST: Final = 32  # witnesses, and pairs of places; a place has to fit into a pipe
SINCE: Final = 5.0  # s that an answer of the clerk may have been under way
AGAIN: Final = 1.0  # s until a failed attempt is repeated
WHY: Final = 300  # characters


class LeaseChange(NamedTuple):
    """`taken`: this member has taken the newest place; otherwise another member has.  `before`: the place before it."""

    taken: bool
    before: Place | None


class LeaseKeeper:
    """`source`: the owner polls it, then calls `changes`."""

    def __init__(self, address: peers.MemberAddress, lines: ProtocolLines) -> None:
        self._address, self._lines = address, lines
        self.me: Witness = address.rank, address.life
        self.length, self.patience = lease.length(address.silence, address.drain), address.silence + address.wait
        self.watch = Watch(None, time.monotonic())
        self.proved = False  # this member can write there
        # It is the folder of the others: until that is known it may be an empty mount point.  A mount cannot be.
        self.shared, self._mounted = False, mounts.is_network_volume(address.folder)
        self._kin = {address.life}  # lives of processes of this group
        self.bound: set[Witness] = set()  # of the newest own place, and of those that it may have taken
        self._tried: tuple[Place, Place | None, float] | None = None  # under way: what, before which, since when
        self._renewed, self._began = -math.inf, -math.inf
        self._looked = -math.inf  # when the folder was seen to have no newer place
        self._next = 0.0  # when the next attempt may be made
        self._left = b""
        name = digest(f"{address.job}\0{address.endpoint}\0{address.size}".encode(), 8).hex()
        self._folder = f"{address.folder}/lease-{name}"
        look = min(max(LOOK, address.size / LOOKS_PER_SECOND), LONGEST)
        args = "\n".join(sys.path[:2]), self._folder, str(address.rank), str(look)
        self._words = [sys.executable, "-I", "-c", CODE.format(name="messenger.lease_clerk"), *args]
        self._unsure = 0, math.inf  # a place that may be taken, since its clerk died meanwhile, and since when
        self._start_at = math.inf  # when a clerk that has died is started again
        self._start()

    def _start(self) -> None:
        self._clerk = subprocess.Popen(
            self._words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            preexec_fn=lambda: spawn.prctl(spawn.PR_SET_PDEATHSIG, signal.SIGKILL),
        )
        assert self._clerk.stdin is not None
        assert self._clerk.stdout is not None
        self._to, self.source = self._clerk.stdin.fileno(), self._clerk.stdout.fileno()
        os.set_blocking(self._to, False)
        os.set_blocking(self.source, False)

    def close(self) -> None:
        """End the clerk without waiting for it, since it may be blocked."""
        self._clerk.kill()

    @property
    def place(self) -> Place | None:
        return self.watch.place

    @property
    def holds(self) -> bool:
        return self.place is not None and self.place.life == self._address.life

    @property
    def is_fresh(self) -> bool:
        """Whether this member has just taken the lease over, so that the earlier witnesses may not have come yet."""
        return time.monotonic() < self._began + self.length

    def resumed(self, now: float) -> None:
        self.watch = lease.resumed(self.watch, now)

    @property
    def is_over(self) -> bool:
        """Whether the folder says that this lease has ended with its group."""
        return self.holds and self.place is not None and self.place.over

    @property
    def end(self) -> GroupEnd | None:
        """How the group of this process has ended, as another one of it has written."""
        place = self.place
        return None if place is None or place.life == self._address.life or not self._is_kin(place) else place.end

    def _is_kin(self, place: Place) -> bool:
        """Whether a process of this group has written this place, and not one of an earlier schedule of the job."""
        return place.life in self._kin

    def heard(self, life: str, now: float) -> None:
        """A coordinator that has the lease has answered."""
        self._kin |= {life} if life else set()
        self.watch = lease.heard(self.watch, life, now)

    def takes_at(self, lost: dict[Witness, float]) -> float:
        if self.place is None:
            return -math.inf if self._address.rank == 0 else math.inf
        return lease.takes_at(self.watch, self.me, self.length, self.patience, lost)

    def stops_at(self, heard: dict[Witness, float], dead: set[Witness]) -> float:
        drain = self._address.drain
        bound, me = self.bound - dead, self.me[0]
        return lease.stops_at(self._renewed, bound, heard, self.length, self.patience, drain, me, self._looked)

    @property
    def is_alone(self) -> bool:
        """Whether this member has taken the lease over, and no witness could take it from it."""
        return self.me[0] != 0 and not self.bound

    def renews_at(self) -> float:
        return max(self._next, self._renewed + lease.RENEWAL)

    @property
    def has_renewed(self) -> bool:
        """Whether this messenger has renewed the lease.  If it was started again and has not, what PID 1 knows of the
        lease still holds."""
        return self._renewed > -math.inf

    def take(
        self,
        endpoint: str,
        epoch: int,
        places: Places,
        found: set[Witness],
        all_new: bool = False,
        end: GroupEnd | None = None,
    ) -> None:
        """Try to take the next place; a change tells whether it succeeded.  One attempt at a time.  `all_new`: no
        witness of before is in this group.  `end`: the group has ended so."""
        now, before, address = time.monotonic(), self.place, self._address
        self.shared |= bool(found)
        if self._tried is not None or now < self._next or not self.proved:
            return
        inherits = before is not None and (before.life != address.life or self.is_fresh) and not all_new
        if before is not None and inherits and lease.is_binding(before):
            found = found | {*before.witnesses}
        witnesses = tuple(sorted(found - {self.me})[:MOST])
        kept = places if len(places) <= MOST else ()
        who = (address.rank, address.life, address.node, address.boot, endpoint)
        end = end and end._replace(why=sentences.short(end.why, WHY))
        mine = Place(0, *who, epoch, kept, witnesses, over=end is not None, written=time.time(), end=end)
        new = lease.next_place(before, mine, before is not None and epoch > before.epoch)
        try:
            os.write(self._to, peers.dump(new) + b"\n")  # less than a pipe takes at once
        except OSError:
            return  # its pipe is full, or it has ended
        self._tried = new, before, now
        self.bound |= {*new.witnesses}
        self._kin |= {life for _, life in found}

    def changes(self, now: float) -> list[LeaseChange]:
        """The changes that the clerk has reported since the last call."""
        if now >= self._start_at:
            self._start_at = math.inf
            self._start()
        if self.source < 0:
            return []
        try:
            content = os.read(self.source, 65536)
        except OSError:
            return []
        if not content:
            self._ended(now)
            return []
        *found, self._left = (self._left + content).split(b"\n")
        return [change for line in found if (change := self._handle_answer(line, now)) is not None]

    def _ended(self, now: float) -> None:
        """The clerk has died: without one no lease can be renewed.  What it was about to take may be taken."""
        self._lines.problem("the helper of the lease in the shared folder has died, and is started again")
        for pipe in (self._clerk.stdin, self._clerk.stdout):
            if pipe is not None:
                pipe.close()
        self._to = self.source = -1
        self._clerk.poll()
        if self._tried is not None:
            (new, _, began), self._tried = self._tried, None
            self._unsure = new.number, min(began, self._unsure[1]) if self._unsure[0] == new.number else began
        self._left, self._start_at = b"", now + AGAIN

    def _handle_answer(self, line: bytes, now: float) -> LeaseChange | None:
        answer = json.loads(line)
        if "looked" in answer:
            self._looked = now - SINCE
        elif "proved" in answer:
            self.proved = True
            self.shared |= self._mounted
        elif "failed" in answer:
            self._failed(str(answer["failed"]), now)
        elif "taken" in answer and self._tried is not None:
            (new, before, began), self._tried = self._tried, None
            first = before is not None and before.life != new.life
            self._began = now if first else self._began
            number, earlier = self._unsure
            self.bound = self.bound if number == new.number else {*new.witnesses}
            self.watch, self._renewed = Watch(new, now), earlier if number == new.number else began
            return LeaseChange(True, before)
        elif "seen" in answer:
            return self._seen(answer["seen"], now)
        return None

    def _failed(self, why: str, now: float) -> None:
        self._lines.problem(f"the lease in {self._folder}: {why}")
        self._tried, self._next = None, now + AGAIN

    def _seen(self, content: object, now: float) -> LeaseChange | None:
        try:
            place = peers.load_place(json.dumps(content).encode())
        except Malformed as error:
            self._failed(f"a place in it is malformed: {error}", now)
            return None
        before, self.shared = self.place, self.shared or lease.proves_sharing(place)
        if self._tried is not None and place.number >= self._tried[0].number and place.life != self._address.life:
            self._tried = None
        self.watch = lease.seen(self.watch, place, now)
        if self.me in place.witnesses or self._is_kin(place):
            self._kin |= {place.life, *(life for _, life in place.witnesses)}
        if self.place is before or before is None or place.life == self._address.life:
            return None
        if place.over and not self._is_kin(place):
            return None
        return LeaseChange(False, before)
