"""Client of the messenger, the helper that uses pyzmq: requests of an operator, and the group.

In a group it sends reports to rank 0, and turns the messages of rank 0 into events.  A messenger that is dead or sends
invalid messages for long is treated as a silent rank 0.

A member without contact to rank 0 continues its command for its lease: `--peer-timeout`, after which rank 0 may count
it as lost, plus `--wait-peer` (or more: `lease.wait`), for which rank 0 then waits.  After that, its place in the group
may be taken by another process (`core.group.membership.fence`), so the command has to end.
"""

import math
import os
import time
from typing import TYPE_CHECKING, Final

from ftrun.config.derived import state_dir
from ftrun.core.group import lease
from ftrun.core.group.losses import NodeLost, NodeNote
from ftrun.core.group.messages import MISSED_PULSES, GroupOrder, MemberReport
from ftrun.core.machine import effects as do
from ftrun.core.machine import events as ev
from ftrun.core.machine.group_member import GroupMember, report
from ftrun.core.machine.requests import request_event
from ftrun.core.machine.states import Job
from ftrun.core.text import durations, sentences
from ftrun.host import procfs
from ftrun.messages import messenger as messages
from ftrun.messages import peers
from ftrun.messages.codec import EXACT
from ftrun.pid1.clients.base import Client, Context

if TYPE_CHECKING:
    from ftrun.host.ports import LifeSign, ReservedPort

SPARE: Final = 5.0  # s; the messenger itself reports the silence this much earlier
STOPPED: Final = 2.0  # s by which PID 1 is late if it was stopped
RESUMED: Final = 8.0  # s that a job that was suspended as a whole has to make contact again
KILLING: Final = 5.0  # s from SIGKILL to the end of every process that can be killed


class MessengerClient(Client[messages.MessengerEvent]):
    """The messenger of an ftrun without a group."""

    name = "messenger"
    prints_problems = True
    requests, events = messages.REQUESTS, messages.EVENTS

    def start(self) -> None:
        context = self.context
        context.helpers.add(self.name, context.work_dir.path, context.beat_dir, paired=True)

    def handle(self, message: messages.MessengerEvent, now: float) -> list[ev.Event]:
        match message:
            case messages.OperatorRequest(id, verb, by, lasting, until):
                return [request_event(verb, ev.Requester(id, by, until), lasting, now)]
            case messages.Straggler():
                fields = tuple((name, value) for name, value in message._asdict().items() if value not in (None, ""))
                self.context.records.append(("straggler", fields, sentences.straggler(*message)))
        return []

    def on_spawning(self) -> None:
        self.send(messages.AttemptNumber(self.context.attempt))

    def on_helpers_started(self) -> None:
        self.send(messages.AttemptNumber(self.context.attempt))

    def answer(self, answer: do.AnswerOperator) -> None:
        self.send(answer)


class GroupMessengerClient(MessengerClient):
    """The messenger of a group member."""

    def __init__(self, context: Context) -> None:
        self._began = time.monotonic()
        self._sent: MemberReport | None = None
        self._seq = self._ran = 0
        self._last_contact: float | None = None  # when the last answered message was sent; None: never
        self._silent = self._lost = False  # as last reported to the core
        self._resumed: float | None = None  # when this ftrun was resumed after the end of its lease
        self._refusal = ""
        self._tenure: float | None = None  # until when the ranks here may run, as the coordinator
        self._life: LifeSign | None = None
        super().__init__(context)

    def start(self) -> None:
        context, policy, group = self.context, self.context.policy, self.context.group
        assert group is not None
        self._me = GroupMember(group.rank, context.life, policy.membership.node, procfs.boot_id())
        self._ports: tuple[ReservedPort, ...] = ()  # of the attempt, and last of the next one
        self._offer_port()
        silence = max(policy.membership.peer_timeout, MISSED_PULSES * peers.period(group.size))
        drain, folder = policy.limits.grace + KILLING, self._lease_folder()
        self._address = peers.MemberAddress(
            size=group.size,
            rank=group.rank,
            endpoint=group.endpoint,
            secret=group.secret,
            wait=lease.wait(group.wait, silence, drain) if folder and group.is_elastic else group.wait,
            drain=drain,
            heal=policy.limits.heal_timeout,
            job=f"{group.job}/{policy.membership.phase}" if policy.membership.phase else group.job,
            life=self._me.life,
            node=self._me.node,
            boot=self._me.boot,
            silence=silence,
            least=group.least,
            spares=group.spares,
            replaces=group.replaces,
            scale_out=group.scale_out,
            port=self._life_sign(),
            contained=os.getpid() == 1,
            folder=folder,
        )
        arguments = (context.work_dir.path, context.beat_dir, EXACT.dump(self._address))
        context.helpers.add(self.name, *arguments, paired=True, prompt=True)  # the command waits for it

    def handle(self, message: messages.MessengerEvent, now: float) -> list[ev.Event]:
        match message:
            case messages.ChangedOrder(order):
                if self._tenure == 0.0 and not self._is_at_work:
                    self._tenure = None  # what starts from now on is by the order of the coordinator that has the lease
                return [ev.GroupOrderReceived(now, order)]
            case messages.Contact(age):
                self._contact(now - age, now)
                if self._life is not None:
                    self._life.clear()
            case messages.Tenure(until):
                self._tenure = until
            case messages.RankZeroSilent(why, takeover, holder):
                return [self._contact_lost(why, now, takeover, holder)]
            case messages.NodeRefused(why, final, over):
                self._refusal = f"{self._rank_zero} does not take this node: {why}"
                self.problem(self._refusal)
                # A member that was accepted before may fit again when all members are rescheduled.
                if final and self._last_contact is None:
                    return [ev.CoordinatorLost(now, self._refusal, True)]
                if over and self._last_contact is None:
                    return [ev.CoordinatorLost(now, f"{self._refusal}; the group has ended")]
            case NodeNote(what):
                self._note(what)
            case NodeLost(member, node, why, wait):
                fields: tuple[tuple[str, object], ...] = (("member", member), ("node", node), ("why", why))
                if wait is not None:
                    fields += (("wait", wait.left), ("then", wait.then))
                    fields += (("working", wait.working), ("exit_code", wait.code))
                self.context.records.append(("lost", fields, None))
            case messages.FoundImports(content) if self.context.standbys is not None:
                self.context.standbys.receive_imports(content)
            case messages.LeaveConfirmed():
                self.awaited.clear()
            case _:
                return super().handle(message, now)
        return []

    @property
    def deadline(self) -> float | None:
        tenure, contact = self._tenure_end, self._contact_deadline
        return contact if tenure is None else tenure if contact is None else min(tenure, contact)

    @property
    def _is_at_work(self) -> bool:
        return self._sent is not None and self._sent.state in ("running", "fallen")

    @property
    def _tenure_end(self) -> float | None:
        """When the ranks here stop, since another coordinator may begin an epoch."""
        if self._tenure is None or not self._is_at_work:
            return None
        return max(self._tenure, self._resumed_until) if self._tenure else 0.0

    @property
    def _contact_deadline(self) -> float | None:
        if self._lost:
            return None
        if self._last_contact is None:
            return max(self._began + self._address.wait + SPARE, self._resumed_until)
        if self._silent:
            return self._lease_end
        silence_ends = self._last_contact + self._address.silence + SPARE
        return min(self._lease_end, max(silence_ends, self._resumed_until))

    @property
    def _lease_end(self) -> float:
        return max(self._silent_since + self._address.silence + self._address.wait, self._resumed_until)

    @property
    def _resumed_until(self) -> float:
        """A whole job may have been suspended, and continues: contact decides, within seconds.  If only this ftrun was,
        the group has gone on without it, and rank 0 says so, or is silent."""
        return -math.inf if self._resumed is None else self._resumed + RESUMED

    @property
    def unfinished(self) -> set[str]:
        return self.awaited if self.context.helpers.is_running(self.name) else set()

    def settle(self, now: float) -> list[ev.Event]:
        tenure = math.inf if self._tenure_end is None else self._tenure_end
        # After a suspension the messenger first has the time to renew the lease, unless it is another's already.
        late = now >= tenure + STOPPED and self._resumed is None and tenure > 0.0
        if now >= tenure and not late and self._sent is not None:
            self._tenure = None
            why = "the lease of this coordinator in the shared folder has ended, so another member may take over"
            return [ev.GroupOrderReceived(now, GroupOrder(self._sent.epoch, "stop", why))]
        if self.deadline is None or now < self.deadline:
            return []
        if now >= self.deadline + STOPPED and self._resumed is None:
            self._resumed = now
            return []
        silence = durations.seconds(now - self._silent_since)
        return [self._contact_lost(f"there was no reply from {self._rank_zero} for {silence}", now)]

    def follow(self, job: Job, now: float, awaits_cause: bool) -> None:
        """Report to rank 0 what has changed here.  The records that led to it are written by then."""
        if self._me.port and self._me.port == _port_of_round(job):
            self._offer_port()
        new = report(job, self._me, self.context.policy, now, awaits_cause)
        self._ran = max(self._ran, new.epoch) if new.state in ("running", "fallen") else self._ran
        new = new._replace(ran=self._ran, buried=self.context.buried)
        if self._sent is not None and _without_age(new) == _without_age(self._sent):
            return
        self._seq += 1
        self._sent = new._replace(seq=self._seq)
        self.awaited = {"group"} if new.state == "left" else set()  # until rank 0 has confirmed the report
        self.send(messages.ChangedReport(self._sent))

    def on_helpers_started(self) -> None:
        """A new messenger gets the complete report again."""
        super().on_helpers_started()
        if self._sent is not None:
            self.send(messages.ChangedReport(self._sent))
        if self.context.standbys is not None and self.context.standbys.wants_imports:
            self.seek_imports()

    def seek_imports(self) -> None:
        """Ask what the members at work have imported, for the standbys of a spare, which receive the answer."""
        self.send(messages.SeekImports())

    def _lease_folder(self) -> str:
        """The folder of the lease of the group, if its members share it, which they find out by themselves.  A group of
        a fixed size has no lease, since it cannot go on without member 0."""
        path, group = state_dir(self.context.settings), self.context.group
        return os.path.abspath(path) if path is not None and group is not None and group.is_elastic else ""

    def _life_sign(self) -> int:
        """The number of a port by which rank 0 finds out that this ftrun has died; 0: there is none."""
        from ftrun.host.ports import LifeSign

        try:
            self._life = LifeSign()
        except OSError as error:
            self.problem(f"no port for the other members: {error.strerror}")
            return 0
        return self._life.number

    def _note(self, what: str, line: str | None = None) -> None:
        self.context.records.append(("group", (("what", "noted"), ("why", what)), line))

    def on_spawning(self) -> None:
        super().on_spawning()
        self._offer_port()

    def _offer_port(self) -> None:
        """The member that may be the first of an epoch reserves the port of the next start in advance, since the order
        of that start carries it.  That of the current attempt stays reserved."""
        group = self.context.group
        if group is None or self.context.policy.ranks is None or (group.rank and not group.is_elastic):
            return
        from ftrun.host.ports import ReservedPort

        for unused in self._ports[:-1]:
            unused.close()
        try:
            new = ReservedPort()
        except OSError as error:
            self.problem(f"no port for the ranks: {error.strerror}")
            self._ports, self._me = self._ports[-1:], self._me._replace(port=0)
            return
        address = "" if group.rank else group.address
        self._ports, self._me = (*self._ports[-1:], new), self._me._replace(address=address, port=new.number)

    @property
    def _rank_zero(self) -> str:
        return f"rank 0 ({self._address.endpoint})"

    @property
    def _silent_since(self) -> float:
        return self._began if self._last_contact is None else self._last_contact

    def _contact(self, sent_at: float, now: float) -> None:
        if self._silent:
            what = f"contact with the coordinator is restored after {durations.seconds(now - self._silent_since)}"
            self._note(what, what)
        self._last_contact = max(self._silent_since, sent_at)
        self._silent = self._lost = False
        self._resumed = None
        self._refusal = ""

    def _contact_lost(self, why: str, now: float, takeover: float | None = None, holder: int = 0) -> ev.Event:
        if (self._last_contact is None and now >= self._resumed_until) or now >= self._lease_end:
            self._lost = True
            return ev.CoordinatorLost(now, self._refusal or why)
        self._silent = True
        return ev.CoordinatorSilent(now, self._refusal or why, self._lease_end, takeover, holder)


def _port_of_round(job: Job) -> int:
    """The port of the round that the ranks work in, or begin."""
    round = job.order.round if job.order is not None else None
    return round.port if round is not None else 0


def _without_age(new: MemberReport) -> MemberReport:
    """The report without the fields that alone do not make it worth sending."""
    return new._replace(seq=0, failure=new.failure and new.failure._replace(age=0.0))
