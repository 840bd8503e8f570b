"""A group whose ranks recover, simulated: the real decisions of PID 1 on each member, and the real coordinator.

Ranks die, hang and ask for retries; a network loses, doubles, delays and reorders; containers are lost and come back;
members freeze, and messengers forget.  All of it from one seed.
What holds at any moment is checked as it happens: `World` raises AssertionError.
"""

import heapq
import random
from collections.abc import Callable, Collection
from typing import Final

from ftrun.core.group.coordinator import decide as lead
from ftrun.core.group.membership import (
    Coordinator,
    Ended,
    GroupDeadlineReached,
    GroupEvent,
    GroupShape,
    RefuseMember,
    Reported,
    SendOrder,
    new_coordinator,
)
from ftrun.core.group.messages import GroupOrder, MemberReport
from ftrun.core.group.root_cause import MemberLost
from ftrun.core.machine import effects as do
from ftrun.core.machine import events as ev
from ftrun.core.machine.group_member import GroupMember, newest_order, report
from ftrun.core.machine.job import decide
from ftrun.core.machine.states import Done, Job, Launching, Running, Starting, Suspect, Watched
from ftrun.core.machine.values import LocalRank, Rank
from ftrun.core.ranks.table import AskedRetry, HeldSnapshot, LeftRound, SaidHello
from ftrun.core.rules.policy import Membership, Policy

WAIT: Final = 60.0  # s; --wait-peer
SILENCE: Final = 15.0  # s; --peer-timeout
RECOVER: Final = 10.0  # s; --recover-timeout
LOST: Final = 2.0  # s until a closed connection counts
BEAT: Final = 1.0
DELAY: Final = 1.5  # s; the most that a message takes
Key = tuple[int, int, int]  # epoch, round, port


class Process:
    """A process of a rank.  `works`: the round that it is in."""

    def __init__(self, local: int, pid: int) -> None:
        self.local, self.pid, self.alive = local, pid, True
        self.works: Key | None = None
        self.stands: Key | None = None  # the round in which it does not move
        self.left = 0  # the last round that it was asked to leave
        self.said = False  # hello
        self.ignores = False  # it does not leave a round
        self.moved = 0.0


class Body:
    """One ftrun: a container with its ranks."""

    def __init__(self, world: "World", member: int, life: str) -> None:
        self.world, self.member, self.life = world, member, life
        self.policy = Policy(
            restart_on=frozenset({"hang", "fault", "failure"}),
            max_restarts=None,
            backoff=0.0,
            limits=Policy().limits._replace(grace=1.0, recover_timeout=RECOVER),
            membership=Membership(
                node=f"node-{member}",
                group=True,
                member=member,
                peer_timeout=SILENCE,
                elastic=not world.shape.is_fixed,
                ends_alone=not world.shape.is_fixed,
            ),
            ranks=2,
            recover=world.rungs,
        )
        self.first = 2 * member  # the number of its first rank
        self.me = GroupMember(member, life, f"node-{member}", f"boot-{member}", f"host-{member}")
        self.offer()
        self.job, self.alive, self.frozen = Job(), True, False
        self.processes: dict[int, Process] = {}
        self.sent: MemberReport | None = None
        self.seq = self.ran = 0
        self.answered = world.now  # when the last message that rank 0 has answered was sent
        self.cut = False
        self.has_kept = False  # snapshots, which end with the container
        self.kept: list[ev.Event] = []  # while it is frozen
        self.records: list[str] = []
        self.places: tuple[int, int] = (0, 0)  # epoch and port of the start
        self.take(ev.Started(world.now))

    # --- PID 1 --------------------------------------------------------------------------------------------------------

    def take(self, event: ev.Event) -> None:
        if not self.alive:
            return
        if self.frozen:
            self.kept.append(event)
            return
        watched = isinstance(self.job.phase, Watched)
        self.job, effects = decide(self.job, event, self.policy)
        written = 0
        for effect in effects:
            written = self.perform(effect, written)
        self.follow()
        if isinstance(event, ev.RankExited) and watched and not self.job.recovers_ranks:
            self.take(ev.CommandExited(self.world.now, signal=9, rank=self.first + event.local_rank))
        if (deadline := self.job.phase.deadline) is not None:
            self.world.later(max(0.0, deadline - self.world.now) + 0.001, self.wake)

    def wake(self) -> None:
        if not self.alive or self.job.phase.deadline is None or self.world.now < self.job.phase.deadline:
            return
        if isinstance(self.job.phase, Starting | Running):
            self.beats()
        else:
            self.take(ev.DeadlineReached(self.world.now))

    def beats(self) -> None:
        now = self.world.now
        ranks = tuple(
            Rank(self.first + one.local, one.pid, claimed_at=1.0, moved_at=one.moved or None, step=1)
            for one in self.processes.values()
            if one.alive
        )
        self.take(ev.BeatsRead(now, ranks))

    def perform(self, effect: do.Effect, written: int) -> int:
        world, dice = self.world, self.world.dice
        match effect:
            case do.Persist(event):
                self.records.append(event)
                if event == "recovering":
                    return written + 1
            case do.Spawn(_, place, _, number):
                assert place is not None
                world.check_start(self)
                self.first = place.first
                self.places = (self.job.ledger.epoch, place.port)
                self.offer()
                self.processes = {local: Process(local, world.new_port()) for local in range(2)}
                world.later(dice.random(), lambda: self.spawned(number))
            case do.FenceRank(local, number, _):
                assert written, "a rank is fenced before the record of the recovery"
                if (one := self.processes.get(local)) is not None:
                    one.left = max(one.left, number)
                    self.leave_later(one, number)
            case do.EndRank(local):
                assert written, "a rank is ended before the record of the recovery"
                self.end(self.processes[local])
                world.later(dice.random(), lambda: self.take(ev.RankTreeEnded(world.now, local)))
            case do.StartRank(local, number, _):
                assert not self.processes[local].alive
                new = Process(local, world.new_port())
                self.processes[local] = new
                world.later(0.0, lambda: self.take(ev.RankStarted(world.now, local, new.pid)))
                self.hello_later(new, number)
            case do.BeginRound(local, number, _, _, master):
                assert master is not None
                one = self.processes[local]
                if one.alive and one.said and one.left < number:
                    one.works, one.moved = (self.job.ledger.epoch, number, master[1]), 0.0
                    world.check()
                    self.work_later(one)
            case do.Terminate() | do.Kill():
                for one in self.processes.values():
                    self.end(one)
                world.later(dice.random(), lambda: self.take(ev.TreeEnded(world.now, 2)))
            case do.Exit():
                self.world.ends.append((self.member, effect.code))
        return written

    def offer(self) -> None:
        if not self.member or self.policy.membership.elastic:
            self.me = self.me._replace(port=self.world.new_port())

    # --- its ranks ---

    def spawned(self, number: int) -> None:
        if not self.alive or not self.processes:
            return
        made = tuple(LocalRank(self.first + one.local, one.local, one.pid) for one in self.processes.values())
        self.take(ev.CommandSpawned(self.world.now, made[0].pid, made, self.places[1]))
        for one in self.processes.values():
            self.hello_later(one, number)

    def hello_later(self, one: Process, number: int) -> None:
        def hello() -> None:
            if self.alive and one.alive and self.processes.get(one.local) is one:
                one.said = True
                self.take(ev.RankReported(self.world.now, SaidHello(one.local, self.held())))
                if number == 1 and one.alive and one.left < 1:
                    one.works = (self.places[0], 1, self.places[1])
                    self.world.check()
                    self.work_later(one)

        self.world.later(1.0 + self.world.dice.random(), hello)

    def held(self) -> tuple[HeldSnapshot, ...]:
        return (HeldSnapshot(self.world.dice.choice((3, 4))), HeldSnapshot(4)) if self.has_kept else ()

    def work_later(self, one: Process) -> None:
        works = one.works

        def move() -> None:
            if self.alive and one.alive and one.works == works:
                if one.stands != works:
                    one.moved, self.has_kept = self.world.now, True
                self.world.later(1.0, move)

        self.world.later(0.5, move)

    def leave_later(self, one: Process, number: int) -> None:
        def leave() -> None:
            if self.alive and one.alive and not one.ignores and (one.works is None or one.works[1] <= number):
                one.works = None
                self.take(ev.RankReported(self.world.now, LeftRound(one.local, number, self.held())))

        self.world.later(self.world.dice.random(), leave)

    def end(self, one: Process) -> None:
        one.alive, one.works = False, None

    def rank_dies(self, local: int) -> None:
        one = self.processes.get(local)
        if one is None or not one.alive or isinstance(self.job.phase, Launching):  # then PID 1 keeps it for later
            return
        self.end(one)
        self.take(ev.RankExited(self.world.now, local, signal=9))

    def asks(self, local: int, collective: bool) -> None:
        one = self.processes.get(local)
        if one is not None and one.works is not None:
            number, one.works = one.works[1], None
            self.take(ev.RankReported(self.world.now, AskedRetry(local, number, "why", collective)))
            self.take(ev.RankReported(self.world.now, LeftRound(local, number, self.held())))

    def hangs(self, *culprits: int) -> None:
        """Its ranks have not moved since their start; the evidence names these as the cause."""
        for one in self.processes.values():
            one.stands = one.works
        policy, self.policy = (
            self.policy,
            self.policy._replace(limits=self.policy.limits._replace(hang=None, start=1.0)),
        )
        if isinstance(self.job.phase, Starting):
            self.take(ev.BeatsRead(self.world.now, ()))
        if isinstance(self.job.phase, Suspect):
            self.take(ev.EvidenceCollected(self.world.now, (), (("culprits", list(culprits)),)))
        self.policy = policy

    # --- its messenger ---

    def follow(self) -> None:
        order = self.job.order.round if self.job.order is not None else None
        if order is not None and order.port == self.me.port:
            self.offer()
        new = report(self.job, self.me, self.policy, self.world.now, False)
        self.ran = max(self.ran, new.epoch) if new.state in ("running", "fallen") else self.ran
        new = new._replace(ran=self.ran, failure=new.failure and new.failure._replace(age=0.0))
        if self.sent is None or new != self.sent._replace(seq=0):
            self.seq += 1
            self.sent = new._replace(seq=self.seq)
            self.world.send(self)

    def beat(self) -> None:
        if self.alive and not isinstance(self.job.phase, Done):
            self.world.send(self)
            if not self.frozen and self.world.now > self.answered + SILENCE + WAIT:
                self.take(ev.CoordinatorLost(self.world.now, "cut"))
            self.world.later(BEAT, self.beat)

    def received(self, order: GroupOrder, sent_at: float) -> None:
        self.answered = max(self.answered, sent_at)
        if order != self.job.order or self.frozen:
            self.take(ev.GroupOrderReceived(self.world.now, order))

    def thaws(self) -> None:
        self.frozen, kept, self.kept = False, newest_order(self.kept), []
        for event in kept:
            self.take(event._replace(now=self.world.now))
        self.wake()


class World:
    """`at_ease`: nothing is lost, doubled or late any more.  `shape`: of the group; by default all members work."""

    def __init__(
        self,
        seed: int,
        size: int = 2,
        rungs: frozenset[str] = frozenset({"retry", "rank"}),
        shape: GroupShape | None = None,
        late: Collection[int] = (),
    ) -> None:
        """`late`: members that are not there yet."""
        self.dice, self.size, self.now, self.rungs = random.Random(seed), size, 100.0, rungs
        self.shape = shape or GroupShape(size)
        self.queue: list[tuple[float, int, Callable[[], None]]] = []
        self.count = self.ports = 0
        self.ends: list[tuple[int, int]] = []
        self.at_ease = False
        self.last_seen: dict[tuple[int, str], float] = {}
        self.gone: set[tuple[int, str]] = set()
        self.coordinator = self._forgotten()
        self.bodies: dict[int, Body] = {}
        self.ghosts: list[Body] = []  # that are cut off, and may still work
        for member in {*range(size)} - {*late}:
            self.come(member, "a")

    # --- time ---

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.queue, (self.now + seconds, self.count, what))

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self.queue and self.queue[0][0] <= until:
            self.now, _, what = heapq.heappop(self.queue)
            what()
            self.check()
        self.now = until

    def new_port(self) -> int:
        self.ports += 1
        return 1000 + self.ports

    # --- what always holds ---

    def check(self) -> None:
        works = {
            one.works
            for body in (*self.bodies.values(), *self.ghosts)
            if body.alive
            for one in body.processes.values()
            if one.alive and one.works is not None
        }
        assert len(works) <= 1, f"two rounds at work at once: {sorted(works)}"

    def check_start(self, body: Body) -> None:
        assert not any(one.alive for one in body.processes.values()), "a start beside living ranks"

    # --- the network ---

    def _delays(self) -> list[float]:
        if self.at_ease:
            return [0.01]
        copies = self.dice.choices((0, 1, 2), (1, 8, 1))[0]
        return [self.dice.random() ** 3 * DELAY for _ in range(copies)]

    def send(self, body: Body) -> None:
        if body.sent is None or body.cut or not body.alive:
            return
        sent, at = body.sent, self.now
        for delay in self._delays() if body.member else [0.0]:
            self.later(delay, lambda: self.arrived(body, sent, at))

    def arrived(self, body: Body, sent: MemberReport, at: float) -> None:
        if body.cut or not body.alive or self.now > at + DELAY:
            return
        if not self.bodies[0].alive:
            return  # rank 0 is not there
        key = (body.member, body.life)
        self.last_seen[key] = self.now
        self.gone.discard(key)
        if self.feed(Reported(self.now, sent)):
            self.answer(body, at)

    def answer(self, body: Body, at: float) -> None:
        order = self.coordinator.order
        for delay in self._delays() if body.member else [0.0]:
            self.later(delay, lambda: None if body.cut or not body.alive else body.received(order, at))

    def feed(self, event: GroupEvent) -> bool:
        """False: the member is refused."""
        self.coordinator, effects = lead(self.coordinator, event)
        taken = True
        for effect in effects:
            if isinstance(effect, RefuseMember):
                taken = False
            if isinstance(effect, SendOrder):
                for body in self.bodies.values():
                    self.answer(body, body.answered)
        if (deadline := self.coordinator.deadline) is not None:
            self.later(max(0.0, deadline - self.now) + 0.001, self._tick)
        return taken

    def _tick(self) -> None:
        deadline = self.coordinator.deadline
        if deadline is not None and self.now >= deadline and self.bodies[0].alive:
            self.feed(GroupDeadlineReached(self.now))

    def scan(self) -> None:
        """Silent members count as lost."""
        for key, seen in list(self.last_seen.items()):
            if key not in self.gone and key[0] and self.now > seen + SILENCE and self.bodies[0].alive:
                self.gone.add(key)
                self.feed(MemberLost(self.now, *key, "silent", False, seen))
        self.later(BEAT, self.scan)

    def _forgotten(self) -> Coordinator:
        return new_coordinator(self.now, self.shape, WAIT, 5.0, 0.0, SILENCE)

    # --- faults ---

    def come(self, member: int, life: str) -> None:
        body = Body(self, member, life)
        self.bodies[member] = body
        self.later(BEAT, body.beat)

    def forget(self) -> None:
        """The messenger of rank 0 starts again."""
        self.coordinator = self._forgotten()
        self.last_seen.clear()
        self.gone.clear()
        for body in self.bodies.values():
            self.send(body)

    def lose(self, member: int, back_after: float) -> None:
        """A container is killed, and comes back."""
        body, seen = self.bodies[member], self.now
        if not body.alive or isinstance(body.job.phase, Done):
            return
        body.alive = False
        key, life = (member, body.life), f"life-{self.new_port()}"
        if member == 0:
            self.later(back_after, lambda: (self.come(0, life), self.forget())[0])  # type: ignore[func-returns-value]
            return

        def lost() -> None:
            if key in self.last_seen and key not in self.gone and self.bodies[0].alive:
                self.gone.add(key)
                last = self.last_seen[key]
                self.feed(MemberLost(self.now, *key, "closed", True, last, seen))

        self.later(LOST, lost)
        self.later(back_after, lambda: self.come(member, life))

    def harm(self) -> None:
        """Something random goes wrong."""
        dice = self.dice
        member, local = dice.randrange(self.size), dice.randrange(2)
        body = self.bodies[member]
        match dice.choice(
            ("die", "die", "retry", "collective", "ignore", "forget", "lose", "freeze", "both", "cut", "hang")
        ):
            case "die":
                body.rank_dies(local)
            case "retry":
                body.asks(local, False)
            case "collective":
                for one in self.bodies.values():
                    one.asks(local, True)
            case "ignore" if local in body.processes:
                body.processes[local].ignores = True
                body.rank_dies(1 - local)
            case "forget":
                body.rank_dies(local)
                self.later(dice.random(), self.forget)
            case "lose":
                self.lose(member, dice.random() * 20)
            case "freeze":
                body.frozen = True
                self.later(dice.random() * 20, body.thaws)
            case "both":
                for one in self.bodies.values():
                    one.rank_dies(local)
            case "hang":
                for one in self.bodies.values():
                    one.hangs(*([one.first] if dice.random() < 0.1 else []))
            case "cut" if member:
                body.cut = True
                self.later(dice.random() * 12, lambda: setattr(body, "cut", False))

    # --- how it is ---

    @property
    def working(self) -> list[Body]:
        """The members that have a place in the epoch, in the order of their numbers."""
        return [body for member, body in sorted(self.bodies.items()) if member in self.coordinator.placed]

    @property
    def works(self) -> bool:
        """All ranks of all these members work in one round."""
        return len(self.working) >= self.shape.fewest and all(
            body.alive and len(body.processes) == 2 and all(one.works for one in body.processes.values())
            for body in self.working
        )

    @property
    def over(self) -> bool:
        return isinstance(self.coordinator.phase, Ended) or bool(self.ends)

    def begin(self) -> None:
        self.at_ease = True
        self.later(BEAT, self.scan)
        self.run(10.0 if len(self.bodies) == self.size else 2 * WAIT)  # for those that are not there
        assert self.works
        assert all(body.job.recovers_ranks for body in self.working)
        self.at_ease = False

    def settle(self, seconds: float = 200.0) -> None:
        self.at_ease = True
        for body in self.bodies.values():
            for one in body.processes.values():
                one.ignores = False
        self.run(seconds)
