"""What the other members of the group say about a wait that only they can end.

A look that finds only other members that may end the wait publishes that (`Waits`) through the messenger to rank 0,
which compares the waits of all (core/group/waits.py).  Its answer is used only if it is about what was seen here.
"""

import os
import time
from collections.abc import Callable
from typing import Final

from ftrun.core.group.waits import BlockedProcess, OutsideLink, Waits, WaitsAnswer
from ftrun.core.text import sentences
from ftrun.host import safe_files
from ftrun.messages import group_waits as messages
from ftrun.messages.codec import Malformed
from ftrun.messages.group_waits import LookMembership
from waitproof.group_waits import GroupWaits
from waitproof.proof import Facts, Proof

ANSWER: Final = 4.0  # s to wait for an answer that takes what was published into account
PAUSE: Final = 0.25  # s between two checks for it


def as_message(seen: GroupWaits, member: int, epoch: int = 0, wave: str = "") -> Waits:
    """What was seen here, as it is sent to rank 0."""
    processes = tuple(BlockedProcess(**one._asdict()) for one in seen.processes)
    links = tuple(OutsideLink(**one._asdict()) for one in seen.links)
    return Waits(member, epoch, wave, seen.fingerprint, processes, links, seen.size, seen.why)


class OtherMembers:
    """The other members of the group, as this member knows them when its look begins."""

    def __init__(self, membership: LookMembership) -> None:
        self._membership = membership
        self._answer = self._read()

    def ask(self, found: Proof, job: Facts, pause: Callable[[float], None] = time.sleep) -> tuple[Proof, bool]:
        """The proof with the answer of the others, and whether a deadlock is suspected that has to be confirmed by
        another look soon."""
        seen = found.group or GroupWaits(why=found.open_reason or "")
        own = as_message(seen, self._membership.member, self._membership.epoch, self._answer.wave)
        if not self._publish(own) or not found.in_group:
            return found, False
        was_suspected, until = self._suspects(own), time.monotonic() + ANSWER
        while not self._proves(own) and (was_suspected or not self._suspects(own)) and time.monotonic() < until:
            pause(PAUSE)
            self._answer = self._read()
        return self.apply(found, job), self._suspects(own)

    def apply(self, found: Proof, job: Facts) -> Proof:
        """The proof with what the others are known to say.  One that needs them is closed only if rank 0 has proved a
        deadlock that contains what was seen here, and whose cause is here."""
        proved = self._answer.proved
        if not found.in_group or found.group is None:
            return found
        if proved is None or not self._proves(found.group):
            return found._replace(open_reason=f"{found.mechanism}, {self._why()}")
        if proved.member != self._membership.member:
            return found._replace(open_reason=f"{proved.mechanism}, which member {proved.member} ends")
        if job.ranks and proved.pid not in job.still:
            return found
        rank = job.ranks.get(proved.pid)
        return found._replace(
            open_reason=None, mechanism=proved.mechanism, fingerprint=proved.all, rank=rank, pid=proved.pid
        )

    def _suspects(self, own: Waits | GroupWaits) -> bool:
        return self._answer.suspected == own.fingerprint

    def _proves(self, own: Waits | GroupWaits) -> bool:
        return self._answer.proved is not None and self._answer.proved.own == own.fingerprint

    def _why(self) -> str:
        others = [(member, why) for member, why in self._answer.reasons if member != self._membership.member]
        if not others:
            return "and not all other members of the group have answered that they stand still"
        member, why = others[0]
        return f"and of member {member}: {sentences.short(why)}"

    def _read(self) -> WaitsAnswer:
        """The last answer of rank 0; an answer without content if there is none for this epoch."""
        try:
            content = safe_files.read(os.path.join(self._membership.folder, messages.ANSWER_FILE), messages.LIMIT)
            answer = messages.load_answer(content or b"")
        except (OSError, Malformed, ValueError):
            return WaitsAnswer()
        return answer if answer.epoch == self._membership.epoch else WaitsAnswer()

    def _publish(self, own: Waits) -> bool:
        try:
            content = messages.dump_waits(own, self._membership.size)
            safe_files.replace(os.path.join(self._membership.folder, messages.OWN_FILE), content, durable=False)
            return True
        except OSError:
            return False
