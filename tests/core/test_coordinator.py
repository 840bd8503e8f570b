"""The coordinator of a group, rule by rule."""

from typing import Any

import pytest

from ftrun.core.group.coordinator import decide
from ftrun.core.group.loss_waits import loss_wait
from ftrun.core.group.losses import LossWait, NodeLost, NodeNote
from ftrun.core.group.membership import (
    LATE,
    Coordinator,
    Draining,
    Ended,
    FolderProved,
    Gathering,
    GroupDeadlineReached,
    GroupEffects,
    GroupEvent,
    GroupShape,
    JoiningHindered,
    LifeEnded,
    RefuseMember,
    Reported,
    SendOrder,
    StarterDied,
    Steady,
    new_coordinator,
)
from ftrun.core.group.messages import (
    SILENCE,
    EpochRun,
    GroupEnd,
    GroupOrder,
    Life,
    MemberReport,
    NodeFailure,
    Pulse,
    Starter,
)
from ftrun.core.group.root_cause import MemberLost
from ftrun.core.ranks.shared import GroupRound, NodeRounds

WAIT, DRAIN = 600.0, 10.0
FENCE = SILENCE + WAIT + LATE + DRAIN


class Group:
    """Drives `decide`; members say what they are made to say, with a `seq` that rises."""

    def __init__(self, size: int = 3, now: float = 0.0, shape: GroupShape | None = None) -> None:
        self.coordinator: Coordinator = new_coordinator(now, shape or GroupShape(size), WAIT, DRAIN)
        self.now, self.seq, self.size = now, 0, size
        self.effects: list[Any] = []
        self.ran: dict[str, int] = {}

    def event(self, event: GroupEvent) -> GroupEffects:
        self.coordinator, effects = decide(self.coordinator, event)
        self.effects += effects
        return effects

    def reports(self, rank: int, state: Any, epoch: int | None = None, life: str = "", **more: Any) -> GroupEffects:
        self.seq += 1
        pulses, life = more.pop("pulses", {}), life or f"life{rank}"
        if state not in ("ready", "left"):
            self.ran[life] = self.coordinator.epoch if epoch is None else epoch
        more.setdefault("ran", self.ran.get(life, 0))
        report = MemberReport(
            rank, life, self.seq, more.pop("node", f"node-{rank}"), more.pop("boot", f"boot{rank}"),
            self.coordinator.epoch if epoch is None else epoch, state, **more,
        )  # fmt: skip
        return self.event(Reported(self.now, report, pulses))

    def ready(self, *ranks: int) -> None:
        for rank in ranks:
            self.reports(rank, "ready")

    def all(self, state: Any, epoch: int | None = None, **more: Any) -> None:
        for rank in range(self.size):
            self.reports(rank, state, epoch, **more)

    def gone(self, rank: int, closed: bool = True, life: str = "", **times: Any) -> GroupEffects:
        why = "its connection closed"
        return self.event(MemberLost(self.now, rank, life or f"life{rank}", why, closed, **times))

    def at(self, now: float) -> GroupEffects:
        self.now = now
        return self.event(GroupDeadlineReached(now))

    def due(self) -> GroupEffects:
        assert self.coordinator.deadline is not None
        return self.at(self.coordinator.deadline)

    @property
    def order(self) -> GroupOrder:
        return self.coordinator.order

    @property
    def places(self) -> Any:
        return self.order.places

    @property
    def did(self) -> Any:
        return self.order.what, self.order.epoch, self.order.cause

    @property
    def end(self) -> tuple[int, str] | None:
        return self.order.end and (self.order.end.code, self.order.end.why)

    @property
    def phase(self) -> type:
        return type(self.coordinator.phase)


def running(size: int = 3, **shape: Any) -> Group:
    """All but the spares run epoch 1."""
    group = Group(size, shape=GroupShape(size, **shape))
    group.all("ready", 0)
    for rank in range(size):
        group.reports(rank, "running" if rank in group.coordinator.placed else "ready", 1)
    group.now = 100.0
    return group


def drained() -> Group:
    """All but rank 1, which fell, are ready again."""
    group = running()
    group.reports(1, "stopping", failure=NodeFailure("hang", "no step for 60s", 0.0, 9, 40), counts=(1, 0, 0))
    group.ready(0, 2)
    return group


EARLIER, LATER = Starter("zero", "node-0", "boot0", "10.0.0.1", 4000, True), Starter("new", "node-9", "boot9")


def replaced(size: int = 3, shape: GroupShape | None = None) -> Group:
    """Member 0 is new, and the others name the one that has started their epoch."""
    group = Group(size, shape=shape)
    group.coordinator = group.coordinator._replace(own=LATER)
    group.reports(0, "ready", 0, life="new")
    for rank in range(1, size):
        group.reports(rank, "running", 1, starter=EARLIER)
    for rank in range(1, size):
        group.reports(rank, "ready", 1, starter=EARLIER)
    group.reports(0, "ready", 1, life="new")
    return group


# --- a member 0 that is replaced ------------------------------------------------------------------------------------


def test_a_new_member_0_starts_once_the_lease_of_the_earlier_one_is_over() -> None:
    group = replaced()
    assert group.did == ("stop", 1, "peer")
    assert [starter for starter, _ in group.coordinator.starters.values()] == [EARLIER]
    assert "the earlier member 0 (on node-0) may still be at work" in group.order.why
    assert loss_wait(group.coordinator, group.now) == LossWait((0,), 1, FENCE, "start")
    group.at(FENCE - 0.1)
    assert group.did == ("stop", 1, "peer")
    group.at(FENCE)
    assert group.did == ("run", 2, "peer")


def test_it_starts_at_once_where_the_earlier_one_is_certainly_dead_or_has_left() -> None:
    group = replaced()
    group.event(StarterDied(group.now, "zero"))
    assert (group.did, group.coordinator.starters) == (("run", 2, "peer"), {})
    group = replaced()
    group.reports(1, "ready", 1, starter=EARLIER._replace(left=True))
    assert group.did == ("run", 2, "peer")


OF_1 = Life(1, "life1", "boot1", "10.0.0.1", 4001, True)


def lost_together(
    lives: tuple[Life, ...] = (OF_1,), state: str = "ready", ran: int = 1, shape: GroupShape | None = None
) -> Group:
    """Members 0 and 1 are new, and member 2 alone knows the epoch."""
    group = Group(3, shape=shape)
    group.coordinator = group.coordinator._replace(own=LATER)
    group.reports(0, "ready", 0, life="new")
    group.reports(2, state, 1, starter=EARLIER, lives=lives, ran=ran)
    group.reports(1, "ready", 0, life="another")
    group.reports(2, "ready", 1, starter=EARLIER, lives=lives, ran=ran)
    for rank, life in ((0, "new"), (1, "another")):
        group.reports(rank, "ready", 1, life=life)
    return group


@pytest.mark.parametrize("state", ["running", "ready"])
def test_members_that_are_lost_together_with_member_0_start_at_once_if_all_are_certainly_dead(state: str) -> None:
    group = lost_together(state=state)
    assert group.did[:2] == ("stop", 1)
    wait = loss_wait(group.coordinator, group.now)
    assert wait == LossWait((0, 1), 2, 2 * FENCE - LATE - DRAIN, "start")
    group.event(StarterDied(group.now, "zero"))
    assert loss_wait(group.coordinator, group.now) == LossWait((1,), 1, FENCE, "start")
    group.event(LifeEnded(group.now, 1, "yet another"))
    assert group.did[:2] == ("stop", 1)
    group.event(LifeEnded(group.now, 1, "life1"))
    assert group.did[:2] == ("run", 2)


@pytest.mark.parametrize("more", [{"lives": ()}, {"ran": 0}])
def test_one_that_is_not_known_is_waited_for(more: Any) -> None:
    group = lost_together(**more)
    group.event(StarterDied(group.now, "zero"))
    group.event(LifeEnded(group.now, 1, "life1"))
    assert group.did[:2] == ("stop", 1)
    group.at(FENCE)
    assert group.did[:2] == ("run", 2)


@pytest.mark.parametrize("known", [True, False])
def test_where_fewer_may_go_on_it_has_to_be_certain_and_the_end_says_what_was_not(known: bool) -> None:
    group = lost_together((OF_1,) if known else (), shape=GroupShape(3, 2))
    group.event(StarterDied(group.now, "zero"))
    group.event(LifeEnded(group.now, 1, "life1"))
    if known:
        assert group.did[:2] == ("run", 2)
        return
    group.due()
    group.due()  # the end of the fence, and then of the time to be ready
    assert group.end is not None
    assert group.end[0] == 195
    assert "it was not certain that the processes of members 1, 2 that ran epoch 1 do not go on" in group.end[1]


def test_member_0_starts_last() -> None:
    """One that was replaced, and does not know, starts nothing, since its members are elsewhere."""
    group = Group()
    group.all("ready", 0)
    assert group.did == ("run", 1, "first")
    group.reports(1, "running", 1)
    assert group.coordinator.own_order is None
    group.reports(2, "running", 1)
    assert group.coordinator.own_order == group.order


@pytest.mark.parametrize(("here", "starts"), [((1, 2, 3), True), ((1, 2), False)])
def test_with_fewer_members_a_new_member_0_needs_more_than_half(here: tuple[int, ...], starts: bool) -> None:
    """The others may be with the earlier one, which goes on with them."""
    group = replaced(5, GroupShape(5, 1))
    for rank in {1, 2, 3, 4} - set(here):
        group.gone(rank, closed=False, last_message=0.0)
    group.at(2 * FENCE)
    assert (group.order.what == "run") == starts


@pytest.mark.parametrize(("shape", "here", "proved"), [
    (GroupShape(2, 1), 1, False), (GroupShape(4, 2), 2, False),
    (GroupShape(2, 1), 1, True), (GroupShape(3, 2), 2, False),
])  # fmt: skip
def test_a_coordinator_whose_folder_may_not_be_that_of_the_others_begins_nothing_that_they_may_have_begun(
    shape: GroupShape, here: int, proved: bool
) -> None:
    group = Group(shape.size, shape=shape)
    group.coordinator = new_coordinator(0.0, shape, WAIT, DRAIN, folder_unproved=True)
    group.ready(*range(here))
    if proved:
        group.event(FolderProved(group.now))
    group.at(WAIT)
    if not proved and shape.size - here >= shape.least:
        assert group.end is not None
        assert group.end[0] == 195
        assert "nothing shows that the state dir here is the one that they share" in group.end[1]
        return
    group.at(2 * FENCE)  # nobody of an epoch that is not known here has worked for so long without a member 0
    assert group.did[:2] == ("run", 1)


# --- the start ------------------------------------------------------------------------------------------------------


def test_nothing_starts_before_all_are_ready() -> None:
    group = Group()
    assert (group.phase, group.did) == (Gathering, ("wait", 0, None))
    assert group.reports(0, "ready", 0) == group.reports(1, "stopping", 0) == group.reports(2, "ready", 0) == ()
    effects = group.reports(1, "ready", 0)
    assert effects == (NodeNote("all 3 members start epoch 1"), SendOrder(group.order))
    assert (group.phase, group.did) == (Steady, ("run", 1, "first"))


def test_a_broken_connection_yields_to_a_later_failure_that_is_none() -> None:
    """As with a process that needs long to exit after its exception."""
    group = running()
    broken = NodeFailure("failure", "rank 0: ConnectionResetError", rank=0, symptom=True)
    group.reports(0, "stopping", failure=broken)
    assert group.did == ("stop", 1, None)
    group.now += 1.0
    group.reports(1, "fallen")
    group.reports(0, "ready", failure=broken._replace(age=1.0))
    group.reports(2, "stopping", failure=broken._replace(why="rank 2: ConnectionResetError", rank=2))
    assert group.did == ("stop", 1, None)  # the cause of member 1's end is still open
    group.now += 1.0
    group.reports(1, "stopping", failure=NodeFailure("failure", "rank 1: ValueError: broken data", rank=1))
    assert group.did == ("stop", 1, "failure")
    assert (group.order.why, group.order.rank) == ("member 1 (node-1): rank 1: ValueError: broken data", 1)


def test_the_first_of_several_broken_connections_is_the_cause_where_nothing_else_is_known() -> None:
    group = running()
    for rank in (2, 0, 1):
        group.reports(rank, "stopping", failure=NodeFailure("failure", f"rank {rank} lost it", rank=rank, symptom=True))
        group.now += 1.0
    assert (group.order.cause, group.order.rank) == ("failure", 2)


def test_whoever_did_not_join_start_or_get_ready_in_time_is_named() -> None:
    group = Group(30)
    group.reports(4, "ready", 0)
    group.at(WAIT)
    assert group.end == (195, "members 0, 1, 2, 3, 5, 6, 7, 8, 9, 10 and 19 more did not join within 10m")
    group = Group()
    group.all("ready", 0)
    assert group.reports(0, "running", 1) == group.reports(0, "running", 1) == ()
    group.now = 5.0
    assert group.coordinator.deadline == WAIT
    group.due()
    assert group.end == (195, "members 1, 2 did not start within 10m")
    group = Group()
    group.ready(0, 1)
    group.reports(2, "stopping", 0)
    group.at(WAIT)
    assert (group.end, group.order.node) == ((195, "member 2 (node-2) was not ready within 10m"), "node-2")


# --- failures -------------------------------------------------------------------------------------------------------


def test_a_hang_stops_all_at_once_and_starts_all_when_all_are_ready() -> None:
    group = running()
    group.reports(1, "stopping", failure=NodeFailure("hang", "no step for 60s", 0.0, 9, 40), counts=(1, 0, 0))
    assert (group.phase, group.did) == (Draining, ("stop", 1, None))
    assert group.order.why == "member 1 (node-1): no step for 60s"
    group.reports(0, "stopping")
    group.reports(2, "stopping")
    assert group.did == ("stop", 1, "hang")
    assert (group.order.node, group.order.rank, group.order.step) == ("node-1", 9, 40)
    group.all("ready", failure=NodeFailure("hang", "no step for 60s"), counts=(1, 0, 0))
    assert (group.phase, group.did, group.order.counts) == (Steady, ("run", 2, "hang"), (1, 0, 0))


def test_the_first_failure_decides() -> None:
    group = running()
    group.reports(0, "fallen")
    group.reports(2, "stopping", failure=NodeFailure("fault", "Xid 79", 3.0), counts=(0, 1, 0))
    group.reports(1, "ready")
    assert group.order.cause is None
    group.now += 2
    group.reports(
        0, "ending", failure=NodeFailure("failure", "exit code 1", 2.0), end=GroupEnd(93, "failure-limit", "again")
    )
    assert group.did == ("stop", 1, "fault")
    assert group.order.why == "member 2 (node-2): Xid 79"


def test_a_verdict_waits_for_earlier_failures() -> None:
    group = running()
    group.reports(
        0, "ending", failure=NodeFailure("failure", "exit code 1", 1.0), end=GroupEnd(1, "failed", "exit code 1")
    )
    assert group.did == ("stop", 1, None)
    group.reports(1, "stopping")
    assert group.did == ("stop", 1, None)
    group.reports(2, "stopping")
    assert (group.phase, group.end) == (Ended, (1, "exit code 1"))
    assert group.order.end is not None
    assert group.order.end.node == "node-0"


def test_a_failure_that_follows_a_loss_is_no_verdict() -> None:
    group = running()
    group.reports(
        0, "ending", failure=NodeFailure("failure", "exit code 1", 0.0), end=GroupEnd(1, "failed", "exit code 1")
    )
    group.reports(2, "ready")
    group.now += SILENCE
    group.gone(1, closed=False, last_message=99.0)
    assert (group.phase, group.did) == (Draining, ("stop", 1, "peer"))


def test_a_loss_stays_the_cause_when_the_member_is_back_early() -> None:
    group = running()
    group.gone(1)
    group.now += 1
    group.reports(1, "ready", 0, "new", boot="boot1")
    group.reports(1, "ready", 1, "new", boot="boot1")
    group.reports(
        0, "ending", failure=NodeFailure("failure", "exit code 1", 0.0), end=GroupEnd(1, "failed", "exit code 1")
    )
    group.reports(2, "ready")
    assert group.did == ("stop", 1, "peer")


@pytest.mark.parametrize("code", [196, 197, 125])
@pytest.mark.parametrize("state", ["ending", "left"])
def test_a_fault_of_a_node_ends_all_at_once(code: int, state: str) -> None:
    group = drained()
    group.reports(2, state, end=GroupEnd(code, "v", "a device"))
    assert (group.phase, group.end) == (Ended, (code, "a device"))
    assert group.order.end is not None
    assert group.order.end.node == "node-2"


@pytest.mark.parametrize("shape", [{}, {"replaces": True}, {"least": 2}, {"spares": 1}])
@pytest.mark.parametrize("state", ["ending", "left"])
def test_a_fault_of_the_user_ends_all_also_where_members_are_replaced(shape: dict[str, Any], state: str) -> None:
    """ModelArts: it degrades to unconditional job-level rescheduling, which ends all pods."""
    group = running(**shape)
    group.reports(1, state, end=GroupEnd(196, "user-fault-limit", "a device"))
    assert (group.phase, group.end) == (Ended, (196, "a device"))
    assert group.order.end is not None
    assert group.order.end.node == "node-1"


# --- counts and progress --------------------------------------------------------------------------------------------


def test_progress_resets_the_counts() -> None:
    group = running()
    (effect,) = group.reports(2, "running", progressed=True)
    assert isinstance(effect, SendOrder)
    assert effect.order.progressed
    assert group.reports(1, "running", progressed=True) == ()
    group.reports(1, "stopping", failure=NodeFailure("fault", "Xid 79"), counts=(1, 3, 0))
    group.all("ready", failure=NodeFailure("fault", "Xid 79"), counts=(1, 3, 0))
    assert (group.order.counts, group.order.progressed) == ((0, 1, 0), False)
    group.all("running")
    assert not group.order.progressed


def test_a_requested_restart_keeps_the_counts() -> None:
    group = drained()
    group.reports(1, "ready", failure=NodeFailure("hang", "no step"), counts=(1, 0, 0))
    group.all("running")
    group.reports(0, "stopping", failure=NodeFailure("manual", "ftctl restart"), counts=(7, 7, 7))
    group.all("ready", failure=NodeFailure("manual", "ftctl restart"))
    assert (group.did, group.order.counts) == (("run", 3, "manual"), (1, 0, 0))


@pytest.mark.parametrize("what", ["devices_unchanged", "devices_waited"])
def test_still_holds_when_all_members_are_still(what: str) -> None:
    group, still = running(), dict[str, Any]({what: True})
    assert group.reports(0, "running", **still) == group.reports(1, "running", **still) == ()
    group.reports(2, "running", **still)
    assert getattr(group.order, what)
    group.reports(1, "running")
    assert not getattr(group.order, what)
    group.reports(1, "done")
    assert getattr(group.order, what), "a member that has ended does nothing"


def test_a_pause_goes_to_all_members() -> None:
    group = running()
    group.reports(1, "running", paused=float("inf"))
    assert (group.phase, group.order.paused) == (Steady, float("inf"))
    assert group.reports(0, "running") == ()
    group.reports(1, "running", paused=0.0)
    assert group.order.paused == 0.0


# --- the end --------------------------------------------------------------------------------------------------------


def test_success_needs_all_members() -> None:
    group = running()
    assert group.reports(0, "done", end=GroupEnd(0, "succeeded", "")) == group.reports(1, "done") == ()
    group.reports(2, "done")
    assert (group.phase, group.end) == (Ended, (0, "all members have succeeded"))
    assert group.coordinator.deadline is None


def test_the_end_because_of_a_missing_member_is_called_a_loss() -> None:
    group = running()
    group.reports(0, "left", end=GroupEnd(143, "stopped", "", asked=True))
    assert (group.order.what, group.order.cause) == ("end", "peer")


@pytest.mark.parametrize(
    "end", [GroupEnd(195, "hang-limit", "x"), GroupEnd(93, "failure-limit", "x"), GroupEnd(94, "no", "x")]
)
def test_the_verdict_of_a_member_that_left_ends_all(end: GroupEnd) -> None:
    group = running()
    group.reports(2, "left", end=end)
    assert group.end == (end.code, "x")


@pytest.mark.parametrize("state", ["ending", "left"])
def test_a_member_without_contact_to_rank_0_is_lost_and_decides_nothing(state: str) -> None:
    """The others keep their containers, and wait for it."""
    group, cut = running(), GroupEnd(195, "hang-limit", "no reply", cut=True)
    group.reports(1, state, failure=NodeFailure("peer", "no reply"), end=cut)
    group.ready(0, 2)
    if state == "ending":
        assert group.did == ("stop", 1, "peer")
        group.reports(1, "left", end=cut)
    assert (group.phase, group.did) == (Draining, ("stop", 1, "peer"))
    group.reports(1, "ready", 1, "new", boot="other")  # it reports itself that its command is dead
    assert group.did == ("run", 2, "peer")


def test_the_end_of_rank_0_ends_all() -> None:
    group = running()
    group.reports(0, "left", end=GroupEnd(143, "stopped", "asked", asked=True))
    why = "member 0 (node-0) has left, and without it the group has no rank 0"
    assert group.order.end == GroupEnd(195, "hang-limit", why, "node-0", asked=True, loss=True)
    group = Group()
    group.reports(0, "left", 4, end=GroupEnd(0, "succeeded", "all"))
    assert group.end == (0, "all")


# --- lost members ---------------------------------------------------------------------------------------------------


def test_a_lost_member_stops_all_and_is_waited_for() -> None:
    group = running()
    group.gone(1)
    assert (group.phase, group.did, group.coordinator.deadline) == (Draining, ("stop", 1, None), 700.0)
    assert group.order.why == "member 1 (node-1) is lost: its connection closed"
    group.ready(0, 2)
    assert group.did == ("stop", 1, "peer")
    group.now = 650.0
    group.reports(1, "ready", 0, "new", boot="boot1")
    assert group.did == ("stop", 1, "peer")
    group.reports(1, "ready", 1, "new", boot="boot1")
    assert group.did == ("run", 2, "peer")


def test_a_member_that_is_not_back_in_time_is_named() -> None:
    group = running()
    group.gone(1)
    group.ready(0, 2)
    group.due()
    assert group.end == (195, "member 1 (node-1) is lost and was not back within 10m")
    assert group.order.node == "node-1"


def test_a_member_that_is_lost_again_is_waited_for_as_long_as_before_but_not_for_ever() -> None:
    group = running()
    group.gone(1)
    for lost_at, until in ((400.0, 1000.0), (900.0, 1500.0), (1400.0, 1900.0), (1800.0, 1900.0)):
        group.now = lost_at
        group.reports(1, "ready", 0, life := f"life-{lost_at}")
        group.gone(1, life=life)
        assert group.coordinator.deadline == until
    group.ready(0, 2)
    group.due()
    assert group.end == (195, "member 1 (node-1) is lost, and for 30m members were lost again and again")


def test_each_lost_member_is_waited_for_from_its_own_loss() -> None:
    group = running(4, least=2)
    group.gone(1, certain=True)
    group.now = 400.0
    group.gone(2, certain=True)
    group.ready(0, 3)
    group.at(100.0 + WAIT)
    assert group.did == ("stop", 1, "peer")
    group.now = 800.0
    group.reports(2, "ready", 1, "new", boot="boot2")
    assert (group.did, group.places) == (("run", 2, "peer"), ((0, 1), (2, 2)))


@pytest.mark.parametrize(
    ("closed", "boot", "until"), [(True, "boot1", None), (True, "other", FENCE), (False, "boot1", FENCE)]
)
def test_a_successor_waits_until_its_predecessor_has_ended(closed: bool, boot: str, until: float | None) -> None:
    group = running()
    group.gone(1, closed)
    group.ready(0, 2)
    group.now += 1
    group.reports(1, "ready", 1, "new", boot=boot)
    if until is not None:
        assert group.did == ("stop", 1, "peer")
        assert group.coordinator.deadline == 100.0 + until
        group.due()
    assert group.did == ("run", 2, "peer")


def test_a_fence_holds_for_every_successor() -> None:
    group = running()
    group.gone(1, closed=False)
    group.ready(0, 2)
    group.reports(1, "ready", 1, "new", boot="other")
    group.now += 1
    group.gone(1, closed=True, life="new")
    group.reports(1, "ready", 1, "newer", boot="other")
    assert group.did == ("stop", 1, "peer")
    group.at(100.0 + FENCE)
    assert group.did == ("run", 2, "peer")


def test_a_member_that_left_needs_no_fence() -> None:
    group = running()
    group.reports(1, "left", end=GroupEnd(143, "stopped", "asked", asked=True))
    group.gone(1)
    group.ready(0, 2)
    group.reports(1, "ready", 1, "new", boot="other")
    assert group.did == ("run", 2, "peer")


@pytest.mark.parametrize(("before", "started"), [(True, False), (False, True)])
def test_a_duplicate_does_not_succeed_the_member_at_once(before: bool, started: bool) -> None:
    """A messenger that dies closes the connection too, and the command goes on: a duplicate must not begin beside
    it."""
    group = running()
    group.now = 50.0
    if before:
        group.reports(1, "ready", 0, "other")
    group.now = 60.0
    group.gone(1, last_message=49.0, closed_at=58.0)
    group.now = 61.0
    group.ready(0, 2)
    group.reports(1, "ready", 1, "other")
    assert (group.order.what == "run") is started
    if not started:
        group.at(60.0 + FENCE)
    assert group.did == ("run", 2, "peer")


def test_a_member_that_is_back_before_its_loss_needs_no_fence() -> None:
    group = running()
    group.now = 59.0
    group.reports(1, "ready", 0, "new")  # the connection of the old one closed a second ago
    group.now = 60.0
    group.gone(1, last_message=57.0, closed_at=58.0)
    group.ready(0, 2)
    group.reports(1, "ready", 1, "new")
    assert group.did == ("run", 2, "peer")


def test_missing_members_are_named_after_a_while() -> None:
    group = Group()
    group.reports(0, "ready")
    assert group.order == GroupOrder(0, "wait")
    group.due()
    assert group.order == GroupOrder(0, "wait", "waiting for members 1, 2")
    group.reports(1, "ready")
    group.due()
    assert group.order == GroupOrder(0, "wait", "waiting for member 2")
    group.reports(2, "ready")
    assert group.order.what == "run"


def test_a_second_member_of_a_rank_is_refused() -> None:
    group = running()
    (refused,) = group.reports(1, "ready", 0, "other", node="elsewhere")
    assert refused == RefuseMember(1, "other", "member 1 is there already, on node-1")
    assert group.reports(7, "ready", 0) == (RefuseMember(7, "life7", "member 7 does not belong to a group of 3"),)
    assert group.phase is Steady


# --- a new coordinator ----------------------------------------------------------------------------------------------


def test_a_new_coordinator_adopts_the_running_epoch() -> None:
    group = Group()
    for rank, state in enumerate(("running", "done", "running")):
        group.reports(rank, state, 5, counts=(0, rank, 0), progressed=rank == 2)
    assert (group.phase, group.did) == (Steady, ("run", 5, None))
    assert (group.order.counts, group.order.progressed) == ((0, 2, 0), True)


def test_a_new_coordinator_waits_for_members_that_have_not_reported() -> None:
    group = Group()
    group.now = 3.0
    group.reports(0, "running", 5)
    group.reports(1, "running", 5)
    assert (group.did, group.coordinator.deadline) == (("wait", 5, None), 3.0 + SILENCE)
    group.due()
    assert (group.phase, group.did, group.coordinator.deadline) == (Draining, ("stop", 5, None), 3.0 + SILENCE + WAIT)
    group.due()
    assert group.end == (195, "member 2 is lost and was not back within 10m")


def test_a_new_coordinator_fences_members_without_a_past() -> None:
    group = Group()
    group.reports(0, "ready", 5, ran=5)
    group.reports(1, "ready", 5, failure=NodeFailure("hang", "no step"), counts=(2, 0, 0))
    group.reports(2, "ready", 5)
    group.at(FENCE - 0.1)
    assert (group.did, group.coordinator.deadline) == (("stop", 5, "hang"), FENCE)
    group.due()
    assert (group.did, group.order.counts) == (("run", 6, "hang"), (2, 0, 0))


@pytest.mark.parametrize(("ran", "starts"), [(5, True), (4, False)])
def test_a_member_that_ran_the_newest_epoch_is_not_fenced(ran: int, starts: bool) -> None:
    """A coordinator that has forgotten trusts it; who ran an older one may have been replaced since."""
    group = Group()
    group.reports(0, "ready", 5)
    group.reports(1, "ready", 5, ran=ran)
    group.reports(2, "ready", 5, ran=5)
    assert group.did == (("run", 6, "peer") if starts else ("stop", 5, "peer"))


@pytest.mark.parametrize(("epoch", "starts"), [(5, True), (4, False)])
def test_the_next_in_a_run_dir_says_that_the_one_before_is_dead(epoch: int, starts: bool) -> None:
    """Not of an epoch after the last one in which that took part: another process of the member may have run it."""
    group = Group()
    group.reports(0, "ready", 5)
    group.reports(1, "ready", 5, buried=EpochRun(epoch, "before"))
    group.reports(2, "ready", 5, ran=5)
    assert group.did == (("run", 6, "peer") if starts else ("stop", 5, "peer"))


@pytest.mark.parametrize(("epochs", "starts"), [((5, 5, 5), True), ((5, 5, 4), False)])
def test_where_nobody_is_left_who_ran_the_epoch_it_is_over_if_all_are_certainly_dead(
    epochs: tuple[int, ...], starts: bool
) -> None:
    group = Group(3, shape=GroupShape(3, least=1))
    for rank, epoch in enumerate(epochs):
        group.reports(rank, "ready", 5, buried=EpochRun(epoch, f"before-{rank}"))
    assert group.did[:2] == (("run", 6) if starts else ("stop", 5))


@pytest.mark.parametrize(("life", "starts"), [("zero", True), ("another", False)])
def test_an_earlier_member_0_is_dead_if_the_next_in_its_run_dir_says_so(life: str, starts: bool) -> None:
    """Whether that is known before or after a member names it."""
    group = replaced()
    group.reports(0, "ready", 1, life="new", buried=EpochRun(1, life))
    assert group.did[:2] == (("run", 2) if starts else ("stop", 1))
    group = Group(2)
    group.coordinator = group.coordinator._replace(own=LATER)
    group.reports(0, "ready", 1, life="new", buried=EpochRun(1, life))
    group.reports(1, "ready", 1, starter=EARLIER, ran=1)
    assert group.did[:2] == (("run", 2) if starts else ("stop", 1))


def test_failures_that_follow_the_loss_of_rank_0_are_no_verdict() -> None:
    """Its container is new, and knows of nothing; theirs failed of it."""
    group = Group()
    group.reports(0, "ready", 0)
    for rank in (1, 2):
        why = NodeFailure("failure", "exit code 1: connection reset", 60.0)
        group.reports(rank, "ending", 5, failure=why, end=GroupEnd(1, "failed", "exit code 1"))
    group.reports(0, "ready", 5)
    assert (group.did, group.order.why) == (("stop", 5, "peer"), "member 0 (node-0) was lost, and has come back")
    for rank in (1, 2):
        group.reports(rank, "ready", 5)
    assert group.did == ("run", 6, "peer")
    for rank in (1, 0):
        group.reports(rank, "ending", 6, failure=NodeFailure("failure", "x"), end=GroupEnd(1, "failed", "exit code 1"))
    group.reports(2, "stopping", 6)
    assert group.end == (1, "exit code 1")  # of this epoch it knows all


def test_a_new_rank_0_explains_no_failure_of_the_next_epoch() -> None:
    """That it has not run this one yet is no loss: it has given it."""
    group = Group()
    group.reports(0, "ready", 0)
    for rank in (1, 2):
        group.reports(rank, "ready", 5, ran=5)
    group.reports(0, "ready", 5)
    assert group.did == ("run", 6, "peer")
    group.reports(1, "ending", 6, failure=NodeFailure("failure", "x"), end=GroupEnd(1, "failed", "exit code 1"))
    for rank in (0, 2):
        group.reports(rank, "ready", 6, ran=0)
    assert group.end == (1, "exit code 1")


def test_counts_of_an_earlier_container_hold() -> None:
    group = Group(2)
    group.reports(0, "ready", 0, counts=(0, 0, 2))
    group.reports(1, "ready", 0, counts=(1, 0, 0))
    assert group.order.counts == (1, 0, 2)


# --- the root cause -------------------------------------------------------------------------------------------------


def hang(rank: int, step: int | None, waits: bool = False, age: float = 0.0) -> NodeFailure:
    return NodeFailure("hang", "no step for 60s", age, rank, step, waits)


LOW, ALIKE = {1: Pulse(8, 7, 61.0), 2: Pulse(16, 6, 50.0)}, {0: Pulse(0, 7, 60.0), 1: Pulse(8, 7, 62.0)}
CAUSES = {
    "the lowest step": (LOW, [hang(0, 7)], ("node-2", 16, 6)),
    "no step at all": (LOW | {1: Pulse(8, None, 61.0)}, [hang(0, 7)], ("node-1", 8, None)),
    "one that is proved": (LOW, [hang(0, 7, waits=True)._replace(proved=True)], ("node-0", 0, 7)),
    "the longest silence": (ALIKE | {2: Pulse(16, 7, 61.0)}, [hang(0, 7)], ("node-1", 8, 7)),
    "none that waits for others": (ALIKE, [hang(0, 7), hang(8, 7, waits=True)], ("node-0", 0, 7)),
    "but for the only one": ({}, [hang(0, 7, waits=True)], ("node-0", 0, 7)),
}


@pytest.mark.parametrize(("pulses", "failures", "cause"), CAUSES.values(), ids=CAUSES)
def test_the_root_cause_of_a_hang(pulses: dict[int, Pulse], failures: list[NodeFailure], cause: Any) -> None:
    group = running()
    for rank, failure in enumerate(failures):
        group.reports(rank, "stopping", failure=failure, pulses=pulses)
    group.ready(*range(len(failures), 3))
    assert group.order.cause == "hang"
    assert (group.order.node, group.order.rank, group.order.step) == cause


# --- fewer members, and spares --------------------------------------------------------------------------------------


def test_until_when_a_lost_member_is_waited_for_and_what_follows() -> None:
    group = running(least=2)
    assert loss_wait(group.coordinator, 100.0) is None
    group.gone(1, certain=True)  # the others are still ending their command
    assert loss_wait(group.coordinator, 110.0) == LossWait((1,), 1, WAIT - 10, "go on", 2)
    group.ready(0, 2)
    assert loss_wait(group.coordinator, 100.0 + WAIT + 1) == LossWait((1,), 1, 0.0, "go on", 2)
    assert group.did == ("stop", 1, "peer")
    group.at(200.0)
    group.gone(2, certain=True)
    assert loss_wait(group.coordinator, 200.0) == LossWait((1, 2), 2, WAIT, "end", code=195)
    group.at(200.0 + WAIT)
    assert (group.end or (0, ""))[0] == 195
    assert loss_wait(group.coordinator, group.now) is None

    group = running(least=2)
    group.gone(1, certain=True)
    group.ready(0, 2)
    group.at(100.0 + WAIT)
    assert (group.did, group.places) == (("run", 2, "peer"), ((0, 1), (2, 1)))

    group = running(least=2)
    group.gone(1)
    group.ready(0, 2)
    assert loss_wait(group.coordinator, 100.0) == LossWait((1,), 1, FENCE, "go on", 2)
    group.at(100.0 + WAIT)
    assert group.did == ("stop", 1, "peer")
    group.due()
    assert (group.did, group.now) == (("run", 2, "peer"), 100.0 + FENCE)

    group = running(least=2)
    group.gone(1)
    group.ready(0, 2)
    group.reports(1, "ready", life="new", boot="new")
    assert loss_wait(group.coordinator, 100.0) == LossWait((1,), 1, FENCE, "start")  # it is back, elsewhere

    group = running(4, least=3)
    group.gone(1, certain=True)
    assert loss_wait(group.coordinator, 100.0) == LossWait((1,), 1, WAIT, "go on", 3)
    group.reports(2, "leaving")
    assert loss_wait(group.coordinator, 100.0) == LossWait((1,), 1, WAIT, "end", code=195)


def lost(effects: GroupEffects) -> list[NodeLost]:
    return [effect for effect in effects if isinstance(effect, NodeLost)]


def test_each_loss_is_recorded_once_with_what_follows() -> None:
    group = running(least=2)
    why = "member 1 (node-1) is lost: its connection closed"
    assert lost(group.gone(1, certain=True)) == [NodeLost(1, "node-1", why, LossWait((1,), 1, WAIT, "go on", 2))]
    assert lost(group.gone(1, certain=True)) == []
    left = lost(group.reports(2, "left", end=GroupEnd(143, "stopped", "stopped by signal 15", asked=True)))
    assert [(one.rank, one.why) for one in left] == [(2, "member 2 (node-2) has left: stopped by signal 15")]
    assert left[0].wait == LossWait((1, 2), 2, WAIT, "end", code=195)


def test_a_member_that_leaves_at_the_end_is_not_lost() -> None:
    group = running()
    group.all("done")
    assert not [effect for effect in (*group.effects, *group.reports(1, "left")) if isinstance(effect, NodeLost)]


@pytest.mark.parametrize("replaces", [False, True])
def test_a_group_that_needs_all_ends_when_a_lost_member_was_waited_for(replaces: bool) -> None:
    group = running(replaces=replaces)
    group.gone(2)
    assert loss_wait(group.coordinator, 101.0) == LossWait((2,), 1, WAIT - 1, "end", code=195)
    group.ready(0, 1)
    group.at(100.0 + WAIT)
    assert (group.end or (0, ""))[0] == 195


def test_a_spare_takes_a_place_when_the_loss_is_certain() -> None:
    group = running(4, spares=1)
    assert group.places == ((0, 3),)
    group.gone(1, certain=True)
    assert loss_wait(group.coordinator, 101.0) == LossWait((1,), 1, 0.0, "replace")
    group.ready(0, 2)
    assert (group.did, group.places) == (("run", 2, "peer"), ((0, 1), (3, 1), (2, 1)))
    group = running(4, spares=1)
    group.gone(1)
    group.ready(0, 2)
    assert loss_wait(group.coordinator, 101.0) == LossWait((1,), 1, FENCE - 1, "replace")
    group.at(100.0 + FENCE)
    assert group.places == ((0, 1), (3, 1), (2, 1))
    group = running(12, least=2)
    for rank in range(2, 12):
        group.gone(rank, certain=True)
    assert loss_wait(group.coordinator, 100.0) == LossWait(tuple(range(2, 10)), 10, WAIT, "go on", 2)


@pytest.mark.parametrize("verdict", [GroupEnd(143, "stopped", "stopped by an operator"), GroupEnd(1, "failed", "bad")])
def test_an_end_without_a_failure_is_named(verdict: GroupEnd) -> None:
    group = running()
    group.reports(1, "ending", 1, end=verdict)
    assert (group.did, group.order.why) == (("stop", 1, None), f"member 1 (node-1): {verdict.why}")


def test_old_and_repeated_events_are_ignored() -> None:
    group = running()
    before = group.coordinator
    report = before.members[1].report
    for old in (report, report._replace(seq=report.seq - 1, state="fallen")):
        assert decide(before, Reported(200.0, old)) == (before, ())
    assert decide(before, MemberLost(200.0, 1, "another", "x")) == (before, ())


@pytest.mark.parametrize("code", [0, 143])
def test_a_member_that_was_asked_to_stop_says_so(code: int) -> None:
    group = running()
    assert group.reports(1, "leaving", 1) == (), "nothing changes until it has left"
    assert group.did == ("run", 1, "first")
    group.reports(1, "left", 1, end=GroupEnd(code, "stopped", "stopped from outside by SIGTERM", asked=True))
    assert group.order.why == "member 1 (node-1) has left: stopped from outside by SIGTERM"


def test_a_command_that_ends_while_another_member_leaves_says_so() -> None:
    group = running()
    group.reports(1, "leaving", 1)
    group.reports(0, "fallen", 1)
    why = "member 0 (node-0): the command ended, after member 1 (node-1) was asked from outside to stop"
    assert (group.did, group.order.why) == (("stop", 1, None), why)


def test_what_happens_to_a_spare_is_nobodys_concern() -> None:
    group = running(4, spares=1)
    before = group.order
    group.gone(3)
    group.reports(3, "ready", 0, life="new")
    group.reports(3, "left", 1, life="new", end=GroupEnd(197, "node-fault", "a device"))
    group.reports(3, "left", 1, life="newer", end=GroupEnd(94, "non-recoverable", "no such folder"))
    assert (group.order, group.phase) == (before, Steady)


def test_a_verdict_about_one_member_ends_that_one_alone_where_the_others_can_go_on() -> None:
    shapes: tuple[dict[str, Any], ...] = ({"replaces": True}, {"least": 2})
    for shape in shapes:
        group = running(**shape)
        verdict = GroupEnd(197, "node-fault", "a device is broken")
        group.reports(1, "ending", 1, end=verdict, failure=NodeFailure("fault", "a device is broken"))
        group.ready(0, 2)
        group.reports(1, "left", 1, end=verdict)
        assert (group.did, group.order.why) == (("stop", 1, "peer"), "member 1 (node-1): a device is broken")
        group.reports(1, "ready", life="new", node="other", boot="other")
        assert group.did == ("run", 2, "peer")


@pytest.mark.parametrize("rounds", [None, NodeRounds("ready", rungs=("rank", "retry"))])
def test_who_is_back_is_taken_in_at_a_checkpoint_that_every_reporter_has(rounds: NodeRounds | None) -> None:
    """Also where the ranks at work are in rounds of recovery."""
    group = running(least=2, scale_out=True)
    group.gone(1, certain=True)
    group.ready(0, 2)
    group.at(100.0 + WAIT)
    group.reports(0, "running", 2, checkpoint=10, rounds=rounds)
    group.reports(2, "running", 2, checkpoint=10, rounds=rounds)
    assert group.order.round == (rounds and GroupRound())
    rounds = rounds and rounds._replace(progress="working", adopted=GroupRound())
    group.reports(1, "ready", 2, life="new")
    assert group.did == ("run", 2, "peer")
    group.reports(0, "running", 2, checkpoint=20, rounds=rounds)
    assert group.did == ("run", 2, "peer")
    group.reports(2, "running", 2, checkpoint=20, rounds=rounds)
    assert group.did == ("stop", 2, None)
    assert group.order.why == "a checkpoint is saved, and member 1 (node-1) can work again: 3 members go on"
    group.ready(0, 2)
    assert (group.did, group.places) == (("run", 3, "peer"), ((0, 1), (2, 1), (1, 1)))


def test_a_device_that_is_well_again_restarts_all_at_a_checkpoint_that_every_reporter_has() -> None:
    for scale_out in (True, False):
        group = running(2, scale_out=scale_out)
        group.reports(0, "running", 1, checkpoint=10)
        group.reports(1, "running", 1, checkpoint=10)
        group.reports(1, "running", 1, checkpoint=11)
        assert group.did == ("run", 1, "first")
        group.reports(1, "running", 1, checkpoint=11, regains=("GPU-3",))
        group.reports(0, "running", 1, checkpoint=20)
        assert group.did == ("run", 1, "first")
        group.reports(1, "running", 1, checkpoint=20, regains=("GPU-3",))
        assert group.did[0] == ("stop" if scale_out else "run")
    group = running(2, scale_out=True)
    group.reports(1, "running", 1, checkpoint=11, regains=("GPU-3",))
    group.reports(1, "running", 1, checkpoint=12, regains=("GPU-3",))
    assert group.order.why == "a checkpoint is saved, and device GPU-3 of member 1 (node-1) can be used again"
    group.ready(0, 1)
    assert group.did == ("run", 2, "peer")


def test_a_group_of_new_containers_waits_for_the_leases_of_those_that_do_not_come() -> None:
    group = Group(3, shape=GroupShape(3, least=2))
    group.ready(0, 1)
    group.at(WAIT)
    assert group.did == ("wait", 0, None)
    group.at(FENCE)
    assert group.did == ("run", 1, "first")


def test_what_may_keep_a_member_out_is_named_while_it_is_missing_and_at_the_end() -> None:
    group = Group()
    group.reports(0, "ready")
    group.event(JoiningHindered(101.0, "10.0.0.7 has a different secret from this group"))
    group.due()
    assert group.order.why == "waiting for members 1, 2; 10.0.0.7 has a different secret from this group"
    group.event(JoiningHindered(112.0, "10.0.0.7 has a different secret from this group", True))
    assert group.order.end is not None
    assert group.order.end.code == 195
    assert group.order.why.startswith(
        "10.0.0.7 has a different secret from this group, and has given up; members 1, 2 "
    )


def test_a_stranger_ends_no_group_that_has_started() -> None:
    group = running()
    before = group.coordinator
    assert decide(before, JoiningHindered(200.0, "10.0.0.7 has a different secret", True)) == (before, ())


def test_one_that_was_refused_has_no_part_in_the_verdict() -> None:
    group = running()
    group.reports(1, "ready", 0, "other")
    for rank in range(3):
        group.reports(rank, "done", 1)
    assert group.order.end is not None
    group.reports(1, "left", 1)
    (refused,) = group.reports(1, "ready", 0, "other")
    assert isinstance(refused, RefuseMember)
