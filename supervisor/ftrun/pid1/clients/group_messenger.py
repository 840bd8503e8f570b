"""Client of the messenger of a group member: sends reports to rank 0, and turns the messages of rank 0 into events.

Nothing here waits.  A messenger that is dead or sends invalid messages for long is treated as a silent rank 0.

A member without contact to rank 0 continues its command for its lease: `--peer-timeout`, after which rank 0 may count
it as lost, plus `--wait-peer`, for which rank 0 then waits.  After that, its place in the group may be taken by another
process (`core.group.membership.fence`), so the command has to end.
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

SPARE: Final = 5.0  # s; the messenger itself reports the silence this much earlier
PERIOD: Final = 1.0, 4.5  # s between two heartbeats of a member, by the size of the group (messenger.member_link)
KILLING: Final = 5.0  # s from SIGKILL to the end of every process that can be killed


class GroupMessenger(Messenger):
    def __init__(self, context: Context) -> None:
        self._began = time.monotonic()
        self._sent: Report | None = None
        self._seq = self._ran = 0
        self._last_contact: float | None = None  # when the last answered message was sent; None: never
        self._silent = self._lost = False  # as last reported to the core
        self._refusal = ""
        super().__init__(context)

    def start(self) -> None:
        context, policy, group = self.context, self.context.policy, self.context.group
        assert group is not None
        self._me = GroupMember(group.rank, os.urandom(8).hex(), policy.node, procfs.boot_id())
        drain = policy.grace + KILLING
        job = f"{group.job}/{policy.phase}" if policy.phase else group.job
        address = (group.size, group.rank, group.endpoint, group.secret, group.wait, drain, policy.heal_timeout)
        period = min(max(PERIOD[0], group.size / 200), PERIOD[1])
        self._address = wire.MemberAddress(
            *address, job, *self._me[1:], silence=max(policy.peer_timeout, BEATS * period)
        )
        arguments = (context.place.path, context.beat_dir, EXACT.dump(self._address))
        context.helpers.add(self.name, *arguments, paired=True, prompt=True)  # the command waits for it

    def handle(self, message: messages.Event, now: float) -> list[ev.Event]:
        match message:
            case messages.Ordered(order):
                return [ev.GroupOrderReceived(now, order)]
            case messages.Contact(age):
                self._contact(now - age, now)
            case messages.RankZeroSilent(why):
                return [self._contact_lost(why, now)]
            case messages.Refused(why, misfit):
                self._refusal = f"{self._rank_zero} does not take this node: {why}"
                self.problem(self._refusal)
                # A member that was accepted before may fit again when the whole group is rescheduled.
                if misfit and self._last_contact is None:
                    return [ev.CoordinatorLost(now, self._refusal, True)]
            case messages.GroupNote(what):
                self._note(what)
            case messages.LeaveConfirmed():
                self.awaited.clear()
            case _:
                return super().handle(message, now)
        return []

    @property
    def deadline(self) -> float | None:
        if self._lost:
            return None
        if self._last_contact is None:
            return self._began + self._address.wait + SPARE
        return (
            self._lease_end
            if self._silent
            else min(self._lease_end, self._last_contact + self._address.silence + SPARE)
        )

    @property
    def _lease_end(self) -> float:
        """The time at which the lease ends."""
        return (
            (self._began if self._last_contact is None else self._last_contact)
            + self._address.silence
            + self._address.wait
        )

    @property
    def unfinished(self) -> set[str]:
        return self.awaited if self.context.helpers.is_running(self.name) else set()

    def settle(self, now: float) -> list[ev.Event]:
        if self.deadline is None or now < self.deadline:
            return []
        return [
            self._contact_lost(
                f"there was no reply from {self._rank_zero} for {durations.seconds(now - self._silent_since)}", now
            )
        ]

    def follow(self, job: Job, now: float, unexplained: bool) -> None:
        """Report to rank 0 what has changed here.  The records that led to it are written by then."""
        new = report(job, self._me, self.context.policy, now, unexplained)
        self._ran = max(self._ran, new.epoch) if new.state in ("running", "fallen") else self._ran
        new = new._replace(ran=self._ran)
        if self._sent is not None and _without_age(new) == _without_age(self._sent):
            return
        self._seq += 1
        self._sent = new._replace(seq=self._seq)
        self.awaited = {"group"} if new.state == "left" else set()  # until rank 0 has confirmed the report
        self._report()

    def helpers_started(self) -> None:
        """A new messenger gets the whole report again."""
        super().helpers_started()
        self._report()

    def _report(self) -> None:
        if self._sent is not None:
            self.send(messages.Report(self._sent))

    def _note(self, what: str, line: str | None = None) -> None:
        self.context.records.append(("group", (("what", "noted"), ("why", what)), line))

    @property
    def _rank_zero(self) -> str:
        return f"rank 0 ({self._address.endpoint})"

    @property
    def _silent_since(self) -> float:
        return self._began if self._last_contact is None else self._last_contact

    def _contact(self, asked: float, now: float) -> None:
        if self._silent:
            what = f"contact with rank 0 is restored after {durations.seconds(now - self._silent_since)}"
            self._note(what, what)
        self._last_contact = max(self._silent_since, asked)
        self._silent = self._lost = False
        self._refusal = ""

    def _contact_lost(self, why: str, now: float) -> ev.Event:
        if self._last_contact is None or now >= self._lease_end:
            self._lost = True
            return ev.CoordinatorLost(now, self._refusal or why)
        self._silent = True
        return ev.CoordinatorSilent(now, self._refusal or why, self._lease_end)


def _without_age(new: Report) -> tuple[Any, ...]:
    """The report without the fields that alone do not make it worth sending."""
    failure = new.trouble and new.trouble._replace(age=0.0)
    return new._replace(seq=0, trouble=failure)
