"""A group in a simulated world: members that behave as PID 1 does, a network that loses, repeats, reorders and delays,
machines that die or are cut off, and a coordinator that forgets everything.  All of it from one seed.

What holds at any moment is checked as it happens: `World` raises AssertionError.
"""

import heapq
import random
from collections.abc import Callable
from typing import Final

from ftrun.core.group.coordinator import decide
from ftrun.core.group.membership import (
    Coordinator,
    DeadlineReached,
    Effects,
    Ended,
    Event,
    RefuseMember,
    Reported,
    SendOrder,
    Shape,
    new_coordinator,
)
from ftrun.core.group.messages import GroupEnd, GroupOrder, NodeFailure, Places, Pulse, Ranks, Report, State
from ftrun.core.group.messages import World as Numbers
from ftrun.core.group.places import members, place_of
from ftrun.core.group.root_cause import MemberLost
from ftrun.core.group.world import place

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
        self.state: State = "ready"
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

    def report(self) -> Report:
        failure = self.failure and self.failure._replace(age=self.world.now - self.since)
        return Report(self.rank, self.life, self.seq, f"node-{self.boot}", self.boot, self.epoch, self.state, failure,
                      self.end, progressed=self.epoch % 3 == 1, ran=self.ran,
                      ranks=Ranks(self.ranks, f"host-{self.rank}", self.port), places=self.places,
                      address=f"host-{self.rank}", checkpoint=self.checkpoint or None)  # fmt: skip

    def now_is(self, state: State) -> None:
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
            self.now_is("ready")

    def start(self, order: GroupOrder) -> None:
        epoch, mine = order.epoch, place_of(order.places, self.rank)
        where = place(order.world, mine)
        assert epoch > self.epoch
        assert order.world is not None
        assert where is not None
        if where.number != self.ranks:
            self.epoch, self.failure, self.places = epoch, None, order.places
            self.now_is("ready")
            return
        self.world.numbered(epoch, order)
        self.numbers, self.places, self.checkpoint = order.world, order.places, 0
        if mine == 0:
            assert order.world.port == self.port, f"epoch {epoch} starts with a port that is not reserved"
            self.port = self.world.new_port()
        for other in self.world.bodies:
            if other.tree is not None:
                assert other.tree == epoch, f"epoch {epoch} starts at {self.life}, {other.tree} runs at {other.life}"
                assert other.rank != self.rank, f"rank {self.rank} starts at {self.life}, and runs at {other.life}"
        self.epoch = self.tree = self.ran = epoch
        self.failure = self.end = None
        self.world.started = max(self.world.started, epoch)
        self.now_is("running")

    def beat(self) -> None:
        if not self.alive:
            return
        now, world = self.world.now, self.world
        if self.rank == 0:
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
        if self.alive and self.state != "left":
            self.dead()
            if self.rank == 0:
                self.alive = False
                self.world.forget()
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


class World:
    """`heal()` ends all that is bad about the network; nothing else happens from then on either."""

    def __init__(
        self,
        seed: int,
        size: int,
        wait: float = 60.0,
        drain: float = 5.0,
        bad: float = 0.3,
        shape: Shape | None = None,
    ) -> None:
        self.shape = shape or Shape(size)
        self.dice, self.rank_dice, self.place_dice = random.Random(seed), random.Random(seed), random.Random(seed)
        self.now = 0.0
        self.size, self.wait, self.drain, self.bad = size, wait, drain, bad
        self.queue: list[tuple[float, int, Callable[[], object]]] = []
        self.number = self.session = self.started = self.lives = self.ports = 0
        self.verdicts: list[GroupEnd] = []
        self.ordered: list[GroupOrder] = []
        self.bodies: list[Body] = []
        self.present: dict[int, tuple[str, float]] = {}
        self.asked: dict[str, float] = {}  # by life: when its last report that arrived was sent
        self.boots = [f"boot{rank}" for rank in range(size)]
        self.coordinator: Coordinator | None = new_coordinator(0.0, self.shape, wait, drain, silence=SILENCE)
        self.woken: float | None = None
        self.worlds: dict[int, tuple[int, Numbers]] = {}  # by port
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
        """A member starts its ranks: all members must number them in the same way, on a port of this epoch alone."""
        world, placed = order.world, members(order.places)
        assert world is not None
        running = [body.numbers for body in self.bodies if body.tree is not None]
        assert running == [world] * len(running), f"two numberings of the ranks in epoch {epoch}"
        assert self.worlds.setdefault(world.port, (epoch, world)) == (epoch, world), "a port for two starts"
        assert world.address == order.master == f"host-{placed[0]}"
        assert sum(count for count, _ in world.counts) == len(placed) == len(set(placed))
        assert self.shape.fewest <= len(placed) <= self.shape.most

    def born(self, rank: int) -> Body:
        self.lives += 1
        body = Body(self, rank, f"{rank}.{self.lives}", self.boots[rank])
        self.bodies.append(body)
        body.beat()
        return body

    # The network

    def _delays(self, body: Body, lost: bool) -> list[float]:
        """When a message and its copies arrive; none: it is lost."""
        if body.rank == 0:
            return [0.0]
        if body.cut or lost:
            return []
        if self.dice.random() >= self.bad:
            return [self.dice.random() * 0.01]
        return [self.dice.random() * DELAY for _ in range(self.dice.choice([0, 1, 1, 2]))]

    def send(self, body: Body) -> None:
        """Its whole report.  What was sent to a coordinator that is no more does not reach the next one."""
        report, session, asked = body.report(), self.session, self.now
        for delay in self._delays(body, body.mute):
            self.later(delay, lambda: self.arrived(body, report, session, asked))

    def arrived(self, body: Body, report: Report, session: int, asked: float) -> None:
        if self.coordinator is None or session != self.session or (not body.alive and body.rank == 0):
            return
        pulses = {r: Pulse(r, 7, 10.0 + r) for r in range(self.size)} if report.failure else {}
        refused = self.tell(Reported(self.now, report, pulses))
        if not any(isinstance(e, RefuseMember) for e in refused):
            self.present[body.rank] = (body.life, self.now)
            self.asked[body.life] = asked
            self.answer(body)

    def answer(self, body: Body) -> None:
        if self.coordinator is not None and self.coordinator.order.what:
            order, asked = self.coordinator.order, self.asked.get(body.life, 0.0)
            for delay in self._delays(body, body.deaf):
                self.later(delay, lambda: body.ordered(order, asked))

    def closed(self, body: Body) -> None:
        session = self.session

        def gone() -> None:
            if session == self.session and self.present.get(body.rank, ("",))[0] == body.life:
                del self.present[body.rank]
                certain = not body.alive and self.place_dice.random() < 0.5
                lost = MemberLost(self.now, body.rank, body.life, "its connection closed", True, self.now - CLOSED)
                self.tell(lost._replace(closed_at=None, certain=certain))

        self.later(CLOSED, gone)

    def silences(self) -> None:
        """Where rank 0's own command moves it is patient, for as long as a member may work on."""
        for rank, (life, at) in list(self.present.items()):
            patient = (rank + self.session) % 2 and self.now < at + SILENCE + self.wait
            if self.now >= at + SILENCE and not patient:
                del self.present[rank]
                self.tell(MemberLost(self.now, rank, life, "silent for 15s", False, at))
        self.later(BEAT, self.silences)

    # The coordinator

    def tell(self, event: Event) -> Effects:
        if self.coordinator is None:
            return ()
        before = self.coordinator
        self.coordinator, effects = decide(before, event)
        again, more = decide(self.coordinator, event)
        assert [e for e in more if not isinstance(e, RefuseMember)] == [], f"two effects of one event: {event} {more}"
        if not isinstance(event, DeadlineReached):
            assert again == self.coordinator, f"a repeated event changes something: {event}"
        assert self.coordinator.epoch >= before.epoch, "an epoch fell"
        assert not isinstance(before.phase, Ended) or self.coordinator.order == before.order, "a verdict changed"
        if isinstance(event, DeadlineReached):
            assert self.coordinator.deadline is None or self.coordinator.deadline > event.now, (
                "a deadline that stays due"
            )
        for effect in effects:
            if isinstance(effect, SendOrder):
                self.ordered.append(effect.order)
                for body in sorted(
                    self.current(), key=lambda b: b.rank
                ):  # rank 0's own first: it outlives its messenger
                    if body.rank == 0:
                        body.ordered(effect.order, self.now)
                    elif self.present.get(body.rank, ("",))[0] == body.life:
                        self.answer(body)
        self.wake()
        return effects

    def wake(self) -> None:
        due = self.coordinator and self.coordinator.deadline
        if due is not None and due != self.woken:
            self.woken, session = due, self.session

            def tick() -> None:
                if session == self.session:
                    self.woken = None
                    self.tell(DeadlineReached(self.now))

            self.later(max(due - self.now, 0.0), tick)

    def forget(self) -> None:
        """Its messenger is killed, and started again."""
        self.session += 1
        self.coordinator, self.present, self.woken = None, {}, None
        session = self.session

        def again() -> None:
            if session == self.session:
                self.coordinator = new_coordinator(self.now, self.shape, self.wait, self.drain, silence=SILENCE)
                self.wake()

        self.later(self.dice.random() * 2, again)

    # What happens

    def strike(self, kinds: str) -> None:
        """`f`all, `h`ang, `d`ie and come back, `m`ove to another machine, `c`ut for a while, `x`: forget,
        `z`: rank 0's ftrun dies, `l`eave, `e`nd well, `n`ever comes back, `b`: comes and goes, `p`artition, `s`ave."""
        body, kind = self.dice.choice(self.current() or [None]), self.dice.choice(kinds)
        if body is None or not body.alive or body.moved or (kind in "zdm" and self.unknown_without(body, kind)):
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
            self.forget()
            self.later(self.dice.random() * 5, lambda: self.born(0))
        elif kind in "dmc" and body.rank != 0 and body.state != "left":
            self._lost(body, kind)

    def unknown_without(self, body: Body, kind: str) -> bool:
        """Whether a member keeps working unseen in an epoch that no remaining member knows: see ADR 10."""
        unseen = kind == "m" or any(other.moved and other.tree is not None for other in self.bodies)
        left = (other for other in self.current() if other is not body and other.alive and other.state != "left")
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

    def heal(self) -> None:
        self.bad = 0.0
        for body in self.current():
            body.mended()

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
