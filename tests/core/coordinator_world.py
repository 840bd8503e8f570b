"""A group in a simulated world: members that behave as PID 1 does, a network that loses, repeats, reorders and delays,
machines that die or are cut off, a coordinator that forgets everything, and one that is replaced while it lives.  All
of it from one seed.

What holds at any moment is checked as it happens: `World` raises AssertionError.
"""

import heapq
import random
from collections.abc import Callable
from functools import partial
from typing import Final

from ftrun.core.group.coordinator import decide
from ftrun.core.group.membership import (
    Coordinator,
    Ended,
    GroupDeadlineReached,
    GroupEffects,
    GroupEvent,
    GroupShape,
    LifeEnded,
    RefuseMember,
    Reported,
    SendOrder,
    StarterDied,
    Steady,
    new_coordinator,
)
from ftrun.core.group.messages import EpochRanks as Numbers
from ftrun.core.group.messages import (
    GroupEnd,
    GroupOrder,
    Life,
    MemberReport,
    NodeFailure,
    Places,
    Pulse,
    Ranks,
    ReportedState,
    Starter,
)
from ftrun.core.group.places import members, place_of, rank_place
from ftrun.core.group.root_cause import MemberLost

DELAY: Final = 4.0  # s; the latest that a message comes: see `coordinator.LATE`
BEAT: Final = 1.0
CLOSED: Final = 1.0  # s until a closed connection counts
SILENCE: Final = 15.0  # s; --peer-timeout
PATIENT: Final = 25.0  # `coordinator.LATE`, SILENCE and more


class Body:
    """One life of a member, by the rules of PID 1."""

    def __init__(self, world: "World", rank: int, life: str, boot: str) -> None:
        self.world, self.rank, self.life, self.boot = world, rank, life, boot
        self.seq = self.epoch = self.over = self.ran = 0
        self.state: ReportedState = "ready"
        self.tree: int | None = None  # the epoch of the command that runs
        self.failure: NodeFailure | None = None
        self.since = world.now
        self.end: GroupEnd | None = None
        self.answered: float | None = None  # when the last report that rank 0 has answered was sent
        self.alive = True
        self.cut = False  # its link
        self.mute = self.deaf = False  # its link, one way
        self.moved = False  # another will come in its place
        self.ranks = 1 + rank % 3  # that it starts
        self.port = world.new_port()  # reserved for its next start
        self.numbers: Numbers | None = None  # of the epoch that runs
        self.places: Places = ()  # of its epoch
        self.checkpoint = 0
        self.starter: Starter | None = None  # of its epoch
        self.lives: tuple[int, tuple[Life, ...]] = (0, ())  # an epoch, and who runs it
        self.disclosed: set[tuple[Side, int]] = set()  # the connections over which it has said that it has stopped
        self.side: Side = Side(self) if rank == 0 else world.side  # of the member 0 that it is connected with
        self.provable = world.place_dice.random() < 0.5  # its death, for a new member 0

    def report(self) -> MemberReport:
        failure = self.failure and self.failure._replace(age=self.world.now - self.since)
        return MemberReport(
            self.rank, self.life, self.seq, f"node-{self.boot}", self.boot, self.epoch, self.state, failure, self.end,
            progressed=self.epoch % 3 == 1, ran=self.ran, ranks=Ranks(self.ranks, f"host-{self.rank}", self.port),
            places=self.places, address=f"host-{self.rank}", checkpoint=self.checkpoint or None, starter=self.starter,
            lives=self.known_lives(),
        )  # fmt: skip

    def known_lives(self) -> tuple[Life, ...]:
        if self.disclosed - {(self.side, self.side.session)} or not self.lives[0] == self.epoch == self.ran:
            return ()
        return self.lives[1]

    def now_is(self, state: ReportedState) -> None:
        self.state, self.seq = state, self.seq + 1
        self.world.send(self)

    def killed_soon(self) -> None:
        """SIGTERM, and what follows."""
        self.now_is("stopping")
        self.world.later(self.world.dice.random() * self.world.drain, self.dead)

    def dead(self) -> None:
        if not self.alive or self.state == "left":
            return
        self.tree = None
        if self.end is not None and (self.end.verdict != "own" or self.ends_alone):
            self.now_is("left")
        elif self.state == "leaving":
            self.end = GroupEnd(143, "stopped", "asked to", asked=True)
            self.now_is("left")
        elif self.state in ("stopping", "running"):
            self.epoch = max(self.epoch, self.over)
            self.now_is("ready")
            if self.world.rank_dice.random() < 0.3:  # a device fails while it is ready
                self.world.later(self.world.rank_dice.random() * 4, self.loses_a_device)

    @property
    def leads(self) -> bool:
        """Whether its messenger has the coordinator."""
        return self.side.zero is self

    @property
    def ends_alone(self) -> bool:
        """Its verdict is about itself, and the group goes on."""
        return self.end is not None and self.end.code == 197 and self.world.shape.goes_on

    def loses_a_device(self) -> None:
        if self.alive and self.state == "ready" and self.ranks > 1:
            self.now_is("stopping")
            self.world.later(self.world.rank_dice.random() * 4, self.healed)

    def healed(self) -> None:
        if self.alive and self.state == "stopping" and self.tree is None:
            self.ranks -= 1
            self.now_is("ready")

    def ordered(self, order: GroupOrder, asked: float) -> None:
        """`asked`: when the report was sent that this answers."""
        if not self.alive or self.state == "left":
            return
        self.answered = asked if self.answered is None else max(self.answered, asked)
        if order.epoch == self.epoch and order.places:
            self.places = order.places
        if order.lives and self.state == "running" and self.epoch == order.epoch:
            self.lives, self.disclosed = (order.epoch, order.lives), set()
        if order.starter is not None and self.starter is not None and order.starter.life == self.starter.life:
            self.starter = order.starter
        if self.ends_alone:
            return
        if order.what == "end" and order.end is not None:
            if self.end is None or self.end.verdict == "own":
                self.world.verdicts.append(order.end)
            self.end = order.end
            if self.tree is None:
                self.now_is("left")
            elif self.state not in ("stopping", "leaving"):
                self.killed_soon()
        elif order.what == "stop" and order.epoch >= self.epoch:
            self.stopped(order)
        elif order.what == "run" and order.epoch > max(self.epoch, self.over):
            if self.state == "ready" and place_of(order.places, self.rank) is None:
                self.epoch, self.failure, self.places = order.epoch, None, order.places
                self.starter = order.starter
                self.now_is("ready")
            elif self.state == "ready":
                self.start(order)
            elif self.state == "running":
                self.over = max(self.over, order.epoch - 1)
                self.killed_soon()

    def stopped(self, order: GroupOrder) -> None:
        self.over = max(self.over, order.epoch)
        if self.state == "running":
            self.killed_soon()
        elif self.state == "done" or (self.state == "ending" and order.cause is not None):
            self.end, self.epoch = None, self.over
            self.now_is("ready")
        elif self.state == "ready" and self.epoch < self.over:
            self.epoch, self.failure, self.places = self.over, None, order.places
            self.starter = order.starter
            self.now_is("ready")

    def start(self, order: GroupOrder) -> None:
        epoch, mine = order.epoch, place_of(order.places, self.rank)
        where = rank_place(order.world, mine)
        assert epoch > self.epoch
        assert order.world is not None
        assert where is not None
        if where.number != self.ranks:
            self.epoch, self.failure, self.places, self.starter = epoch, None, order.places, order.starter
            self.now_is("ready")
            return
        self.world.numbered(epoch, order)
        self.numbers, self.places, self.checkpoint = order.world, order.places, 0
        if mine == 0:
            assert order.world.port == self.port, f"epoch {epoch} starts with a port that is not reserved"
            assert order.world.port not in self.world.ports_used, "a port for two starts"
            self.world.ports_used.add(order.world.port)
            self.port = self.world.new_port()
        for other in self.world.bodies:
            if other.tree is not None and not self.world.is_frozen(other):
                assert other.tree == epoch, f"epoch {epoch} starts at {self.life}, {other.tree} runs at {other.life}"
                assert other.starter == order.starter, f"two epochs {epoch}: at {self.life}, and at {other.life}"
                assert other.rank != self.rank, f"rank {self.rank} starts at {self.life}, and runs at {other.life}"
        self.epoch = self.tree = self.ran = epoch
        self.starter = order.starter
        self.failure = self.end = None
        self.world.started = max(self.world.started, epoch)
        self.now_is("running")

    def beat(self) -> None:
        if not self.alive:
            return
        now, world = self.world.now, self.world
        if self.leads:
            self.answered = now
        lease = self.answered is not None and now >= self.answered + SILENCE + world.wait
        if lease and self.state == "running":  # it has worked on until now: its ranks moved
            self.end = GroupEnd(195, "hang-limit", "no reply of rank 0", cut=True)
            self.killed_soon()
        elif lease and self.state in ("ready", "done", "ending"):
            self.end = GroupEnd(195, "hang-limit", "no reply of rank 0", cut=True)
            self.now_is("left")
        world.send(self)
        world.later(BEAT, self.beat)

    def left_out(self) -> None:
        """It was refused, and the group has ended without it."""
        if self.alive and self.state == "ready":
            self.end = GroupEnd(195, "hang-limit", "refused, and the group has ended", cut=True)
            self.now_is("left")

    def mended(self) -> None:
        self.cut, self.mute, self.deaf = self.moved, False, False

    # What happens to it

    def fall(self) -> None:
        if self.state != "running":
            return
        self.tree, self.since = None, self.world.now
        self.now_is("fallen")
        ends = self.world.dice.choice(
            [None, None, None, GroupEnd(93, "own", "failed again"), GroupEnd(197, "own", "a device")]
        )

        def settled() -> None:
            if not self.alive or self.state != "fallen":
                return
            self.failure = NodeFailure("failure", "exit code 1", symptom=self.world.rank_dice.random() < 0.5)
            if ends is None:
                self.now_is("stopping")
                self.world.later(self.world.dice.random(), self.dead)
            else:
                self.end = ends
                self.now_is("ending")
                if self.ends_alone:
                    self.world.later(self.world.dice.random() * 5, self.replaced)

        self.world.later(self.world.dice.random() * 2, settled)

    def replaced(self) -> None:
        """It ends with a verdict about its node; another container comes in its place, or none."""
        if self.alive and self.state != "left" and self.world.unknown_without(self, "d"):
            self.world.later(5.0, self.replaced)
        elif self.alive and self.state != "left":
            self.dead()
            if self.rank == 0:
                self.alive = False
                self.side.end()
            if self.rank == 0 or self.world.dice.random() < 0.5:
                self.world.later(self.world.dice.random() * 30, lambda: self.world.born(self.rank))

    def save(self) -> None:
        if self.state == "running":
            self.checkpoint += 1
            self.world.send(self)

    def hang(self) -> None:
        if self.state == "running":
            self.failure, self.since = NodeFailure("hang", "no step for 60s", 0.0, self.rank, 7), self.world.now
            self.killed_soon()

    def finish(self) -> None:
        if self.state == "running":
            self.tree = None
            self.now_is("done")

    def leave(self) -> None:
        if self.state in ("ready", "running"):
            self.now_is("leaving")
            self.world.later(self.world.dice.random() * 8, self.dead)

    def die(self) -> None:
        """This ftrun and its command, at once; its connection closes."""
        self.alive, self.tree = False, None
        self.world.closed(self)


class Side:
    """The messenger of a member 0, with its coordinator, and the members that are connected with it."""

    def __init__(self, zero: Body | None) -> None:
        self.zero = zero
        self.coordinator: Coordinator | None = None
        self.present: dict[int, tuple[str, float]] = {}
        self.session = 0
        self.woken: float | None = None
        if zero is not None:
            self.begin()

    def begin(self) -> None:
        zero = self.zero
        assert zero is not None
        world = zero.world
        own = Starter(zero.life, f"node-{zero.boot}", zero.boot, rank=zero.rank)
        self.coordinator = new_coordinator(
            *(world.now, world.shape, world.wait, world.drain),
            silence=SILENCE,
            own=own,
            folder_unproved=world.folder_unproved,
        )
        world.wake(self)

    @property
    def zero_life(self) -> str:
        return self.zero.life if self.zero is not None else ""

    @property
    def lives(self) -> tuple[Life, ...]:
        """Who runs the epoch, as far as this side knows."""
        group = self.coordinator
        if group is None or not isinstance(group.phase, Steady):
            return ()
        found = (group.members[rank].report for rank in self.present if rank in group.members)
        return tuple(
            Life(r.rank, r.life, r.boot, "", 0) for r in found if r.rank != group.own_rank and r.ran == group.epoch
        )

    def end(self) -> None:
        self.session += 1
        self.coordinator, self.present, self.woken = None, {}, None


class World:
    folder_unproved = False  # what a new coordinator knows of the folder

    """`heal()` ends all that is bad about the network; nothing else happens from then on either."""

    def __init__(
        self,
        seed: int,
        size: int,
        wait: float = 60.0,
        drain: float = 5.0,
        bad: float = 0.3,
        shape: GroupShape | None = None,
    ) -> None:
        self.shape = shape or GroupShape(size)
        self.dice, self.rank_dice, self.place_dice = random.Random(seed), random.Random(seed), random.Random(seed)
        self.now = 0.0
        self.size, self.wait, self.drain, self.bad = size, wait, drain, bad
        self.queue: list[tuple[float, int, Callable[[], object]]] = []
        self.number = self.sessions = self.replaced = self.started = self.lives = self.ports = 0
        self.verdicts: list[GroupEnd] = []
        self.ordered: list[GroupOrder] = []
        self.bodies: list[Body] = []
        self.side = Side(None)  # of the newest member 0, to which the endpoint of the group leads
        self.asked: dict[str, float] = {}  # by life: when its last report that arrived was sent
        self.boots = [f"boot{rank}" for rank in range(size)]
        self.ports_used: set[int] = set()
        for rank in range(size):
            self.later(self.dice.random() * 5, lambda rank=rank: self.born(rank))  # type: ignore[misc]
        self.later(BEAT, self.silences)

    def later(self, after: float, what: Callable[[], object]) -> None:
        self.number += 1
        heapq.heappush(self.queue, (self.now + after, self.number, what))

    def run(self, until: float) -> None:
        while self.queue and self.queue[0][0] <= until:
            self.now, _, what = heapq.heappop(self.queue)
            what()
        self.now = until

    def current(self) -> list[Body]:
        """The newest life in each place."""
        newest = {body.rank: body for body in self.bodies}
        return [newest[rank] for rank in sorted(newest)]

    def new_port(self) -> int:
        self.ports += 1
        return self.ports

    def numbered(self, epoch: int, order: GroupOrder) -> None:
        """A member starts its ranks: all members must number them in the same way."""
        world, placed = order.world, members(order.places)
        assert world is not None
        running = [body.numbers for body in self.bodies if body.tree is not None and not self.is_frozen(body)]
        assert running == [world] * len(running), f"two numberings of the ranks in epoch {epoch}"
        assert world.address == order.master == f"host-{placed[0]}"
        assert sum(count for count, _ in world.counts) == len(placed) == len(set(placed))
        assert self.shape.fewest <= len(placed) <= self.shape.most

    def born(self, rank: int) -> Body:
        self.lives += 1
        body = Body(self, rank, f"{rank}.{self.lives}", self.boots[rank])
        self.bodies.append(body)
        if rank == 0:
            self.turn_to(body.side)
        body.beat()
        return body

    # The network

    def _delays(self, body: Body, lost: bool) -> list[float]:
        """When a message and its copies arrive; none: it is lost."""
        if body.leads:
            return [0.0]
        if body.cut or lost:
            return []
        if self.dice.random() >= self.bad:
            return [self.dice.random() * 0.01]
        return [self.dice.random() * DELAY for _ in range(self.dice.choice([0, 1, 1, 2]))]

    def turn_to(self, side: Side) -> None:
        """The endpoint of the group leads to another member 0.  If the one before lives, members may stay with it."""
        before, self.side = self.side, side
        for body in self.bodies:
            if body.rank and body.side is before:
                stays = self.dice.choice([0.0, 0.0, 0.0, 1.0, 20.0, 40.0]) if before.coordinator is not None else 0.0
                self.later(stays, lambda body=body: self.connect(body))  # type: ignore[misc]

    def connect(self, body: Body) -> None:
        body.side = self.side

    def send(self, body: Body) -> None:
        """Its whole report.  What was sent to a coordinator that is no more does not reach the next one."""
        side, report, asked = body.side, body.report(), self.now
        session = side.session
        if report.state in ("ready", "left"):
            body.disclosed.add((side, session))
        for delay in self._delays(body, body.mute):
            self.later(delay, lambda: self.arrived(body, side, report, session, asked))

    def arrived(self, body: Body, side: Side, report: MemberReport, session: int, asked: float) -> None:
        if side.coordinator is None or session != side.session or (not body.alive and body.leads):
            return
        pulses = {r: Pulse(r, 7, 10.0 + r) for r in range(self.size)} if report.failure else {}
        refused = self.tell(side, Reported(self.now, report, pulses))
        if not any(isinstance(e, RefuseMember) for e in refused):
            side.present[body.rank] = (body.life, self.now)
            self.asked[body.life] = asked
            self.answer(side, body)
        elif isinstance(side.coordinator.phase, Ended) and body.side is side:
            body.left_out()

    def answer(self, side: Side, body: Body) -> None:
        if side.coordinator is None:
            return
        order = side.coordinator.own_order if side.zero is body else side.coordinator.order
        asked = self.asked.get(body.life, 0.0)
        sent = self.now if side.coordinator.lease_state == "held" else None
        if side.zero is not body and order is not None and order.what == "run":
            order = order._replace(lives=side.lives)

        def arrived() -> None:
            if body.side is side and order is not None:
                if sent is not None:
                    self.answered(body, sent)
                body.ordered(order, asked)

        for delay in self._delays(body, body.deaf):
            self.later(delay, arrived)

    def is_frozen(self, body: Body) -> bool:
        """Whether it is suspended, so that it cannot stop."""
        return False

    def answered(self, body: Body, sent: float) -> None:
        """An answer that its coordinator sent then, while it had the lease, has arrived."""

    def closed(self, body: Body) -> None:
        side = body.side
        session = side.session

        def gone() -> None:
            if session == side.session and side.present.get(body.rank, ("",))[0] == body.life:
                del side.present[body.rank]
                certain = not body.alive and self.place_dice.random() < 0.5
                lost = MemberLost(self.now, body.rank, body.life, "its connection closed", True, self.now - CLOSED)
                self.tell(side, lost._replace(closed_at=None, certain=certain))

        self.later(CLOSED, gone)

    def silences(self) -> None:
        """Where rank 0's own command moves it is patient, for as long as a member may work on."""
        for side in [body.side for body in self.bodies if body.leads and body.side.coordinator is not None]:
            for rank, (life, at) in list(side.present.items()):
                patient = (rank + side.session) % 2 and self.now < at + SILENCE + self.wait
                if life != side.zero_life and self.now >= at + SILENCE and not patient:
                    del side.present[rank]
                    self.tell(side, MemberLost(self.now, rank, life, "silent for 15s", False, at))
            for life in list(side.coordinator.starters) if side.coordinator is not None else ():
                if any(b.life == life and b.provable and (not b.alive or b.state == "left") for b in self.bodies):
                    self.tell(side, StarterDied(self.now, life))
            for one in side.coordinator.lives.values() if side.coordinator is not None else ():
                if any(b.life == one.life and b.provable and (not b.alive or b.state == "left") for b in self.bodies):
                    self.tell(side, LifeEnded(self.now, one.rank, one.life))
        self.later(BEAT, self.silences)

    # The coordinator

    @property
    def coordinator(self) -> Coordinator | None:
        return self.side.coordinator

    def tell(self, side: Side, event: GroupEvent) -> GroupEffects:
        if side.coordinator is None:
            return ()
        before = side.coordinator
        side.coordinator, effects = decide(before, event)
        again, more = decide(side.coordinator, event)
        assert [e for e in more if not isinstance(e, RefuseMember)] == [], f"two effects of one event: {event} {more}"
        if not isinstance(event, GroupDeadlineReached):
            assert again == side.coordinator, f"a repeated event changes something: {event}"
        assert side.coordinator.epoch >= before.epoch, "an epoch fell"
        assert not isinstance(before.phase, Ended) or side.coordinator.order == before.order, "a verdict changed"
        if isinstance(event, GroupDeadlineReached):
            assert side.coordinator.deadline is None or side.coordinator.deadline > event.now, (
                "a deadline that stays due"
            )
        assert side.zero is not None
        own = side.coordinator.own_order
        if own is not None and own != before.own_order:
            self.later(0.0, partial(side.zero.ordered, own, self.now))
        for effect in effects:
            if isinstance(effect, SendOrder):
                self.ordered.append(effect.order)
                for body in self.current():
                    if body is not side.zero and side.present.get(body.rank, ("",))[0] == body.life:
                        self.answer(side, body)
        self.wake(side)
        return effects

    def wake(self, side: Side) -> None:
        due = side.coordinator and side.coordinator.deadline
        if due is not None and due != side.woken:
            side.woken, session = due, side.session

            def tick() -> None:
                if session == side.session:
                    side.woken = None
                    self.tell(side, GroupDeadlineReached(self.now))

            self.later(max(due - self.now, 0.0), tick)

    def forget(self) -> None:
        """The messenger of member 0 is killed, and started again."""
        side = self.side
        side.end()
        session, self.sessions = side.session, self.sessions + 1

        def again() -> None:
            if session == side.session and side.zero is not None and side.zero.alive:
                side.begin()

        self.later(self.dice.random() * 2, again)

    # What happens

    def strike(self, kinds: str) -> None:
        """`f`all, `h`ang, `d`ie and come back, `m`ove to another machine, `c`ut for a while, `x`: forget,
        `z`: rank 0's ftrun dies, `l`eave, `e`nd well, `n`ever comes back, `b`: comes and goes, `p`artition, `s`ave,
        `r`eplace rank 0, which lives and loses its members, one after the other."""
        body, kind = self.dice.choice(self.current() or [None]), self.dice.choice(kinds)
        if body is None or not body.alive or body.moved or (kind in "zdmr" and self.unknown_without(body, kind)):
            return
        if kind == "x":
            self.forget()
        elif kind in "fhle":
            {"f": body.fall, "h": body.hang, "l": body.leave, "e": body.finish}[kind]()
        elif kind == "s":
            for one in self.current():
                one.save()
        elif kind == "p":
            lasting = self.dice.choice([3.0, 20.0, 100.0])
            for one in self.current():
                if one.rank and self.dice.random() < 0.5:
                    one.cut = True
                    self.later(lasting, one.mended)
        elif kind in "nb" and body.rank and body.state != "left" and not self.unknown_without(body, "d"):
            body.die()
            rank = body.rank
            for again in range(self.dice.choice([2, 3]) if kind == "b" else 0):
                self.later(3.0 + 4 * again + self.dice.random(), lambda: self.flap(rank))
        elif kind == "z" and body.rank == 0 and body.state != "left":
            body.die()
            body.side.end()
            self.later(self.dice.random() * 5, lambda: self.born(0))
        elif kind == "r" and body.rank == 0 and body.state != "left":
            body.moved = True
            self.replaced += 1
            self.boots[0] = f"boot{self.lives}x"
            self.later(self.dice.random() * 30, lambda: self.born(0))
        elif kind in "dmc" and body.rank != 0 and body.state != "left":
            self._lost(body, kind)

    def unknown_without(self, body: Body, kind: str) -> bool:
        """Whether a member keeps working unseen in an epoch that no remaining member knows: see ADR 10."""
        zeros = (other for other in self.bodies if other.moved and not other.rank)
        unseen = kind in "mr" or any(other.moved and other.tree is not None for other in self.bodies)
        unseen = unseen or any(other.alive and other.state != "left" for other in zeros)
        left = (other for other in self.current() if other is not body and other.alive and other.state != "left")
        left = (other for other in left if not other.rank or other.side.zero is None or not other.side.zero.moved)
        return unseen and not any(other.epoch >= self.started and not other.moved for other in left)

    def flap(self, rank: int) -> None:
        newest = [body for body in self.bodies if body.rank == rank][-1]
        if newest.alive and newest.state != "left" and not self.unknown_without(newest, "d"):
            newest.die()
        elif not newest.alive:
            self.born(rank)

    def _lost(self, body: Body, kind: str) -> None:
        rank = body.rank
        if kind == "d":
            body.die()
            self.later(self.dice.random() * 10, lambda: self.born(rank))
        elif kind == "m":  # its machine is cut off for ever, and may still work
            body.cut = body.moved = True
            if self.dice.random() < 0.5:
                self.closed(body)
            self.boots[rank] = f"boot{self.lives}x"
            self.later(self.dice.random() * 30, lambda: self.born(rank))
        else:
            way = self.dice.choice([(True, False, False), (False, True, False), (False, False, True)])
            body.cut, body.mute, body.deaf = way
            self.later(self.dice.choice([3.0, 12.0, 20.0, 70.0, 100.0]), body.mended)

    def suffer(self, kinds: str, at: float, settles: float) -> None:
        """Some strikes from `at` on, then nothing bad any more; after `settles` seconds all work, or all have ended."""
        dice = self.dice
        for _ in range(dice.randrange(1, 12)):
            at += dice.choice([0.0, 0.1, 1.0, 5.0, 20.0, 60.0])
            self.run(at)
            self.strike(kinds)
        self.run(at + dice.choice([0.0, 1.0, 30.0]))
        self.heal()
        self.run(self.now + settles * (2 * self.wait + self.drain + PATIENT + SILENCE))
        wrong = self.settled()
        assert wrong is None, wrong

    def heal(self) -> None:
        self.bad = 0.0
        for body in self.current():
            body.mended()
            body.side = self.side if body.rank else body.side

    def settled(self) -> str | None:
        """None: all are at work in one epoch, or all have ended; else what is wrong."""
        alive = [body for body in self.bodies if body.alive and not (body.moved and body.tree is None)]
        working = [body for body in alive if body.state in ("running", "done")]
        busy = {body.rank for body in working}  # a second container of such a member is refused
        newest = {body.rank: body for body in sorted(alive, key=lambda b: b.epoch) if body.rank not in busy}
        bodies = [*working, *newest.values()]
        if {body.state for body in bodies} <= {"left"}:
            return None
        if (
            self.shape.is_fixed
            and len(working) == len(bodies) == len(self.current())
            and len({b.epoch for b in working}) == 1
        ):
            return None
        others = {body.state for body in bodies if body not in working}
        if not self.shape.is_fixed and working and others <= {"ready", "left"}:
            epochs = {body.epoch for body in bodies if body.state != "left"}
            placed = {*members(working[0].places)}
            if len(epochs) == 1 and placed == {body.rank for body in working}:
                return None
        bodies = self.current()
        states = ", ".join(f"{b.life} {b.state} {b.epoch}{'' if b.alive else ' dead'}" for b in bodies)
        known = self.coordinator
        return f"{states}; {known and (known.phase, known.order, known.kinds, known.fences)}"
