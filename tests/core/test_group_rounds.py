"""The rounds that the ranks of several members have in common: what each fault leads to, and an adversary."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.rounds_world import World
from ftrun.core.group.coordinator import decide
from ftrun.core.group.group_rounds import follow
from ftrun.core.group.loss_waits import loss_wait
from ftrun.core.group.membership import GroupShape, Reported, Steady, new_coordinator
from ftrun.core.group.messages import GroupOrder
from ftrun.core.machine.events import (
    GroupOrderReceived,
    PauseRequested,
    RankExited,
    Requester,
    ResumeRequested,
    Started,
)
from ftrun.core.machine.group_member import newest_order
from ftrun.core.machine.restarting import may_start
from ftrun.core.machine.states import Job, Running
from ftrun.core.machine.values import Ledger
from ftrun.core.ranks.rounds import ELSEWHERE
from ftrun.core.ranks.shared import GroupRound, NodeRounds
from ftrun.core.ranks.table import GroupOrdered, RankMember, RecordRecovering, Rounds, Rules
from ftrun.core.ranks.together import node_rounds, step
from ftrun.core.rules.policy import Membership, Policy

TWO = GroupShape(2)


def begun(
    shape: GroupShape = TWO, rungs: frozenset[str] = frozenset({"retry", "rank"}), late: tuple[int, ...] = ()
) -> World:
    world = World(1, shape.size, rungs, shape, late)
    world.begin()
    world.at_ease = True
    return world


def order(world: World) -> GroupRound:
    found = world.coordinator.order.round
    assert found is not None
    return found


def pids(world: World) -> list[int]:
    return [one.pid for _, body in sorted(world.bodies.items()) for one in body.processes.values()]


DIES = [
    *((TWO, victim) for victim in range(4)),
    (GroupShape(3, 2), 2),
    (GroupShape(3, 0, 1), 2),
    (GroupShape(4, 1, 1), 2),
]


@pytest.mark.parametrize(("shape", "victim"), DIES)
def test_a_rank_that_dies_is_replaced_and_the_ranks_of_all_members_begin_the_next_round(
    shape: GroupShape, victim: int
) -> None:
    world = begun(shape)
    before = pids(world)
    world.bodies[victim // 2].rank_dies(victim % 2)
    world.run(1.0)
    assert (order(world).what, order(world).rung, order(world).ranks) == ("leave", "rank", (victim,))
    assert "ended rank" in order(world).why
    world.run(15.0)
    assert (world.works, world.coordinator.epoch, len(world.working)) == (True, 1, shape.most)
    assert order(world) == GroupRound(2, address="host-0", port=order(world).port, step=4, slowest=order(world).slowest)
    assert [after == pid for after, pid in zip(pids(world), before, strict=True)].count(False) == 1


def test_a_retry_of_one_rank_ends_no_process_on_any_member() -> None:
    world = begun(GroupShape(3))
    before = pids(world)
    world.bodies[2].asks(1, False)
    world.run(1.0)
    assert (order(world).rung, order(world).ranks) == ("retry", ())
    world.run(10.0)
    assert (world.works, pids(world), order(world).number) == (True, before, 2)


def test_a_death_on_one_member_explains_the_collective_that_failed_on_the_other() -> None:
    world = begun(rungs=frozenset({"rank"}))  # alone it could not be retried
    before = pids(world)
    world.bodies[1].asks(0, True)
    world.run(0.5)
    world.bodies[0].rank_dies(0)
    world.run(15.0)
    assert (world.works, order(world).number, pids(world)[1:]) == (True, 2, before[1:])


def test_a_rank_that_does_not_leave_is_replaced_and_the_others_wait_for_it() -> None:
    world = begun()
    world.bodies[1].processes[0].ignores = True
    world.bodies[0].rank_dies(0)
    world.run(5.0)
    assert not world.works
    world.run(20.0)
    assert (world.works, world.coordinator.epoch, order(world).number) == (True, 1, 2)


def test_a_container_that_is_lost_in_the_round_that_proves_a_recovery_restarts_all_members() -> None:
    world = begun()
    world.bodies[0].rank_dies(0)
    while order(world).number == 1:
        world.run(0.1)
    world.lose(1, 5.0)
    world.bodies[0].processes[1].works = None  # it waits in a collective, and does not move
    world.run(60.0)
    assert (world.works, world.coordinator.epoch) == (True, 2)


def test_members_with_other_recovery_options_restart_together() -> None:
    world = World(1, 2)
    world.bodies[1].policy = world.bodies[1].policy._replace(recover=frozenset({"retry"}))
    world.at_ease = True
    world.run(10.0)
    assert (world.works, world.coordinator.order.round) == (True, None)
    world.bodies[0].rank_dies(0)
    world.run(30.0)
    assert (world.works, world.coordinator.epoch) == (True, 2)


@pytest.mark.parametrize("lost", [0, 1])
def test_a_container_that_is_lost_and_comes_back_joins_survivors_that_kept_their_memory(lost: int) -> None:
    world = begun(GroupShape(3))
    survivors = {member: [one.pid for one in world.bodies[member].processes.values()] for member in {0, 1, 2} - {lost}}
    world.lose(lost, 5.0)
    world.run(4.0)
    assert not world.works or not world.bodies[lost].alive
    if lost:
        assert (order(world).rung, order(world).ranks) == ("rank", (2, 3))
        assert "member 1 (node-1) is lost" in order(world).why
    world.run(30.0)
    assert (world.works, world.coordinator.epoch, order(world).number) == (True, 1, 2)
    assert order(world).step is None  # the new container has no snapshots
    for member, before in survivors.items():
        assert [one.pid for one in world.bodies[member].processes.values()] == before


def test_a_container_that_does_not_come_back_ends_the_job_after_the_wait_for_it() -> None:
    world = begun()
    world.lose(1, 1000.0)
    world.run(55.0)
    assert not world.ends
    world.run(30.0)
    assert world.ends == [(0, 195)]


def test_a_member_that_is_frozen_ends_the_round_of_the_others_in_time() -> None:
    world = begun()
    world.bodies[1].frozen = True
    world.bodies[0].rank_dies(0)
    world.run(60.0)
    assert world.coordinator.order.what == "stop"
    world.bodies[1].thaws()
    world.settle(60.0)
    assert (world.works, world.coordinator.epoch) == (True, 2)


@pytest.mark.parametrize("shape", [TWO, GroupShape(3, 0, 1)], ids=["all work", "a spare"])
@pytest.mark.parametrize("moment", [0.0, 0.3, 1.0, 2.0, 2.6, 3.0])
def test_a_messenger_that_starts_again_during_a_recovery_forgets_nothing_that_matters(
    moment: float, shape: GroupShape
) -> None:
    world = begun(shape)
    world.bodies[1].rank_dies(0)
    world.run(moment)
    world.forget()
    world.run(20.0)
    assert (world.works, world.coordinator.epoch, order(world).number) == (True, 1, 2)


def ask(world: World, member: int, what: type[PauseRequested] | type[ResumeRequested], *lasting: float | None) -> None:
    world.bodies[member].take(what(world.now, Requester("1", "root", world.now + 9.0), *lasting))
    world.run(1.0)


def paused(world: World) -> list[float | None]:
    """Until when each member is paused, in whole seconds from now; 0: it is not."""
    pauses = [body.job.paused for _, body in sorted(world.bodies.items())]
    return [0 if one is None else one.until and float(round(one.until - world.now)) for one in pauses]


@pytest.mark.parametrize("lasting", [None, 100.0])
def test_a_recovery_is_not_judged_while_the_verdicts_are_paused(lasting: float | None) -> None:
    world = begun()
    world.bodies[1].processes[0].ignores = True
    world.bodies[0].rank_dies(0)
    world.run(0.5)
    ask(world, 0, PauseRequested, lasting)
    world.run(98.0)
    assert (world.works, world.coordinator.order.what, order(world).what) == (False, "run", "leave")
    if lasting is None:
        world.run(1000.0)
        ask(world, 1, ResumeRequested)
    world.run(40.0)
    assert (world.works, world.coordinator.epoch, order(world).number) == (True, 1, 2)


def test_a_recovery_that_nobody_ends_after_a_pause_has_a_limit_again() -> None:
    world = begun()
    world.bodies[1].frozen = True
    world.bodies[0].rank_dies(0)
    ask(world, 0, PauseRequested, None)
    world.run(200.0)
    assert isinstance(world.coordinator.phase, Steady)
    ask(world, 0, ResumeRequested)
    world.run(60.0)
    assert world.coordinator.order.what == "stop"


def test_each_pause_and_its_end_reach_all_members_from_whichever_they_are_asked_for() -> None:
    world = begun()
    for _ in range(2):
        ask(world, 1, PauseRequested, None)
        assert paused(world) == [None, None]
        ask(world, 0, ResumeRequested)
        assert paused(world) == [0, 0]
        ask(world, 0, PauseRequested, None)
        ask(world, 1, ResumeRequested)
        assert paused(world) == [0, 0]
    for member in (1, 1, 0, 1):
        world.run(10.0)
        ask(world, member, PauseRequested, 60.0)
        assert paused(world) == [59.0, 59.0]
    world.run(60.0)
    assert paused(world) == [0, 0]


def test_a_pause_that_is_over_does_not_come_back_with_a_new_coordinator() -> None:
    world = begun(GroupShape(3))
    ask(world, 2, PauseRequested, 10.0)
    world.run(20.0)
    world.coordinator = world._forgotten()
    for body in world.bodies.values():  # the one that asked for it is the last to report
        world.send(body)
        world.run(0.1)
    world.run(1.0)
    assert paused(world) == [0, 0, 0]


SHAPES = [TWO, GroupShape(3), GroupShape(3, 2), GroupShape(3, 0, 1), GroupShape(4, 2, 1), GroupShape(3, 1, 1)]


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 1 << 32), st.sampled_from(SHAPES))
def test_no_two_rounds_are_ever_at_work_at_once_and_the_group_always_works_or_ends(
    seed: int, shape: GroupShape
) -> None:
    late = (shape.size - 1,) if seed % 3 == 0 and not shape.is_fixed else ()
    world = World(seed, shape.size, shape=shape, late=late)
    world.begin()
    for member in {*range(world.size)} - {*world.bodies}:
        world.come(member, "late")
    for _ in range(4):
        world.harm()
        world.run(world.dice.random() * 12)
    world.settle(260.0)
    assert world.works or world.over


@pytest.mark.parametrize(("shape", "then"), [(GroupShape(3, 2), "go on"), (GroupShape(3, 0, 1), "replace")])
def test_what_is_said_about_a_lost_member_is_what_happens(shape: GroupShape, then: str) -> None:
    """But for the rounding of the world, and the moment that the others need to be ready."""
    world = begun(shape)
    world.lose(1, 1000.0)
    told = list[float]()
    while world.coordinator.epoch == 1:
        world.run(0.1)
        if (found := loss_wait(world.coordinator, world.now)) is not None:
            assert (found.members, found.then) == ((1,), then)
            told.append(world.now + found.left)
    assert len(told) > 10
    assert all(abs(one - world.now) < 1.0 for one in told[-10:])
    assert len(world.coordinator.places) == 2


def test_a_spare_takes_the_place_of_a_lost_member_and_its_ranks_recover_with_the_others() -> None:
    """In the second epoch member 2 has the place of member 0, and its rank 0 serves the store."""
    world = begun(GroupShape(3, 0, 1))
    world.bodies[1].rank_dies(0)
    while order(world).number == 1:
        world.run(0.1)
    world.lose(1, 1000.0)
    world.settle(200.0)
    assert (world.works, world.coordinator.epoch, world.coordinator.places) == (True, 2, (0, 2))
    assert order(world) == GroupRound()
    before = pids(world)
    world.bodies[2].rank_dies(1)
    world.run(1.0)
    assert (order(world).rung, order(world).ranks) == ("rank", (3,))
    world.run(15.0)
    assert (world.works, world.coordinator.epoch, order(world).address) == (True, 2, "host-0")
    assert [after == pid for after, pid in zip(pids(world), before, strict=True)].count(False) == 1


def test_a_member_that_comes_while_others_are_in_rounds_is_a_spare() -> None:
    world = begun(GroupShape(3, 2), late=(2,))
    assert order(world) == GroupRound()
    world.come(2, "late")
    world.run(5.0)
    assert (world.coordinator.kinds["spare"], world.bodies[2].processes, world.coordinator.epoch) == (1, {}, 1)
    before = pids(world)
    world.bodies[1].asks(0, False)
    world.run(10.0)
    assert (world.works, pids(world), order(world).number) == (True, before, 2)


def test_a_coordinator_that_knows_nothing_does_at_once_what_the_reports_mean() -> None:
    """No report comes again unless something changes."""
    world = begun()
    world.bodies[1].rank_dies(0)
    world.run(0.0)
    reports = [body.sent for body in world.bodies.values()]
    group = new_coordinator(world.now, GroupShape(2), 60.0, 5.0)
    for one in reports:
        assert one is not None
        group, _ = decide(group, Reported(world.now, one))
    assert group.order.round is not None
    assert (group.order.round.what, group.order.round.ranks) == ("leave", (2,))


def test_a_member_does_not_report_the_rung_of_an_order_as_that_of_its_own_fault() -> None:
    """Otherwise the order would follow from the report, and the report from the order, for ever."""
    world = begun()
    world.bodies[0].rank_dies(0)
    body = world.bodies[0]
    assert body.job.order is not None
    other = body.job.order._replace(round=GroupRound(1, "leave", "retry", why="a retry on the other member"))
    body.take(GroupOrderReceived(world.now, other))
    assert body.sent is not None
    assert body.sent.rounds is not None
    assert (body.sent.rounds.rung, body.sent.rounds.ranks) == ("rank", (0,))


def test_a_member_in_another_round_of_the_same_number_reports_its_own() -> None:
    one, another = (GroupRound(2, "work", "retry", port=port) for port in (7, 8))
    rounds = Rounds((RankMember(0, 0, "waiting"),), "meeting", 1, "retry", shared=True)
    rounds, _ = step(rounds, GroupOrdered(one), 1.0, Rules())
    assert step(rounds, GroupOrdered(another), 2.0, Rules()) == (rounds, ())
    assert node_rounds(rounds, Rules()).adopted == one


def test_of_several_orders_that_have_come_only_the_newest_is_followed() -> None:
    orders = [GroupOrderReceived(1.0, GroupOrder(number, "run")) for number in (1, 2)]
    started = Started(1.0)
    assert newest_order([orders[0], started, orders[1]]) == [started, orders[1]]


def test_who_waits_at_another_round_is_waited_for() -> None:
    group = begun().coordinator
    members = {
        rank: one._replace(report=one.report._replace(rounds=NodeRounds("waiting", number, rungs=("rank", "retry"))))
        for number, (rank, one) in zip((2, 1), sorted(group.members.items()), strict=True)
    }
    group = group._replace(members=members, order=group.order._replace(round=GroupRound(2, "leave", "retry", port=7)))
    followed = follow(group, Steady(), 1.0).group.order.round
    assert followed is not None
    assert (followed.number, followed.what) == (2, "leave")


def test_a_hang_that_no_member_explains_is_held_only_until_all_members_have_answered() -> None:
    world = begun(GroupShape(3))
    for member in (2, 0):
        world.bodies[member].hangs()
    world.run(2.0)
    assert (order(world).what, world.coordinator.epoch) == ("work", 1)  # the third may name a rank
    world.bodies[1].hangs()
    world.run(10.0)
    assert (world.works, world.coordinator.epoch, world.coordinator.order.cause) == (True, 2, "hang")


def test_a_hang_that_the_last_member_explains_is_recovered_without_a_restart() -> None:
    world = begun(GroupShape(3))
    for member in (0, 1):
        world.bodies[member].hangs()
    world.run(2.0)
    world.bodies[2].hangs(5)
    world.run(20.0)
    assert (world.works, world.coordinator.epoch, order(world).number) == (True, 1, 2)


def test_a_hang_that_one_member_alone_has_declared_is_held_for_the_evidence_of_the_others() -> None:
    world = begun(GroupShape(3))
    world.bodies[1].hangs()
    world.run(ELSEWHERE - 1.0)
    assert (order(world).what, world.coordinator.epoch) == ("work", 1)
    world.run(15.0)
    assert (world.works, world.coordinator.epoch) == (True, 2)


@pytest.mark.parametrize("done", [False, True])
def test_ranks_that_move_again_after_a_hang_that_nobody_explains_are_left_alone(done: bool) -> None:
    """As where another member was suspended.  `done`: one has come to its end meanwhile."""
    world = begun(GroupShape(3))
    hung = world.bodies[1]
    hung.hangs()
    world.run(ELSEWHERE / 2)
    for one in hung.processes.values():
        one.stands = None
    world.run(2.0)
    if done:
        hung.end(hung.processes[0])
        hung.take(RankExited(world.now, 0, code=0))
    world.run(ELSEWHERE)
    assert (world.works, world.coordinator.epoch, order(world).what) == (not done, 1, "work")
    assert isinstance(hung.job.phase, Running)
    assert hung.records[-1] == "cleared"


def test_a_member_begins_nothing_before_its_own_ranks_wait() -> None:
    members = (RankMember(0, 0, "waiting"), RankMember(1, 1, "leaving", due=9.0))
    rounds = Rounds(members, "meeting", 1, "retry", shared=True)
    assert step(rounds, GroupOrdered(GroupRound(2, "work", "retry", port=7)), 1.0, Rules()) == (rounds, ())


@pytest.mark.parametrize("ordered", [(1,), None], ids=["after the order to leave", "without an order to leave"])
def test_what_the_round_replaces_is_recorded_before_it_begins(ordered: tuple[int, ...] | None) -> None:
    """The report of a fault on another member may come after the order to leave the round."""
    rounds = Rounds((RankMember(1, 1, "waiting"),), "meeting", 1, "rank", frozenset({1}), shared=True)
    if ordered is not None:
        rounds, acts = step(rounds, GroupOrdered(GroupRound(1, "leave", "rank", ordered)), 1.0, Rules())
        assert acts == ()  # the member has recorded its own fault
    go = GroupRound(2, "work", "rank", (1, 2), "rank 1 died", port=7)
    assert step(rounds, GroupOrdered(go), 2.0, Rules())[1][0] == RecordRecovering("rank", 2, (1, 2), "rank 1 died")
    acts = step(rounds, GroupOrdered(go._replace(ranks=(1,))), 2.0, Rules())[1]
    assert acts
    assert not any(isinstance(act, RecordRecovering) for act in acts)


def test_an_ftrun_that_is_new_starts_its_ranks_only_between_two_rounds() -> None:
    policy = Policy(membership=Membership(group=True, member=1))
    for joining, may in (((), False), ((0,), False), ((1,), True)):
        order = GroupOrder(1, "run", round=GroupRound(2, "leave", "rank", joining=joining))
        assert may_start(Job(), order, policy) == may
        assert not may_start(Job(ran=1, ledger=Ledger(epoch=1)), order, policy)
