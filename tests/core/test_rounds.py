"""Rounds of recovery (core/ranks): what each fault leads to, and an adversary that loses, doubles and reorders."""

import random
from collections.abc import Iterable
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ftrun.core.ranks.rounds import SETTLE, restores, step
from ftrun.core.ranks.table import (
    Act,
    AskedRetry,
    BeginRound,
    Blamed,
    EndRank,
    FenceRank,
    FunctionFinished,
    GiveUp,
    Happened,
    HeldSnapshot,
    LeftRound,
    RankMember,
    RankProcessEnded,
    RankReport,
    RankTreeCleared,
    RecordRecovering,
    ReleaseSnapshot,
    Restore,
    Rounds,
    Rules,
    SaidHello,
    SnapshotRestored,
    StartRank,
    Waited,
)

RULES = Rules(timeout=10.0)
KEPT = (HeldSnapshot(4), HeldSnapshot(5))


class World:
    """Rounds of `number` ranks that have all said hello.  `acts`: of the last event; time stands still."""

    def __init__(self, number: int = 3, rules: Rules = RULES) -> None:
        self.rounds, self.rules, self.now = Rounds(tuple(RankMember(n, n) for n in range(number))), rules, 100.0
        self.acts: list[Act] = []
        for rank in range(number):
            self.then(SaidHello(rank))

    def then(self, *happened: Happened, now: float | None = None) -> list[Act]:
        self.now = self.now if now is None else now
        self.acts = []
        for one in happened:
            self.rounds, acts = step(self.rounds, one, self.now, self.rules)
            self.acts += acts
        return self.acts

    def of(self, kind: type[Act]) -> list[Act]:
        return [act for act in self.acts if isinstance(act, kind)]

    def recover(self, victim: int, held: tuple[HeldSnapshot, ...] = KEPT) -> list[Act]:
        """A rank dies, and the others come."""
        others = [m.local_rank for m in self.rounds.members if m.local_rank != victim]
        self.then(RankProcessEnded(victim, 137, "it died"), RankTreeCleared(victim))
        return self.then(*(LeftRound(other, self.rounds.number, held) for other in others), SaidHello(victim, held))

    @property
    def failed(self) -> str | None:
        return next((act.why for act in self.acts if isinstance(act, GiveUp)), None)


def test_ranks_recover_once_all_have_said_so() -> None:
    rounds = Rounds((RankMember(0, 0), RankMember(1, 1)))
    rounds, _ = step(rounds, SaidHello(0), 1.0, RULES)
    assert not rounds.is_open
    assert step(rounds, RankProcessEnded(1, 1), 1.0, RULES)[1] == ()
    rounds, _ = step(rounds, SaidHello(1), 1.0, RULES)
    assert rounds.is_open


def test_a_process_that_cannot_go_on_before_the_last_hello_is_replaced_after_it() -> None:
    world = World(2)
    world.rounds = Rounds((RankMember(0, 0), RankMember(1, 1)))
    assert world.then(SaidHello(0), AskedRetry(0, 1, "why", True), LeftRound(0, 1, (), "CUDA is broken")) == []
    why = "the process of rank 0 cannot go on: CUDA is broken"
    assert world.then(SaidHello(1)) == [RecordRecovering("rank", 2, (0,), why), FenceRank(1, 1, why), EndRank(0)]


def test_who_has_left_another_round_has_not_left_this_one() -> None:
    world = World()
    world.then(RankProcessEnded(1, 137, "it died"), RankTreeCleared(1), SaidHello(1))
    assert world.then(*(LeftRound(rank, number) for rank in (0, 2) for number in (0, 2))) == []
    assert len(world.then(LeftRound(0, 1), LeftRound(2, 1))) == 3, "all begin the next round"


def test_two_that_die_at_once_are_replaced_together() -> None:
    world = World()
    world.then(RankProcessEnded(1, 137, "one died"), RankProcessEnded(2, 137, "another died"))
    assert world.acts[-2:] == [RecordRecovering("rank", 2, (1, 2), "another died"), EndRank(2)]
    world.then(RankTreeCleared(1), RankTreeCleared(2), SaidHello(1), SaidHello(2))
    assert world.then(LeftRound(0, 1)) == [BeginRound(rank, 2, None, "rank") for rank in range(3)]


def test_a_retry_of_a_round_that_has_ended_changes_nothing() -> None:
    world = World()
    world.then(AskedRetry(1, 1, "why"), *(LeftRound(rank, 1) for rank in range(3)), Waited(frozenset(range(3))))
    assert world.then(AskedRetry(0, 1, "late")) == []
    assert world.rounds.stage == "working"


def test_a_death_explains_the_collective_that_failed_before_it_was_noticed() -> None:
    world = World()
    assert world.then(AskedRetry(0, 1, "connection reset", True)) == []
    world.then(RankProcessEnded(1, 137, "it died"))
    assert world.of(RecordRecovering) == [RecordRecovering("rank", 2, (1,), "it died")]


def test_a_collective_that_failed_without_a_death_is_retried() -> None:
    world = World()
    world.then(AskedRetry(0, 1, "connection reset", True), Waited())
    assert not world.acts
    world.then(Waited(), now=100.0 + SETTLE)
    assert world.of(RecordRecovering) == [RecordRecovering("retry", 2, (), "connection reset")]


def test_after_a_retry_a_death_has_more_time_to_explain_a_collective_that_failed() -> None:
    """A busy machine may report a death late, and without one all ranks would be restarted."""
    world = World()
    world.then(AskedRetry(1, 1, "why"), *(LeftRound(rank, 1) for rank in range(3)), AskedRetry(0, 2, "reset", True))
    assert world.then(Waited(), now=100.0 + 2 * SETTLE) == []
    world.then(RankProcessEnded(1, 137, "it died"))
    assert world.of(RecordRecovering) == [RecordRecovering("rank", 3, (1,), "it died")]
    assert world.failed is None


def test_a_process_that_cannot_go_on_is_replaced() -> None:
    world = World()
    world.then(AskedRetry(0, 1, "why"), LeftRound(1, 1, (), "its device is lost"))
    assert world.acts[-1] == EndRank(1)


@pytest.mark.parametrize("rungs", [{"retry"}, {"rank"}])
def test_only_permitted_rungs_are_taken(rungs: set[str]) -> None:
    world = World(rules=RULES._replace(rungs=frozenset(rungs)))
    world.then(AskedRetry(0, 1, "why"))
    assert [act.rung for act in world.of(RecordRecovering) if isinstance(act, RecordRecovering)] == [*rungs]
    world = World(rules=RULES._replace(rungs=frozenset(rungs)))
    world.then(RankProcessEnded(0, 1, "why"))
    assert (world.failed is None) == (rungs == {"rank"})


def test_a_fault_in_the_round_that_proves_a_replacement_is_left_to_the_tree() -> None:
    for fault in (
        RankProcessEnded(0, 1, "why"),
        AskedRetry(0, 2, "why"),
        Blamed(frozenset({0}), "why"),
        LeftRound(0, 2),
    ):
        world = World()
        world.recover(1)
        assert world.then(fault)
        assert world.failed is not None
        assert not world.rounds.is_open


def test_a_second_fault_while_the_ranks_recover_is_left_to_the_tree() -> None:
    world = World()
    world.then(RankProcessEnded(1, 137, "it died"), LeftRound(0, 1))
    assert world.then(RankProcessEnded(0, 137, "another died"))
    assert world.failed
    world = World()
    world.then(RankProcessEnded(1, 137, "it died"), RankTreeCleared(1), RankProcessEnded(1, 1, "it died again"))
    assert world.failed


def test_a_rank_is_replaced_so_often_without_progress() -> None:
    world = World(rules=RULES._replace(max_replaced=2, progress=7))
    for _ in range(2):
        world.recover(1)
        world.then(Waited(frozenset(range(3))))
    again = world.rounds
    world.then(RankProcessEnded(1, 137, "it died"))
    assert world.failed == "rank 1 was replaced 2 times in a row without progress"
    world.rounds, world.rules = again, world.rules._replace(progress=8)
    world.then(RankProcessEnded(1, 137, "it died"))
    assert world.failed is None


def test_a_finished_rank_comes_back_and_one_that_has_exited_cannot() -> None:
    world = World()
    world.then(FunctionFinished(0, 1), RankProcessEnded(1, 1, "why"))
    assert FenceRank(0, 1, "why") in world.acts
    world = World()
    world.then(FunctionFinished(0, 1), RankProcessEnded(0, 0), RankProcessEnded(1, 1, "why"))
    assert world.failed == "rank 0 has ended already"


def test_new_processes_that_do_not_report_in_time_are_left_to_the_tree() -> None:
    world = World()
    world.then(RankProcessEnded(1, 137, "it died"), RankTreeCleared(1), LeftRound(0, 1), LeftRound(2, 1))
    world.then(Waited(), now=110.0)
    assert world.failed == "the new process of rank 1 did not report in time"


def members(*held: Iterable[tuple[int, str]], shards: tuple[str, ...] = ()) -> list[RankMember]:
    named = shards or ("",) * len(held)
    snapshots = [tuple(HeldSnapshot(*one) for one in each) for each in held]
    return [
        RankMember(n, n, held=one, shard=shard) for n, (one, shard) in enumerate(zip(snapshots, named, strict=True))
    ]


def test_the_newest_step_that_each_rank_can_have_is_restored() -> None:
    assert restores(members([(4, ""), (5, "")], [(5, ""), (6, "")])) == {0: Restore(5, 0), 1: Restore(5, 1)}
    assert restores(members([(4, "")], [(6, "")])) == {}
    assert restores(members([(4, "")], [])) == {}
    same = restores(members([(5, "a"), (6, "a")], [], shards=("a", "a")))
    assert same == {0: Restore(6, 0, "a"), 1: Restore(6, 0, "a")}
    assert restores(members([(6, "a")], [], shards=("a", "b"))) == {}, "another shard"


ALL = (HeldSnapshot(4, "all"), HeldSnapshot(5, "all"))


def lending() -> World:
    """Round 2 has begun: ranks 1 and 2 were replaced, have no snapshot, and load that of rank 0."""
    world = World()
    world.then(*(SaidHello(rank, ALL) for rank in range(3)))
    world.rounds = world.rounds._replace(members=tuple(one._replace(shard="all") for one in world.rounds.members))
    world.then(
        RankProcessEnded(1, 137, "it died"), RankProcessEnded(2, 137, "it died"), RankTreeCleared(1), RankTreeCleared(2)
    )
    world.then(LeftRound(0, 1, ALL), SaidHello(1), SaidHello(2))
    restore = Restore(5, 0, "all")
    assert world.acts == [BeginRound(rank, 2, restore, "rank", lends=rank == 0) for rank in range(3)]
    return world


def test_a_snapshot_is_released_once_every_rank_that_borrows_it_has_loaded_it() -> None:
    world = lending()
    assert (
        world.then(SnapshotRestored(1, 2), SnapshotRestored(1, 2), SnapshotRestored(2, 1), SnapshotRestored(0, 2)) == []
    )
    assert world.then(SnapshotRestored(2, 2)) == [ReleaseSnapshot(0, 2)]
    assert world.then(SnapshotRestored(2, 2)) == []


def test_a_rank_whose_function_has_returned_needs_no_snapshot() -> None:
    world = lending()
    assert world.then(SnapshotRestored(1, 2), FunctionFinished(2, 2)) == [ReleaseSnapshot(0, 2)]


def test_nobody_lends_where_each_rank_has_its_own_snapshot() -> None:
    world = World()
    assert not any(act.lends for act in world.recover(1) if isinstance(act, BeginRound))
    assert world.then(SnapshotRestored(1, 2)) == []


# --- the adversary ----------------------------------------------------------------------------------------------------

RANKS = 3


class Adversary:
    """Real ranks, as far as the protocol sees them, behind channels that the adversary controls.

    `at_work`: the round in which the function of each rank runs at this moment; None: it does not run.  A process that
    is replaced loses its channel.  Nothing else is assumed: messages are lost, doubled and late in any order.

    All hold the same state, and no collective holds them together.  `slots`: the two files of each rank, each a step
    and the number of the snapshot; `lent`: the one that others load, until `released` is the round of the rank.
    `reads`: what a rank is loading, from which rank and slot; `loading`: what it has to load first.
    """

    def __init__(self) -> None:
        self.rounds = Rounds(tuple(RankMember(n, n) for n in range(RANKS)))
        self.now = 0.0
        self.alive = [True] * RANKS
        self.at_work: list[int | None] = [1] * RANKS
        self.doing = [1] * RANKS  # the round that each process knows
        self.incarnation = [0] * RANKS
        self.steps, self.kept = [0] * RANKS, 0
        self.slots: list[list[Slot | None]] = [[None, None] for _ in range(RANKS)]
        self.lent: list[int | None] = [None] * RANKS
        self.released = [0] * RANKS
        self.loading: list[Restore | None] = [None] * RANKS
        self.reads: list[tuple[int, int, Slot] | None] = [None] * RANKS
        self.to_pid1: list[tuple[int, int, RankReport]] = [(n, 0, SaidHello(n)) for n in range(RANKS)]
        self.to_rank: list[tuple[int, int, Act]] = []
        self.ended: set[int] = set()
        self.given_up = False

    def happen(self, event: Happened) -> None:
        before = self.rounds
        self.rounds, acts = step(self.rounds, event, self.now, RULES)
        assert not (self.given_up and acts), "nothing is done after the end of the attempt"
        records = [act for act in acts if isinstance(act, RecordRecovering)]
        assert all(isinstance(acts[0], RecordRecovering | GiveUp) for _ in records), "the record comes before the acts"
        if any(isinstance(act, BeginRound) for act in acts):
            assert all(at is None for at in self.at_work), "two rounds at work"
            assert self.rounds.number == before.number + 1
            assert sorted(act.local_rank for act in acts if isinstance(act, BeginRound)) == list(range(RANKS))
        for act in acts:
            self.perform(act)

    def perform(self, act: Act) -> None:
        match act:
            case FenceRank(rank) | BeginRound(rank) | ReleaseSnapshot(rank):
                self.to_rank.append((rank, self.incarnation[rank], act))
            case EndRank(rank):
                self.stop(rank)
            case StartRank(rank, number):
                assert not self.alive[rank], "a process beside another one of its rank"
                assert rank in self.ended
                self.ended.discard(rank)
                self.alive[rank], self.doing[rank] = True, number
                self.incarnation[rank] += 1
                self.to_pid1.append((rank, self.incarnation[rank], SaidHello(rank, self.held(rank))))
            case GiveUp():
                self.given_up = True

    def leave(self, rank: int, first: RankReport | None = None) -> None:
        """The function of this rank unwinds; it then waits."""
        self.at_work[rank] = self.loading[rank] = self.reads[rank] = None
        for report in (*((first,) if first else ()), LeftRound(rank, self.doing[rank], self.held(rank))):
            self.to_pid1.append((rank, self.incarnation[rank], report))

    def move(self, choice: str, which: int, loses: bool) -> None:
        rank = which % RANKS
        if choice == "to pid1" and self.to_pid1:
            sender, incarnation, report = self.to_pid1[which % len(self.to_pid1)]
            if not loses:  # otherwise it is delivered, and comes again
                self.to_pid1.pop(which % len(self.to_pid1))
            if incarnation == self.incarnation[sender] and self.alive[sender]:
                self.happen(report)
        elif choice == "to rank" and self.to_rank:
            target, incarnation, act = self.to_rank.pop(which % len(self.to_rank))
            if not loses and incarnation == self.incarnation[target] and self.alive[target]:
                self.arrive(target, act)
        elif choice == "retry" and self.alive[rank] and self.at_work[rank] is not None:
            self.leave(rank, AskedRetry(rank, self.doing[rank], "why", loses))
        elif choice == "keep" and self.at_work[rank] is not None and self.loading[rank] is None:
            self.keep(rank, torn=False)
        elif choice == "read" and self.at_work[rank] is not None and self.loading[rank] is not None:
            self.read(rank)
        elif choice == "die" and self.alive[rank]:
            if which % 2 and self.at_work[rank] is not None and self.loading[rank] is None:
                self.keep(rank, torn=True)
            self.stop(rank)
            self.happen(RankProcessEnded(rank, 0 if loses and which % 7 == 0 else 137, "it died"))
        elif choice == "clear" and self.ended:
            self.happen(RankTreeCleared(sorted(self.ended)[which % len(self.ended)]))
        elif choice == "blame":
            self.happen(Blamed(frozenset({rank}) if loses else frozenset(), "it hangs"))
        elif choice == "finish" and self.alive[rank] and self.at_work[rank] is not None:
            self.to_pid1.append((rank, self.incarnation[rank], FunctionFinished(rank, self.doing[rank])))
        elif choice == "settle":
            self.settle()
        elif choice == "wait":
            self.now += which / 10
            moved = {n for n in range(RANKS) if self.at_work[n] == self.rounds.number}
            self.happen(Waited(frozenset(moved)))

    def settle(self) -> None:
        """All messages arrive, in their order."""
        while self.to_pid1 or self.to_rank:
            self.move("to pid1", 0, False)
            self.move("to rank", 0, False)

    def arrive(self, rank: int, act: Act) -> None:
        if isinstance(act, FenceRank) and self.at_work[rank] is not None and act.round == self.doing[rank]:
            self.leave(rank)
        elif isinstance(act, BeginRound) and self.at_work[rank] is None and act.round > self.doing[rank] - 1:
            others = {at for at in self.at_work if at is not None}
            assert others <= {act.round}, "two rounds at work"
            self.at_work[rank] = self.doing[rank] = act.round
            self.begin(rank, act)
        elif isinstance(act, ReleaseSnapshot):
            self.released[rank] = act.round

    # --- snapshots, as the hooks keep them ---

    def stop(self, rank: int) -> None:
        self.alive[rank], self.at_work[rank] = False, None
        self.loading[rank] = self.reads[rank] = self.lent[rank] = None
        self.ended.add(rank)

    def held(self, rank: int) -> tuple[HeldSnapshot, ...]:
        return tuple(HeldSnapshot(one.step, "all") for one in self.slots[rank] if one is not None)

    def begin(self, rank: int, go: BeginRound) -> None:
        step = None if go.restore is None else go.restore.step
        mine = self.slots[rank] = [one if one is not None and one.step == step else None for one in self.slots[rank]]
        self.lent[rank] = oldest(mine) if go.lends else None
        self.steps[rank] = step or 0
        self.loading[rank] = go.restore if go.restore is not None and go.restore.source != rank else None

    def keep(self, rank: int, torn: bool) -> None:
        """A step, and its snapshot.  `torn`: the process dies while it is written."""
        mine = self.slots[rank]
        place = next((n for n in range(2) if mine[n] is None), None)
        place = oldest(mine) if place is None else place
        assert place is not None
        if place == self.lent[rank] and self.released[rank] < self.doing[rank]:
            place = 1 - place
        for reader, read in enumerate(self.reads):
            assert read is None or read[:2] != (rank, place), f"rank {reader} loads what rank {rank} overwrites"
        self.steps[rank] += 1
        self.kept += 1
        mine[place] = None if torn else Slot(self.steps[rank], self.kept)

    def read(self, rank: int) -> None:
        """Begin to load the snapshot, or come to its end."""
        wanted = self.loading[rank]
        assert wanted is not None
        source = self.slots[wanted.source]
        if self.reads[rank] is None:
            places = [n for n in range(2) if (one := source[n]) is not None and one.step == wanted.step]
            assert places, f"rank {rank} does not find the snapshot of rank {wanted.source}"
            place = min(places, key=lambda n: source[n] or Slot(0, 0))
            found = source[place]
            assert found is not None
            self.reads[rank] = wanted.source, place, found
            return
        self.loading[rank] = self.reads[rank] = None
        self.to_pid1.append((rank, self.incarnation[rank], SnapshotRestored(rank, self.doing[rank])))


class Slot(NamedTuple):
    step: int
    number: int


def oldest(slots: list[Slot | None]) -> int | None:
    return min((n for n in range(2) if slots[n] is not None), key=lambda n: slots[n] or Slot(0, 0), default=None)


CHOICES = (
    *("to pid1", "to pid1", "to rank", "to rank", "retry", "die", "clear", "blame", "finish", "wait"),
    *("keep", "keep", "read"),
)
Move = tuple[str, int, bool]
MOVES = st.lists(st.tuples(st.sampled_from(CHOICES), st.integers(0, 210), st.booleans()), max_size=120)
# In which order the processes report for the first time, and how many moves come before each: a rank may retry, leave
# its round, finish or die before the last one has said hello.
HELLOS = st.tuples(st.permutations(range(RANKS)), st.lists(st.integers(0, 3), min_size=RANKS, max_size=RANKS))
Hellos = tuple[list[int], list[int]]


def play(hellos: Hellos, moves: list[Move]) -> Adversary:
    adversary, left = Adversary(), list(moves)
    for rank, before in zip(*hellos, strict=True):
        made, left = left[:before], left[before:]
        for move in made:
            adversary.move(*move)
        waiting = [
            n for n, (sender, _, report) in enumerate(adversary.to_pid1) if (sender, report) == (rank, SaidHello(rank))
        ]
        if waiting:  # otherwise it has arrived already
            adversary.move("to pid1", waiting[0], False)
    for choice, which, loses in left:
        adversary.move(choice, which, loses)
        for member in adversary.rounds.members:
            assert (member.due is None) or adversary.rounds.stage == "meeting" or member.state != "waiting"
    return adversary


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(HELLOS, MOVES)
def test_no_two_rounds_are_at_work_whatever_happens_to_messages(hellos: Hellos, moves: list[Move]) -> None:
    play(hellos, moves)


LENDING = ("keep", "keep", "keep", "read", "read", "read", "to pid1", "to rank", "settle", "settle", "retry")


@pytest.mark.parametrize("seed", range(25))
def test_no_snapshot_is_overwritten_while_another_rank_loads_it(seed: int) -> None:
    """Round 2 begins with the snapshot of one rank, which the others load while it keeps newer ones."""
    adversary, dice = Adversary(), random.Random(seed)
    adversary.settle()
    for rank in (0, 1, 2, 0):
        adversary.keep(rank, torn=False)
    adversary.move("retry", 1, False)
    adversary.settle()
    assert (adversary.at_work, adversary.loading[1]) == ([2] * RANKS, Restore(2, 0, "all"))
    for _ in range(60):
        adversary.move(dice.choice(LENDING), dice.randrange(211), dice.random() < 0.2)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(HELLOS, MOVES)
def test_time_alone_ends_each_recovery(hellos: Hellos, moves: list[Move]) -> None:
    """Whatever was lost: without another message the ranks do not wait for ever."""
    adversary = play(hellos, moves)
    adversary.to_pid1, adversary.to_rank = [], []
    for _ in range(12):
        adversary.now += 100.0
        adversary.happen(Waited())
    assert not adversary.rounds.is_under_way
