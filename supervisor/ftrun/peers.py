"""One of a group, as PID 1 has it: what the courier is told of us, and what the group's words mean as events.

Nothing in here waits.  A courier that is dead or mad for long is taken for a rank 0 that is not heard.

Who does not hear rank 0 goes on with its command, for its lease: `--peer-timeout`, after which rank 0 may miss it, and
`--wait-peer`, for which rank 0 then waits.  Later nobody of the group is left to obey, and its place may be taken
(`core.members.fence`), so that the command has to end.
"""

import json
import os
from typing import Any, Final

from ftrun.core import durations
from ftrun.core import events as ev
from ftrun.core.group import BEATS, Report
from ftrun.core.joining import Member, report
from ftrun.core.policy import Policy
from ftrun.core.states import Job
from ftrun.grouping import Group
from ftrun.host import procfs
from ftrun.host.helpers import Helpers, Message
from ftrun.wire import peers as wire

SPARE: Final = 5.0  # s; the courier itself says it so much earlier
PERIOD: Final = 1.0, 4.5  # s between two heartbeats of a member, by the size of the group (courier.member)
KILLING: Final = 5.0  # s from SIGKILL to the end of what can be killed


class Peers:
    """`problems`, `lines` and, of rank 0, `notes` are for a record; `lines` also for a person."""

    def __init__(self, group: Group, policy: Policy, helpers: Helpers, now: float) -> None:
        self._policy, self._helpers = policy, helpers
        boot = (procfs.read("/proc/sys/kernel/random/boot_id") or b"").decode("ascii", "replace").strip()
        self._me = Member(group.rank, os.urandom(8).hex(), policy.node, boot)
        drain = policy.grace + KILLING
        job = f"{group.job}/{policy.phase}" if policy.phase else group.job
        place = (group.size, group.rank, group.endpoint, group.secret, group.wait, drain, policy.heal_timeout)
        period = min(max(PERIOD[0], group.size / 200), PERIOD[1])
        self._place = wire.Place(*place, job, *self._me[1:], silence=max(policy.peer_timeout, BEATS * period))
        self._said: Report | None = None
        self._seq = self._ran = 0
        self._began = now
        self._word: float | None = None  # when we asked what rank 0 has answered last; None: never
        self._unheard = self._over = False  # as the core knows
        self._refusal = ""
        self.parting = False  # the group has still to hear that we are gone
        self.problems: list[tuple[str, str]] = []
        self.notes: list[str] = []
        self.lines: list[str] = []

    @property
    def words(self) -> str:
        """The courier's."""
        return json.dumps(self._place._asdict())

    @property
    def deadline(self) -> float | None:
        if self._over:
            return None
        if self._word is None:
            return self._began + self._place.wait + SPARE
        return self._until if self._unheard else min(self._until, self._word + self._place.silence + SPARE)

    @property
    def _until(self) -> float:
        """The end of the lease."""
        return (self._began if self._word is None else self._word) + self._place.silence + self._place.wait

    def follow(self, job: Job, now: float, fallen: bool) -> None:
        """Tell the group what has changed here.  What led to it is on record by then."""
        said = report(job, self._me, self._policy, now, fallen)
        self._ran = max(self._ran, said.epoch) if said.state in ("running", "fallen") else self._ran
        said = said._replace(ran=self._ran)
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
                return ev.Ordered(now, wire.order_of(message["order"]))
            case "contact":
                self._contact(now - max(0.0, float(message.get("age", 0.0))), now)
            case "cut":
                return self._cut(str(message["why"]), now)
            case "refused":
                self._refusal = f"{self._zero} does not take this node: {message['why']}"
                self.problems.append(("courier", self._refusal))
                # Who was taken once was one of the group: scheduled again, all of it may fit together.
                if message.get("misfit") is True and self._word is None:
                    return ev.CutOff(now, self._refusal, True)
            case "noted":
                self.notes.append(str(message["what"]))
            case "left":
                self.parting = False
        return None

    def overdue(self, now: float) -> list[ev.Event]:
        if self.deadline is None or now < self.deadline:
            return []
        return [self._cut(f"nothing was heard of {self._zero} for {durations.seconds(now - self._last)}", now)]

    @property
    def _zero(self) -> str:
        return f"rank 0 ({self._place.endpoint})"

    @property
    def _last(self) -> float:
        return self._began if self._word is None else self._word

    def _contact(self, asked: float, now: float) -> None:
        if self._unheard:
            self.lines.append(f"rank 0 is heard again, after {durations.seconds(now - self._last)}")
        self._word = max(self._last, asked)
        self._unheard = self._over = False
        self._refusal = ""

    def _cut(self, why: str, now: float) -> ev.Event:
        if self._word is None or now >= self._until:
            self._over = True
            return ev.CutOff(now, self._refusal or why)
        self._unheard = True
        return ev.Unheard(now, self._refusal or why, self._until)


def _ageless(said: Report) -> tuple[Any, ...]:
    """What makes it news."""
    trouble = said.trouble and said.trouble._replace(age=0.0)
    return said._replace(seq=0, trouble=trouble)
