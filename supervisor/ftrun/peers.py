"""One of a group, as PID 1 has it: what the courier is told of us, and what the group's words mean as events.

Nothing in here waits.  A courier that is dead or mad for long is taken for a group that is lost.
"""

import json
import os
from typing import Any, Final

from ftrun.core import events as ev
from ftrun.core import words
from ftrun.core.group import SILENCE, Report
from ftrun.core.joining import Member, report
from ftrun.core.policy import Policy
from ftrun.core.states import Job
from ftrun.grouping import Group
from ftrun.host import procfs
from ftrun.host.helpers import Helpers, Message
from ftrun.wire import peers as wire

FENCE: Final = SILENCE + 5.0  # s; the courier itself says it after SILENCE.  Rank 0 waits longer (members.fence)
KILLING: Final = 5.0  # s from SIGKILL to the end of what can be killed


class Peers:
    """`problems` and, of rank 0, `notes` are for a record."""

    def __init__(self, group: Group, policy: Policy, helpers: Helpers, now: float) -> None:
        self._policy, self._helpers = policy, helpers
        boot = (procfs.read("/proc/sys/kernel/random/boot_id") or b"").decode("ascii", "replace").strip()
        self._me = Member(group.rank, os.urandom(8).hex(), policy.node, boot)
        drain = policy.grace + KILLING
        job = f"{group.job}/{policy.phase}" if policy.phase else group.job
        place = (group.size, group.rank, group.endpoint, group.secret, group.wait, drain, policy.heal_timeout)
        self._place = wire.Place(*place, job, *self._me[1:])
        self._said: Report | None = None
        self._seq = 0
        self._fence: float | None = now + group.wait + FENCE
        self.parting = False  # the group has still to hear that we are gone
        self.problems: list[tuple[str, str]] = []
        self.notes: list[str] = []

    @property
    def words(self) -> str:
        """The courier's."""
        return json.dumps(self._place._asdict())

    @property
    def deadline(self) -> float | None:
        return self._fence

    def follow(self, job: Job, now: float, fallen: bool) -> None:
        """Tell the group what has changed here.  What led to it is on record by then."""
        said = report(job, self._me, self._policy, now, fallen)
        if self._said is not None and _ageless(said) == _ageless(self._said):
            return
        self._seq += 1
        self._said = said._replace(seq=self._seq)
        self.parting = said.state == "left"
        self.tell()

    def tell(self) -> None:
        """Also to a courier that is new."""
        if self._said is not None:
            self._helpers.tell("courier", {"ask": "report", "report": wire.plain(self._said)})

    def hear(self, message: Message, now: float) -> ev.Event | None:
        match message["event"]:
            case "ordered":
                self._fence = now + FENCE
                return ev.Ordered(now, wire.order_of(message["order"]))
            case "contact":
                self._fence = now + FENCE
            case "cut":
                return self._cut(str(message["why"]), now)
            case "refused":
                self.problems.append(("courier", f"rank 0 does not take us into the group: {message['why']}"))
            case "noted":
                self.notes.append(str(message["what"]))
            case "left":
                self.parting = False
        return None

    def overdue(self, now: float) -> list[ev.Event]:
        if self._fence is None or now < self._fence:
            return []
        return [self._cut(f"nothing heard of the group for {words.seconds(FENCE)}", now)]

    def _cut(self, why: str, now: float) -> ev.Event:
        self._fence = None  # it holds until there is an order again
        return ev.CutOff(now, why)


def _ageless(said: Report) -> tuple[Any, ...]:
    """What makes it news."""
    trouble = said.trouble and said.trouble._replace(age=0.0)
    return said._replace(seq=0, trouble=trouble)
