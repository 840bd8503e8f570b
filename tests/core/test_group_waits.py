"""Deadlocks over several members are proved where there are some, and never where a process may still run: a simulation
in which processes send, wait, sleep and are looked at in any order, and the same cases by hand."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftrun.core.group.waits import (
    BlockedProcess,
    OutsideLink,
    Proved,
    Waits,
    WaitsAnswer,
    Waves,
    answer,
    dead,
    deadlock,
    take,
    wave_name,
)

NAMES = {0: "node-a", 1: "node-b", 2: "node-c"}


def member(
    number: int,
    *processes: BlockedProcess,
    links: tuple[OutsideLink, ...] = (),
    size: int | None = None,
    wave: str = "x:1",
) -> Waits:
    return Waits(number, 1, wave, f"print-{number}", processes, links, size)


def link(local: str, remote: str, *holders: int, moved: int = 7, closed: bool = True) -> OutsideLink:
    return OutsideLink(local, remote, holders, moved, closed)


def pair(**changed: object) -> dict[int, Waits]:
    """Rank 0 waits in a collective for rank 1, which waits for a lock; `changed`: of the end at rank 1."""
    zero = BlockedProcess(10, 0, "waits in all_reduce at train.py:9", "all_reduce", links=(0,))
    one = BlockedProcess(20, 1, "waits for a lock at train.py:5", links=(0,))
    end = link("b:2", "a:1", 0)._replace(**changed)  # type: ignore[arg-type]
    return {0: member(0, zero, links=(link("a:1", "b:2", 0),)), 1: member(1, one, links=(end,))}


def test_ranks_that_wait_for_each_other_over_two_members_are_a_deadlock_with_its_cause() -> None:
    found = deadlock(pair(), NAMES)
    assert found is not None
    assert (found.member, found.rank, found.pid) == (1, 1, 20)
    assert found.fingerprints == {0: "print-0", 1: "print-1"}
    assert found.mechanism == (
        "deadlock over nodes: rank 1 on node-b waits for a lock at train.py:5, and "
        "rank 0 on node-a waits in all_reduce at train.py:9, each of which needs the other"
    )


@pytest.mark.parametrize(
    "end",
    [
        {"closed": False},  # data is on its way, or somebody else has the connection open
        {"moved": 10},  # one end has sent what the other has not received
        {"remote": "a:9"},  # another connection
    ],
    ids=["open", "moved", "another"],
)
def test_a_connection_whose_ends_do_not_match_proves_nothing(end: dict[str, object]) -> None:
    assert deadlock(pair(**end), NAMES) is None


def test_a_connection_that_a_process_that_may_run_has_open_too_proves_nothing() -> None:
    members = pair()
    waits = members[1]._replace(processes=(*members[1].processes, BlockedProcess(21, None, needs=(), links=(1,))))
    shared = waits.links[0]._replace(holders=(0, 1))
    members[1] = waits._replace(links=(shared, link("b:3", "elsewhere:80", 1)))
    assert deadlock(members, NAMES) is None


@pytest.mark.parametrize("both", [True, False], ids=["at both ends", "at one end"])
def test_what_two_launchers_tell_each_other_leaves_a_wait_closed(both: bool) -> None:
    """Each look of a member sees another number of bytes, and a message on its way now and then."""
    members = pair()
    for number, waits in members.items():
        launcher = BlockedProcess(30 + number, None, "waits for a child", needs=(0,), links=(1,))
        ends = ("a:3", "b:4") if number == 0 else ("b:4", "a:3")
        told = OutsideLink(*ends, (1,), 1000 * number, closed=not number, launchers=both or number == 0)
        rank = waits.processes[0]._replace(needs=(1,))
        members[number] = waits._replace(processes=(rank, launcher), links=(*waits.links, told))
    assert (deadlock(members, NAMES) is not None) == both


def test_a_member_that_has_not_answered_and_one_that_moves_leave_a_wait_open() -> None:
    members = pair()
    assert deadlock({0: members[0]}, NAMES) is None
    assert deadlock({0: members[0], 1: Waits(1, 1, "x:1", why="rank 1 is running")}, NAMES) is None


def test_two_members_with_the_same_addresses_prove_nothing() -> None:
    members = pair()
    members[2] = members[1]._replace(member=2, fingerprint="print-2")
    assert deadlock(members, NAMES) is None


def test_a_deadlock_within_one_member_is_left_to_that_member() -> None:
    alone = member(1, BlockedProcess(20, 1, needs=(1,)), BlockedProcess(21, None, needs=(0,)))
    assert set(dead({1: alone})) == {(1, 0), (1, 1)}
    assert deadlock({1: alone}, NAMES) is None


def listening(*ranks: int, size: int = 2) -> dict[int, Waits]:
    found = pair()
    found = {n: w._replace(size=size) for n, w in found.items()}
    zero = found[0].processes[0]._replace(listens=True)
    found[0] = found[0]._replace(processes=(zero,))
    return found


def test_a_listening_rank_is_closed_only_if_all_ranks_of_the_job_are_known() -> None:
    assert deadlock(listening(), NAMES) is not None
    assert deadlock(listening(size=3), NAMES) is None


def test_ranks_in_different_collectives_are_a_mismatch() -> None:
    members = pair()
    other = BlockedProcess(20, 1, "waits in barrier at train.py:5", "barrier", links=(0,))
    members[1] = members[1]._replace(processes=(other,))
    found = deadlock(members, NAMES)
    assert found is not None
    assert found.mechanism == (
        "collective mismatch over nodes: rank 0 on node-a waits in all_reduce at train.py:9, "
        "rank 1 on node-b waits in barrier at train.py:5"
    )


def test_a_stopped_rank_is_the_cause() -> None:
    members = pair()
    members[1] = members[1]._replace(processes=(BlockedProcess(20, 1, "waits for SIGCONT", stopped=True, links=(0,)),))
    found = deadlock(members, NAMES)
    assert found is not None
    assert found.mechanism.startswith("rank 1 on node-b is stopped by SIGSTOP, and rank 0 on node-a waits in")


# --- waves ------------------------------------------------------------------------------------------------------------


def taken(waves: Waves, members: dict[int, Waits]) -> Waves:
    for waits in members.values():
        waves = take(waves, waits._replace(wave=wave_name(waves, "x")), "x", NAMES)
    return waves


def test_a_deadlock_is_proved_by_two_waves_with_the_same_answers() -> None:
    first = taken(Waves(1), pair())
    assert first.number == 2
    assert answer(first, "x", 0) == WaitsAnswer(1, "x:2", "print-0")
    assert answer(first, "x", 2).suspected == ""
    second = taken(first, pair())
    proved = answer(second, "x", 1).proved
    assert isinstance(proved, Proved)
    assert (proved.own, proved.member, proved.rank) == ("print-1", 1, 1)
    assert proved.all == answer(second, "x", 0).proved.all  # type: ignore[union-attr]


def test_a_late_answer_to_an_earlier_wave_counts_for_nothing() -> None:
    first = taken(Waves(1), pair())
    for wave, epoch in (("x:1", 1), ("y:2", 1), ("x:2", 2)):
        assert take(first, pair()[0]._replace(wave=wave, epoch=epoch), "x", NAMES) is first


def test_a_proof_is_dropped_when_a_member_has_moved() -> None:
    proved = taken(taken(Waves(1), pair()), pair())
    assert proved.deadlock is not None
    again = take(proved, Waits(0, 1, wave_name(proved, "x"), why="rank 0 is running"), "x", NAMES)
    assert again.deadlock is None
    assert again.before is None


# --- the simulation ---------------------------------------------------------------------------------------------------


class Process:
    """One process of a member.  `awaits`: the others of which a message ends its wait; None: it runs."""

    def __init__(self, member: int) -> None:
        self.member, self.runs = member, 0
        self.awaits: frozenset[int] | None = None
        self.timer = False


class Simulation:
    """Processes on several members, of which each is connected with each.  A message takes its time, and may be as
    small as a byte."""

    def __init__(self, random: Random, members: int) -> None:
        self.random = random
        self.processes = [Process(n % members) for n in range(members + random.randrange(2))]
        self.sent: dict[tuple[int, int], int] = {}
        self.received: dict[tuple[int, int], int] = {}
        self.waves, self.known = Waves(1), ["" for _ in range(members)]
        self.unsent: list[Waits] = []

    def on_its_way(self, sender: int, receiver: int) -> int:
        way = sender, receiver
        return self.sent.get(way, 0) - self.received.get(way, 0)

    def step(self) -> None:
        random, number = self.random, self.random.randrange(len(self.processes))
        process = self.processes[number]
        match random.randrange(6):
            case 0 if process.awaits is None:
                receiver = random.choice([n for n in range(len(self.processes)) if n != number])
                way = number, receiver
                self.sent[way] = self.sent.get(way, 0) + random.choice((1, 1, 2, 50))
            case 1 if process.awaits is None:
                others = [n for n in range(len(self.processes)) if n != number]
                process.awaits = frozenset(random.sample(others, random.randint(1, len(others))))
                process.timer = random.random() < 0.1
            case 2 if process.timer and process.awaits is not None:
                process.awaits, process.timer = None, False
                process.runs += 1
            case 3:
                sender = random.choice([n for n in range(len(self.processes)) if n != number])
                if self.on_its_way(sender, number):
                    self.received[sender, number] = self.sent[sender, number]
                    if process.awaits is not None and sender in process.awaits:
                        process.awaits, process.timer = None, False
                        process.runs += 1
            case 4:
                self.look(process.member)
            case 5 if self.unsent:
                waits = self.unsent.pop(random.randrange(len(self.unsent)))
                self.waves = take(self.waves, waits, "x", {})
        if random.random() < 0.3:
            self.known[random.randrange(len(self.known))] = wave_name(self.waves, "x")

    def look(self, member: int) -> None:
        """As a member sees its own processes, and its own ends of the connections."""
        own = [n for n, process in enumerate(self.processes) if process.member == member]
        blocked = [n for n in own if self.processes[n].awaits is not None and not self.processes[n].timer]
        links, at, processes = list[OutsideLink](), dict[tuple[int, int], int](), list[BlockedProcess]()
        for n in own:
            for other, process in enumerate(self.processes):
                if process.member != member:
                    moved = self.sent.get((n, other), 0) - self.on_its_way(n, other) + self.received.get((other, n), 0)
                    held, closed = tuple(blocked.index(n) for _ in "x" if n in blocked), not self.on_its_way(n, other)
                    at[n, other] = len(links)
                    links.append(OutsideLink(f"{n}-{other}", f"{other}-{n}", held, moved, closed and n in blocked))
        alive = set(own) - set(blocked)
        for n in blocked:
            awaits = self.processes[n].awaits or frozenset()
            needs = [o for o in awaits if self.processes[o].member == member]
            if any(o in alive or self.on_its_way(o, n) for o in needs):
                alive.add(n)
                continue
        for n in blocked:
            others = sorted(self.processes[n].awaits or ())
            inside = [o for o in others if self.processes[o].member == member]
            listed = tuple(blocked.index(o) for o in inside if o in blocked)
            # One that the own member can wake is not closed: it is given a connection that leads nowhere.
            doubt = n in alive or any(o in alive for o in inside)
            found = [at[n, o] for o in others if self.processes[o].member != member]
            if doubt:
                found.append(len(links))
                links.append(OutsideLink("nowhere", "else"))
            processes.append(BlockedProcess(n, n, needs=listed, links=tuple(found)))
        state = repr([(n, self.processes[n].runs) for n in blocked] + [repr(links)])
        self.unsent.append(Waits(member, 1, self.known[member], state, tuple(processes), tuple(links)))

    def may_run(self) -> set[int]:
        """The truth."""
        found = {n for n, process in enumerate(self.processes) if process.awaits is None or process.timer}
        while True:
            more = {
                n
                for n, process in enumerate(self.processes)
                if n not in found and any(o in found or self.on_its_way(o, n) for o in process.awaits or ())
            }
            if not more:
                return found
            found |= more


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 32), st.integers(2, 3))
def test_no_process_that_may_run_is_ever_part_of_a_deadlock(seed: int, members: int) -> None:
    simulation = Simulation(Random(seed), members)
    for _ in range(400):
        simulation.step()
        found = simulation.waves.deadlock
        if found is not None:
            assert found.pid not in simulation.may_run()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1 << 32), st.integers(2, 3))
def test_a_deadlock_over_members_is_found_once_all_have_looked_twice(seed: int, members: int) -> None:
    simulation = Simulation(Random(seed), members)
    while any(process.awaits is None or process.timer for process in simulation.processes):
        simulation.step()
    for _ in range(2000):
        if simulation.may_run():
            return
        simulation.step()
    for _ in range(3):
        simulation.known = [wave_name(simulation.waves, "x")] * members
        simulation.unsent = []
        for number in range(members):
            simulation.look(number)
        for waits in simulation.unsent:
            simulation.waves = take(simulation.waves, waits, "x", {})
    alone = any(
        all(simulation.processes[o].member == number for n in found for o in simulation.processes[n].awaits or ())
        for number in range(members)
        if (found := [n for n, process in enumerate(simulation.processes) if process.member == number])
    )
    assert simulation.waves.deadlock is not None or alone  # a member may find its own deadlock alone
