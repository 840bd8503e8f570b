"""The simulated group of `coordinator_world` with a folder that its members share, in which the coordinator has a lease
(core/group/lease.py).  The folder stalls for some of them, shows others what is old, and lies about times; members are
suspended; and members whose coordinator is gone take its place.  What holds at any moment is checked as before.
"""

import math
from typing import Final

from core.coordinator_world import BEAT, SILENCE, Body, Side, World
from ftrun.core.group import lease
from ftrun.core.group.lease import Place, Watch, Witness
from ftrun.core.group.membership import FolderProved, GroupEffects, GroupEvent, GroupShape, LeaseForeign, LeaseTaken
from ftrun.core.group.messages import MemberReport

RESUMED: Final = 8.0  # s that PID 1 has after it was suspended (pid1/clients/messenger.py)
FOREVER: Final = 1e9


class Hand:
    """What the messenger of one life knows of the folder, and does with it."""

    def __init__(self, world: "LeaseWorld", body: Body) -> None:
        self.world, self.body = world, body
        self.watch, self.born = Watch(None, world.now), world.now
        self.folder, self.times = ({}, {}) if body.rank in world.unmounted else (world.folder, world.times)
        self.shared = False  # that folder, as is known
        self.stalled = 0.0  # until then nothing that it asks of the folder is done
        self.stale = 0.0  # s by which what it reads is old
        self.frozen = self.thawed = -FOREVER  # until then it is suspended; since then it runs again
        self.ended = False  # its lease, so that its coordinator decides nothing
        self.asking = False  # one attempt at a time
        self.renewed = self.began_at = -math.inf
        self.bound: set[Witness] = set()  # of the newest place, and of those that it may have taken
        self.proved: set[Witness] = set()
        self.heard: dict[Witness, float] = {}
        self.answer: dict[str, float] = {}  # by coordinator: when it sent the newest answer that came
        self.lost: dict[Witness, float] = {}  # since when those that are here have not heard the holder
        self.quiet = world.now  # since when it has heard nothing of the holder

    @property
    def fresh(self) -> bool:
        """It has just taken the lease over, so that the witnesses before may not have come yet."""
        return self.world.now < self.began_at + self.world.length

    @property
    def me(self) -> Witness:
        return self.body.rank, self.body.life

    @property
    def place(self) -> Place | None:
        return self.watch.place

    @property
    def holds(self) -> bool:
        return self.place is not None and self.place.life == self.body.life

    @property
    def stops(self) -> float:
        world = self.world
        if not self.holds and not self.bound:
            return math.inf
        dead = {(b.rank, b.life) for b in world.bodies if b.provable and (not b.alive or b.state == "left")}
        return lease.stops_at(self.renewed, self.bound - dead, self.heard, world.length, world.patience, world.drain,
                              self.body.rank)  # fmt: skip

    def step(self) -> None:
        """Once a second, and at no time while it is suspended."""
        body, world = self.body, self.world
        if not body.alive or body.state == "left" or world.now < self.frozen or self.world.shape.is_fixed:
            return
        if self.thawed < self.frozen:
            self.thawed, self.watch = world.now, lease.resumed(self.watch, world.now)
        if world.now >= self.stalled and (found := self.read()) is not None:
            self.see(found)
        if body.leads:
            self.lead()
        elif not self.asking and world.now >= self.takes_at:
            self.ask()

    def read(self) -> Place | None:
        seen = [number for number, at in self.times.items() if at <= self.world.now - self.stale]
        return self.folder[max(seen)] if seen else None

    def see(self, place: Place) -> None:
        self.shared = self.shared or lease.proves_sharing(place)
        before, self.watch = self.place, lease.seen(self.watch, place, self.world.now)
        if self.place is before or self.place is None:
            return
        if before is None or before.life != self.place.life:
            self.quiet, self.lost = self.world.now, {}
        if before is None or self.place.life == self.body.life or self.place.over:
            return
        other = next(b for b in self.world.bodies if b.life == place.life)
        if not self.body.leads:
            self.body.side = other.side if other.leads else self.body.side
        elif self.bound or (before.life != self.body.life and place.rank != self.body.rank):
            self.yield_to(other)

    def yield_to(self, other: Body) -> None:
        """Its lease was taken over: its ranks stop, and it is a member like any other."""
        self.stop_ranks()
        self.body.side.end()
        self.bound, self.ended = set(), False
        self.body.side = other.side if other.leads else self.world.nowhere

    def stop_ranks(self) -> None:
        body = self.body
        if body.state == "running":
            body.over = max(body.over, body.epoch)
            body.killed_soon()

    @property
    def takes_at(self) -> float:
        world = self.world
        if self.body.leads and self.place is None:
            return -math.inf
        return lease.takes_at(self.watch, self.me, world.length, world.patience, self.lost)

    def lead(self) -> None:
        world, body, side = self.world, self.body, self.body.side
        if self.shared and side.coordinator is not None and side.coordinator.folder_unproved:
            world.tell(side, FolderProved(world.now))
        if self.holds or self.ended:
            if not self.ended and world.now >= self.stops:
                self.ended = True
                self.stop_ranks()
                world.tell(side, LeaseForeign(world.now, body.rank))
            alone = body.rank and not self.bound
            # Where it hears nobody it is the one that is cut off.
            if not self.asking and (side.present.keys() - {body.rank} or self.fresh or alone):
                self.ask()
            return
        group = side.coordinator
        if group is None:
            return
        certain = self.place is not None and self.place.life in group.dead_starters
        if not self.asking and (world.now >= self.takes_at or group.all_new or certain):
            self.ask()
        elif lease.is_binding(self.place) and self.place is not None:
            world.tell(side, LeaseForeign(world.now, self.place.rank, self.takes_at))

    def ask(self) -> None:
        """Take the next place.  It is taken when the folder gets to it, perhaps much later."""
        world, body = self.world, self.body
        group = body.side.coordinator if body.leads else None
        epoch, places = (body.epoch, body.places) if group is None else (group.epoch, group.order.places)
        before = self.place
        witnesses = self.proved if body.leads else set()
        self.shared = self.shared or bool(witnesses)
        inherits = group is None or not group.all_new
        if lease.is_binding(before) and before is not None and inherits and (before.life != body.life or self.fresh):
            witnesses = witnesses | {*before.witnesses} - {self.me}
        mine = Place(0, body.rank, body.life, f"node-{body.boot}", body.boot, body.life, epoch, places,
                     tuple(sorted(witnesses)), written=world.now * 2 * world.dice.random())  # fmt: skip
        new = lease.next_place(before, mine, before is not None and epoch > before.epoch)
        self.asking, began, tried = True, world.now, set(new.witnesses)
        self.bound |= tried

        def done() -> None:
            if not body.alive or body.state == "left":
                return
            if world.now < max(self.stalled, self.frozen):
                # It is on its way in the kernel, and may be done at any time.
                world.later(max(self.stalled, self.frozen) - world.now, done)
                return
            found = self.folder.setdefault(new.number, new)
            self.times.setdefault(new.number, world.now)
            if found is not new:
                self.asking = False
                self.see(found)
                return
            world.later(world.dice.choice([0.0, 0.0, 0.1, 1.0]), lambda: self.taken(before, new, began, tried))

        world.later(world.dice.choice([0.0, 0.0, 0.1, 1.0]), done)

    def taken(self, before: Place | None, new: Place, began: float, tried: set[Witness]) -> None:
        body, world, self.asking = self.body, self.world, False
        if not body.alive or body.state == "left" or (self.place is not None and self.place.number > new.number):
            return
        if world.now < self.frozen:
            self.asking = True
            world.later(self.frozen - world.now, lambda: self.taken(before, new, began, tried))
            return
        mine = before is not None and before.life == body.life
        self.began_at = self.began_at if mine else world.now
        self.watch, self.renewed = Watch(new, world.now), began
        self.bound = tried
        if world.now >= self.stops:
            return  # the answer came too late
        if body.leads and body.side.coordinator is not None:
            if self.shared and (not mine or body.side.coordinator.lease_state != "held"):
                world.tell(body.side, LeaseTaken(world.now, before))
            self.ended = False
            return
        if not body.leads:
            world.taken_over += 1
            body.side = Side(body)
        elif body.side.coordinator is None:
            body.side.begin()
        self.ended = False
        world.tell(body.side, LeaseTaken(world.now, before))
        world.send(body)


class LeaseWorld(World):
    def __init__(self, seed: int, size: int, bad: float, shape: GroupShape | None) -> None:
        self.folder_unproved = shape is not None and not shape.is_fixed
        self.unmounted: set[int] = set()  # members whose next containers see an empty folder of their own
        self.folder: dict[int, Place] = {}
        self.times: dict[int, float] = {}
        self.hands: dict[str, Hand] = {}
        self.taken_over = 0
        super().__init__(seed, size, bad=bad, shape=shape)
        self.length, self.patience = lease.length(SILENCE, self.drain), SILENCE + self.wait
        self.nowhere = Side(None)

    def born(self, rank: int, kept: Body | None = None) -> Body:
        body = super().born(rank, kept)
        hand = self.hands[body.life] = Hand(self, body)

        def again() -> None:
            hand.step()
            if body.answered is None and body.state == "ready" and self.now >= hand.born + SILENCE + self.wait:
                body.left_out()  # it has never reached anyone
            if body.alive:
                self.later(BEAT / 2, again)

        again()
        return body

    def is_frozen(self, body: Body) -> bool:
        """Suspended, or just resumed: its command has not been told to stop yet, and can reach nobody."""
        hand = self.hands.get(body.life)
        return hand is not None and self.now < max(hand.frozen + 1.0, hand.thawed) + RESUMED + self.drain

    def tell(self, side: Side, event: GroupEvent) -> GroupEffects:
        hand = self.hands.get(side.zero_life)
        if hand is not None and self.now < hand.frozen:
            session = side.session  # it learns that later

            def tell() -> None:
                if session == side.session:
                    self.tell(side, event._replace(now=self.now))

            self.later(hand.frozen - self.now, tell)
            return ()
        return super().tell(side, event)

    def arrived(self, body: Body, side: Side, report: MemberReport, session: int, asked: float) -> None:
        leader, hand = self.hands.get(side.zero_life), self.hands.get(body.life)
        if leader is None or (self.now < leader.frozen and side.coordinator is not None):
            return
        super().arrived(body, side, report, session, asked)
        if hand is None or body is side.zero or side.present.get(body.rank, ("",))[0] != body.life:
            return
        me = hand.me
        if hand.place is not None and hand.place.life == side.zero_life and self.now >= hand.stalled:
            leader.proved.add(me)
        leader.proved = {w for w in leader.proved if side.present.get(w[0], ("",))[0] == w[1] or w in leader.bound}
        if side.zero_life in hand.answer:
            leader.heard[me] = hand.answer[side.zero_life]
        if hand.place is not None and leader.place is not None and hand.place.life == leader.place.life:
            leader.lost[me] = hand.watch.since if hand.place.life != side.zero_life else self.now
        group = side.coordinator
        if group is None or (leader.holds and leader.shared) or hand.place is None or not lease.is_binding(hand.place):
            return
        if hand.place.life != side.zero_life and group.lease_state == "none":
            self.tell(side, LeaseForeign(self.now, hand.place.rank))

    def answered(self, body: Body, sent: float) -> None:
        hand, life = self.hands[body.life], body.side.zero_life
        if self.now < hand.frozen:
            return
        hand.answer[life] = max(sent, hand.answer.get(life, sent))
        hand.watch = lease.heard(hand.watch, life, self.now)

    def connect(self, body: Body) -> None:
        hand = self.hands.get(body.life)
        if hand is None or hand.place is None or not body.leads:
            super().connect(body)

    def strike(self, kinds: str) -> None:
        """As in `World`, and `S`tall the folder for some, `O`ld content, s`U`spend a member, the `A`rea of member 0 is
        lost for ever, with its coordinator."""
        kind = self.dice.choice(kinds)
        if kind not in "SOUA":
            super().strike(kind)
            return
        for body in self.current():
            hand = self.hands.get(body.life)
            if hand is None or self.dice.random() < 0.5:
                continue
            if kind == "S":
                hand.stalled = max(hand.stalled, self.now + self.dice.choice([5.0, 30.0, 60.0, 200.0]))
            elif kind == "O":
                hand.stale = self.dice.choice([0.0, 10.0, 60.0])
        leaders = [b for b in self.current() if b.leads and b.alive and b.state != "left" and not b.moved]
        if kind == "U" and leaders and self.dice.random() < 0.7:
            self.hands[leaders[0].life].frozen = self.now + self.dice.choice([10.0, 40.0, 100.0])
        elif kind == "A" and leaders and not self.unknown_without(leaders[0], "d"):
            body = leaders[0]
            body.die()
            body.side.end()
            if self.dice.random() < 0.5:
                self.later(self.dice.random() * 60, lambda: self.flap(body.rank))

    def heal(self) -> None:
        for hand in self.hands.values():
            hand.stalled = min(hand.stalled, self.now)
            hand.frozen = min(hand.frozen, self.now)
            hand.stale = 0.0
        self.bad = 0.0
        for body in self.current():
            body.mended()
            hand = self.hands[body.life]
            if not body.leads and (hand.place is None or not body.side.zero):
                body.side = self.side
