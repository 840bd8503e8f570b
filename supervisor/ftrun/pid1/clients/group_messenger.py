"""Client of the messenger of a member of a group: what rank 0 has to know of it, and what rank 0's messages mean.

Nothing in here waits.  A messenger that is dead or sends nonsense for long is taken for a rank 0 that is not heard.

A member that does not hear rank 0 goes on with its command, for its lease: `--peer-timeout`, after which rank 0 may
miss it, and `--wait-peer`, for which rank 0 then waits.  Later nobody of the group is left to obey, and its place may
be taken (`core.members.fence`), so that the command has to end.
"""

import os
import time
from typing import Any, Final

from ftrun.core.group.messages import BEATS, Report
from ftrun.core.machine import events as ev
from ftrun.core.machine.group_member import GroupMember, report
from ftrun.core.machine.states import Job
from ftrun.core.text import durations
from ftrun.host import procfs
from ftrun.messages import messenger as messages
from ftrun.messages import peers as wire
from ftrun.messages.codec import EXACT
from ftrun.pid1.clients.base import Context
from ftrun.pid1.clients.messenger import Messenger

SPARE: Final = 5.0  # s; the messenger itself says it so much earlier
PERIOD: Final = 1.0, 4.5  # s between two heartbeats of a member, by the size of the group (messenger.member)
KILLING: Final = 5.0  # s from SIGKILL to the end of what can be killed


class GroupMessenger(Messenger):
    def __init__(self, context: Context) -> None:
        self._began = time.monotonic()
        self._said: Report | None = None
        self._seq = self._ran = 0
        self._word: float | None = None  # when we asked what rank 0 has answered last; None: never
        self._unheard = self._over = False  # as the core knows
        self._refusal = ""
        super().__init__(context)

    def start(self) -> None:
        context, policy, group = self.context, self.context.policy, self.context.group
        assert group is not None
        self._me = GroupMember(group.rank, os.urandom(8).hex(), policy.node, procfs.boot_id())
        drain = policy.grace + KILLING
        job = f"{group.job}/{policy.phase}" if policy.phase else group.job
        place = (group.size, group.rank, group.endpoint, group.secret, group.wait, drain, policy.heal_timeout)
        period = min(max(PERIOD[0], group.size / 200), PERIOD[1])
        self._place = wire.MemberAddress(*place, job, *self._me[1:], silence=max(policy.peer_timeout, BEATS * period))
        words = (context.place.path, context.beat_dir, EXACT.dump(self._place))
        context.helpers.add(self.name, *words, paired=True, prompt=True)  # the command waits for it

    def handle(self, message: messages.Event, now: float) -> list[ev.Event]:
        match message:
            case messages.Ordered(order):
                return [ev.GroupOrderReceived(now, order)]
            case messages.Contact(age):
                self._contact(now - age, now)
            case messages.Cut(why):
                return [self._cut(why, now)]
            case messages.Refused(why, misfit):
                self._refusal = f"{self._zero} does not take this node: {why}"
                self.problem(self._refusal)
                # Who was taken once was one of the group: scheduled again, all of it may fit together.
                if misfit and self._word is None:
                    return [ev.CoordinatorLost(now, self._refusal, True)]
            case messages.Noted(what):
                self._note(what)
            case messages.Left():
                self.awaited.clear()
            case _:
                return super().handle(message, now)
        return []

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

    @property
    def unfinished(self) -> set[str]:
        return self.awaited if self.context.helpers.is_running(self.name) else set()

    def settle(self, now: float) -> list[ev.Event]:
        if self.deadline is None or now < self.deadline:
            return []
        return [self._cut(f"nothing was heard of {self._zero} for {durations.seconds(now - self._last)}", now)]

    def follow(self, job: Job, now: float, unexplained: bool) -> None:
        """Tell the group what has changed here.  What led to it is on record by then."""
        said = report(job, self._me, self.context.policy, now, unexplained)
        self._ran = max(self._ran, said.epoch) if said.state in ("running", "fallen") else self._ran
        said = said._replace(ran=self._ran)
        if self._said is not None and _ageless(said) == _ageless(self._said):
            return
        self._seq += 1
        self._said = said._replace(seq=self._seq)
        self.awaited = {"left"} if said.state == "left" else set()  # until the group has heard that we are gone
        self._report()

    def helpers_started(self) -> None:
        """Also a messenger that is new is told all."""
        super().helpers_started()
        self._report()

    def _report(self) -> None:
        if self._said is not None:
            self.tell(messages.Report(self._said))

    def _note(self, what: str, line: str | None = None) -> None:
        self.context.records.append(("group", (("what", "noted"), ("why", what)), line))

    @property
    def _zero(self) -> str:
        return f"rank 0 ({self._place.endpoint})"

    @property
    def _last(self) -> float:
        return self._began if self._word is None else self._word

    def _contact(self, asked: float, now: float) -> None:
        if self._unheard:
            what = f"rank 0 is heard again, after {durations.seconds(now - self._last)}"
            self._note(what, what)
        self._word = max(self._last, asked)
        self._unheard = self._over = False
        self._refusal = ""

    def _cut(self, why: str, now: float) -> ev.Event:
        if self._word is None or now >= self._until:
            self._over = True
            return ev.CoordinatorLost(now, self._refusal or why)
        self._unheard = True
        return ev.CoordinatorSilent(now, self._refusal or why, self._until)


def _ageless(said: Report) -> tuple[Any, ...]:
    """What makes it news."""
    trouble = said.trouble and said.trouble._replace(age=0.0)
    return said._replace(seq=0, trouble=trouble)
