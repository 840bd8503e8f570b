"""Many members in a tree of messengers: each is a model of one ftrun, rank 0 has the real coordinator, and what is
between them merges reports (relay.py)."""

from collections.abc import Iterable
from typing import Final

from ftrun.core.group import coordinator
from ftrun.core.group.membership import DeadlineReached, Event, Reported, SendOrder, Shape, new_coordinator
from ftrun.core.group.messages import GroupEnd, GroupOrder, NodeFailure, Report, State
from ftrun.core.group.root_cause import MemberLost, MemberState, first_failure
from ftrun.messages import peers
from proof.scale.model import RECEIVE, SEND, Simulation
from proof.scale.relay import SLOT, Relay, merge

WAIT: Final = 600.0  # s, `--wait-peer`
DRAIN: Final = 30.0
RECONNECT: Final = 5.0  # s that a child has to reconnect (helpers/messenger/coordinator_link.py)
RESTARTED: Final = 1.5  # s until PID 1 has started its messenger again
ENVELOPE: Final = 250  # bytes of a message beside the report or order: hello, pulse, time, frames of ZMTP and CURVE


class Node:
    """One member: its PID 1, of which only the state matters, and its messenger, which serves its children.

    The *slot* of a relay is the subtree: when a relay is lost, its first child serves the slot in its place."""

    def __init__(self, fleet: "Fleet", number: int) -> None:
        self.fleet, self.number = fleet, number
        self.slowness = fleet.simulation.speed()
        self.parent: Node | None = None
        self.children: list[Node] = []
        self.slot = 0  # the number under which the parent knows this node; 0 is the parent itself
        self.life, self.alive, self.ready_to_serve = f"life-{number}-0", True, True
        self.state: State = "ready"
        self.epoch = self.ran = 0
        self.failure: NodeFailure | None = None
        self.failed_at = 0.0
        self.order = GroupOrder(0, "wait")
        self.relay = Relay(self.name, 1, WAIT)
        self.sent: Report | None = None
        self.inbox: list[Report | GroupOrder] = []
        self.busy_until = 0.0
        self.working = False
        self.received_bytes = self.sent_bytes = 0

    @property
    def name(self) -> str:
        return f"node-{self.number}"

    # --- this member ------------------------------------------------------------------------------------------------

    def report(self) -> Report:
        now = self.fleet.simulation.now
        failure = self.failure and self.failure._replace(age=now - self.failed_at)
        end = GroupEnd(0, "succeeded", "") if self.state == "done" else None
        seq, name = self.fleet.next(), self.name
        return Report(self.slot, self.life, seq, name, name, self.epoch, self.state, failure, end, ran=self.ran)

    def fail(self, why: str) -> None:
        """The command of this member fails."""
        self.failure, self.failed_at = NodeFailure("failure", why), self.fleet.simulation.now
        self.state = "stopping"
        self.changed()
        self.fleet.simulation.at(self.fleet.simulation.now + self.fleet.stopping, self.stopped, self.life)

    def stopped(self, life: str) -> None:
        if self.alive and life == self.life and self.state == "stopping":
            self.state = "ready"
            self.epoch = max(self.epoch, self.order.epoch)
            self.changed()

    def obey(self, order: GroupOrder) -> None:
        """What PID 1 does with an order."""
        simulation = self.fleet.simulation
        self.order = order
        if order.what == "run" and self.state == "ready" and self.epoch == order.epoch - 1:
            self.epoch = self.ran = order.epoch
            self.state, self.failure = "running", None
            self.fleet.note("run", order.epoch, self)
            self.changed()
        elif order.what == "stop" and self.state == "running":
            self.fleet.note("stop", order.epoch, self)
            self.state = "stopping"
            self.changed()
            simulation.at(simulation.now + self.fleet.stopping, self.stopped, self.life)
        elif order.what == "stop" and self.state == "ready" and self.epoch < order.epoch:
            self.epoch = order.epoch
            self.changed()
        elif order.what == "end":
            self.fleet.note("end", order.epoch, self)

    def changed(self) -> None:
        self.take_report(self.report()._replace(rank=0))
        self.pass_on()

    # --- its messenger ----------------------------------------------------------------------------------------------

    def receive(self, message: Report | GroupOrder, size: int) -> None:
        """A message arrives; all that wait are handled at once when the processor is free."""
        if not self.alive:
            return
        self.received_bytes += size
        self.inbox.append(message)
        if not self.working:
            self.working = True
            self.fleet.simulation.at(max(self.fleet.simulation.now, self.busy_until), self.work)

    def work(self) -> None:
        inbox, self.inbox = self.inbox, []
        cost = RECEIVE * self.slowness * len(inbox)
        self.busy_until = self.fleet.simulation.now + cost
        self.fleet.simulation.at(self.busy_until, self.handle, inbox, self.life)

    def handle(self, inbox: Iterable[Report | GroupOrder], life: str) -> None:
        self.working = False
        if not self.alive or life != self.life:
            return
        orders = [message for message in inbox if isinstance(message, GroupOrder)]
        for message in inbox:
            if isinstance(message, Report):
                self.take_report(message)
        if orders:
            self.pass_down(orders[-1])
        self.pass_on()
        if self.inbox and not self.working:
            self.working = True
            self.fleet.simulation.at(self.busy_until, self.work)

    def take_report(self, report: Report) -> None:
        now = self.fleet.simulation.now
        before = self.relay.members.get(report.rank)
        if before is not None and before.report.life == report.life and report.seq <= before.report.seq:
            return
        state = MemberState(report, first_failure(report, now, before))
        self.relay = self.relay._replace(members={**self.relay.members, report.rank: state})
        if self.parent is None:
            self.fleet.decide(Reported(now, report))

    def lose(self, slot: int, life: str, why: str) -> None:
        """The connection of a child stayed closed."""
        now = self.fleet.simulation.now
        before = self.relay.members.get(slot)
        if not self.alive or before is None or before.report.life != life or not self.fleet.is_lost(self, slot):
            return
        lost = MemberLost(now, slot, life, why, True, now - RECONNECT, now - RECONNECT)
        self.relay = self.relay._replace(members={**self.relay.members, slot: before._replace(gone=lost)})
        if self.parent is None:
            self.fleet.decide(lost)
        self.pass_on()

    def pass_on(self) -> None:
        """Send the merged report to the parent, if it says something new."""
        if self.parent is None or not self.alive or not self.ready_to_serve:
            return
        if self.children:
            found = merge(self.relay, self.fleet.simulation.now, self.template())
        else:
            found = self.report()
        if found is None or (self.sent is not None and _same(found, self.sent)):
            return
        self.sent = found
        self.send(self.parent, found)

    def template(self) -> Report:
        """A slot that is served by another node keeps its life: the parent knows slots, not machines."""
        return Report(self.slot, f"{SLOT}{self.slot}", self.fleet.next(), self.name, self.name, 0, "ready")

    def pass_down(self, order: GroupOrder) -> None:
        self.relay = self.relay._replace(order=order)
        for child in self.children:
            self.send(child, order)
        self.obey(order)

    def send(self, other: "Node", message: Report | GroupOrder) -> None:
        simulation = self.fleet.simulation
        size = self.fleet.size(message)
        self.busy_until = max(self.busy_until, simulation.now) + SEND * self.slowness
        self.sent_bytes += size
        simulation.deliver(self.number, other.number, self.busy_until, other.receive, message, size)


def _same(one: Report, other: Report) -> bool:
    """Whether two reports say the same, but for the number and the age."""

    def said(report: Report) -> Report:
        return report._replace(seq=0, failure=report.failure and report.failure._replace(age=0.0))

    return said(one) == said(other)


class Fleet:
    """`fan`: how many members report to one messenger at most; `size`: of the group.  `stopping`: s that a member needs
    to end its command."""

    def __init__(self, simulation: Simulation, size: int, fan: int, stopping: float = 0.0) -> None:
        self.simulation, self.stopping = simulation, stopping
        self._sequence = 0
        self._sizes: dict[object, int] = {}
        self.moments: dict[tuple[str, int], list[float]] = {}
        self.nodes = [Node(self, number) for number in range(size)]
        self.root = self.nodes[0]
        for number in range(1, size):
            parent, node = self.nodes[(number - 1) // fan], self.nodes[number]
            node.parent = parent
            parent.children.append(node)
            node.slot = len(parent.children)
        for node in self.nodes:
            node.relay = node.relay._replace(size=1 + len(node.children))
        self.coordinator = new_coordinator(0.0, Shape(1 + len(self.root.children)), WAIT, DRAIN)
        self.notes: list[str] = []

    @property
    def depth(self) -> int:
        node, levels = self.nodes[-1], 0
        while node.parent is not None:
            node, levels = node.parent, levels + 1
        return levels

    def begin(self) -> None:
        for node in self.nodes:
            self.simulation.at(0.0, node.changed)

    def next(self) -> int:
        self._sequence += 1
        return self._sequence

    def size(self, message: Report | GroupOrder) -> int:
        """Bytes of the message as it is sent, from the real encoding."""
        kind: object = message.state if isinstance(message, Report) else (message.what, message.why)
        key = (type(message), message.epoch, kind)
        if key not in self._sizes:
            self._sizes[key] = len(peers.dump(message)) + ENVELOPE
        return self._sizes[key]

    def note(self, what: str, epoch: int, node: Node) -> None:
        self.moments.setdefault((what, epoch), []).append(self.simulation.now)

    def decide(self, event: Event) -> None:
        self.coordinator, effects = coordinator.decide(self.coordinator, event)
        for effect in effects:
            if isinstance(effect, SendOrder):
                self.root.pass_down(effect.order)
        if self.coordinator.deadline is not None:
            self.simulation.at(self.coordinator.deadline, self._deadline, self.coordinator.deadline)

    def _deadline(self, planned: float) -> None:
        if self.coordinator.deadline == planned:
            self.decide(DeadlineReached(self.simulation.now))

    # --- faults -----------------------------------------------------------------------------------------------------

    def kill_messenger(self, node: Node) -> None:
        """The messenger dies alone; PID 1 starts it again, and it learns everything from its neighbours."""
        node.ready_to_serve = False
        node.relay = Relay(node.name, 1 + len(node.children), WAIT)
        node.inbox, node.sent = [], None
        self.simulation.at(self.simulation.now + RESTARTED, self._messenger_is_back, node)

    def _messenger_is_back(self, node: Node) -> None:
        node.ready_to_serve = True
        node.take_report(node.report()._replace(rank=0))
        for child in node.children:
            child.sent = None
            self.simulation.at(self.simulation.now, child.pass_on)
        if node.parent is not None:
            node.parent.send(node, node.parent.relay.order)

    def kill_container(self, node: Node) -> None:
        """The container of a member is gone.  If it is a relay, its first child serves its slot instead."""
        node.alive = False
        parent = node.parent
        assert parent is not None
        if not node.children:
            self.simulation.at(
                self.simulation.now + RECONNECT, parent.lose, node.slot, node.life, "its connection was closed"
            )
            return
        self.simulation.at(self.simulation.now + RECONNECT, self._take_over, node)

    def _take_over(self, lost: Node) -> None:
        deputy, parent = lost.children[0], lost.parent
        assert parent is not None
        now = self.simulation.now
        place = parent.children.index(lost)
        parent.children[place] = deputy
        # The deputy's own slot in the relay stays; slot 0, the relay itself, is lost.
        deputy_children = deputy.children
        deputy.children = [*deputy_children, *lost.children[1:], lost]
        deputy.parent, deputy.slot = parent, lost.slot
        members = dict(deputy.relay.members)
        for child in (*lost.children[1:], lost):
            child.slot, child.parent, child.sent = 1 + deputy.children.index(child), deputy, None
        gone = MemberLost(
            now, lost.slot, lost.life, "its connection was closed", True, now - RECONNECT, now - RECONNECT
        )
        lost_report = Report(lost.slot, lost.life, 0, lost.name, lost.name, deputy.epoch, "running", ran=lost.ran)
        members[lost.slot] = MemberState(lost_report, None, gone)
        deputy.relay = deputy.relay._replace(size=1 + len(deputy.children), members=members)
        deputy.sent = None
        for child in lost.children[1:]:
            self.simulation.at(now, child.pass_on)
        lost.children = []
        deputy.pass_on()

    def replace(self, node: Node) -> None:
        """A new container of the same member."""
        node.alive, node.state, node.epoch, node.ran = True, "ready", 0, 0
        node.failure, node.sent, node.inbox, node.working = None, None, [], False
        node.life = f"life-{node.number}-{self.next()}"
        node.relay = Relay(node.name, 1 + len(node.children), WAIT)
        node.changed()
        assert node.parent is not None
        node.parent.send(node, node.parent.relay.order)

    def is_lost(self, parent: Node, slot: int) -> bool:
        return not parent.children[slot - 1].alive
