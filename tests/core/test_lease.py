"""The lease in a folder that the members share: its rules, and an adversary that plays against it (`lease_world`)."""

import math

import pytest

from core.coordinator_world import Body
from core.lease_world import LeaseWorld
from core.test_coordinator_properties import PLANTED, shape_of
from ftrun.config import derived, option_values
from ftrun.core.group import lease
from ftrun.core.group.lease import Place, Watch
from ftrun.core.group.membership import GroupShape
from ftrun.pid1.clients.messenger import KILLING
from support.runs import HOUSE

SEEDS = [range(0 if PLANTED else 4, 8), pytest.param(range(8, 300), marks=pytest.mark.slow)]
KINDS = {
    "lost": "AAAfs",
    "stalls": "SSAArc",
    "stale": "OOAAz",
    "suspended": "UUUSA",
    "partitions": "ppAASO",
    "replaced": "rrSSOA",
    "everything": "ffhdmcxzlnbprSSOOUUAA",
}
FEWER = GroupShape(4, 2)


def play(seed: int, kinds: str) -> LeaseWorld:
    shape = shape_of(seed)
    world = LeaseWorld(seed, shape.size, [0.0, 0.1, 0.5][seed % 3], shape)
    world.suffer(kinds, 12.0, 3)
    return world


@pytest.mark.parametrize("seeds", SEEDS, ids=["few", "many"])
@pytest.mark.parametrize("kinds", KINDS.values(), ids=KINDS)
def test_no_two_epochs_at_work_and_nobody_waits_for_ever(kinds: str, seeds: range) -> None:
    taken_over = sum(play(seed, kinds).taken_over for seed in seeds)
    assert taken_over > 2 or kinds != KINDS["lost"], "the world is bad enough"


@pytest.mark.parametrize("seed", [70, 105])
def test_a_new_member_0_finds_one_that_works_alone(seed: int) -> None:
    """It has taken over, and has no witness: nobody else would tell the new one of it."""
    play(seed, KINDS["lost"])


def at_work(shape: GroupShape = FEWER, seed: int = 1) -> LeaseWorld:
    """A minute after the start of a group."""
    world = LeaseWorld(seed, shape.size, 0.0, shape)
    world.run(60.0)
    return world


def lose_member_0(world: LeaseWorld) -> None:
    zero = world.current()[0]
    zero.die()
    zero.side.end()


def states(bodies: list[Body]) -> set[tuple[str, int]]:
    return {(body.state, body.epoch) for body in bodies}


@pytest.mark.parametrize("shape", [GroupShape(4, 0, 1), FEWER], ids=["spare", "fewer"])
@pytest.mark.parametrize("seed", range(3))
def test_the_others_work_again_within_one_lease_after_the_loss_of_member_0(shape: GroupShape, seed: int) -> None:
    world = at_work(shape, seed)
    assert world.current()[0].leads
    lose_member_0(world)
    world.run(60.0 + lease.RENEWAL + world.length + world.drain + 4.0)  # each attempt takes up to two
    others = world.current()[1:]
    assert states(others) == {("running", 2)}
    assert sum(body.leads for body in others) == 1


def test_a_folder_that_stalls_disturbs_nobody_who_hears_the_others() -> None:
    world = at_work()
    for hand in world.hands.values():
        hand.stalled = 60.0 + world.patience
    world.run(200.0)
    assert states(world.current()) == {("running", 1)}


def test_a_group_of_a_fixed_size_has_no_lease_that_could_end_it() -> None:
    world = at_work(GroupShape(3))
    for hand in world.hands.values():
        hand.stalled = math.inf
    world.run(60.0 + 2 * world.patience)
    assert not world.folder
    assert states(world.current()) == {("running", 1)}


def test_a_holder_that_alone_was_suspended_stops_at_once() -> None:
    world = at_work()
    zero = world.current()[0]
    world.hands[zero.life].frozen = resumed = 60.0 + 3 * world.length
    world.run(resumed - 1.0)
    assert states(world.current()[1:]) == {("running", 2)}
    world.run(resumed + 3.0)
    assert not zero.leads
    assert zero.state != "running"


def test_without_a_folder_nobody_takes_over() -> None:
    world = at_work()
    for hand in world.hands.values():
        hand.stalled = math.inf
    lose_member_0(world)
    world.run(60.0 + 3 * world.length)
    assert not world.taken_over
    assert {body.epoch for body in world.current()[1:]} == {1}


def test_a_new_member_0_whose_folder_is_not_mounted_starts_nothing_beside_the_others() -> None:
    world = at_work(GroupShape(2, 1))
    one = world.current()[1]
    lose_member_0(world)
    world.run(60.0 + 3 * world.length)
    assert (one.state, one.epoch, one.leads) == ("running", 2, True)
    world.unmounted.add(0)
    new = world.born(0)
    world.run(world.now + 600.0)
    assert (one.state, one.epoch) == ("running", 2)
    assert (new.ran, new.state) == (0, "left")


MINE = Place(7, 0, "zero", "node-0", "boot", "10.0.0.1:29470", 3, ((0, 3),), ((1, "one"), (2, "two")))


def test_what_is_old_and_what_it_says_of_times_changes_nothing() -> None:
    watch = lease.seen(Watch(), MINE._replace(written=0.0), 100.0)
    assert watch == Watch(MINE, 100.0)
    assert lease.seen(watch, MINE._replace(number=6), 150.0) == watch
    assert lease.seen(watch, MINE, 150.0) == watch
    assert lease.seen(watch, MINE._replace(number=8), 150.0).since == 150.0


def test_only_a_witness_takes_over_and_the_lowest_first() -> None:
    watch = Watch(MINE, 100.0)

    def at(me: lease.Witness) -> float:
        return lease.takes_at(watch, me, 60.0, 660.0, {})

    assert at((1, "one")) == 160.0 < at((2, "two")) < 162.0
    assert at((1, "another")) == at((3, "three")) == math.inf
    assert at((0, "new")) == 100.0 + 660.0 + 60.0
    heard = {(2, "two"): 130.0, (3, "three"): 0.0}
    assert lease.takes_at(watch, (0, "new"), 60.0, 660.0, heard) == 190.0


def test_a_lease_lasts_at_least_twice_as_long_as_a_stop() -> None:
    assert lease.length(60.0, 15.0) == 60.0
    assert lease.length(5.0, 6.0) == 22.0
    assert lease.stops_at(100.0, [(1, "one")], {}, 60.0, 660.0, 15.0) == 140.0
    assert lease.stops_at(100.0, [(1, "one")], {(1, "one"): 130.0}, 60.0, 660.0, 15.0) == 170.0
    assert lease.stops_at(100.0, [(1, "one")], {(1, "one"): 9000.0}, 60.0, 660.0, 15.0) == 800.0
    assert (
        lease.stops_at(100.0, [(1, "one")], {(1, "one"): 9000.0}, 60.0, 660.0, 15.0, 0, 8990.0) == 9040.0
    )  # a full disk
    assert lease.stops_at(100.0, [(1, "one")], {}, 60.0, 660.0, 15.0, 0, 8990.0) == 140.0
    assert lease.stops_at(100.0, [], {}, 60.0, 660.0, 15.0) == math.inf


def test_a_place_names_the_holders_since_the_epoch_began() -> None:
    new, old = MINE._replace(rank=1, life="one", former=()), (3, "old")
    assert lease.next_place(None, new, False).number == 1
    assert lease.next_place(MINE._replace(former=(old,)), new, False).former == (old, (0, "zero"))
    assert lease.next_place(MINE._replace(former=(old,)), new, True).former == ()


def test_the_page_says_how_long_a_short_wait_becomes_with_a_shared_folder() -> None:
    page = " ".join((HOUSE / "docs" / "howto" / "several-nodes.md").read_text("utf-8").split())
    silence, asked, grace = 4.0, 8.0, derived.policy(option_values.settings({}, {})).limits.grace
    drain = grace + KILLING
    together, free = silence + lease.wait(asked, silence, drain), lease.LATE + drain
    assert together == lease.length(silence, drain) + 20, "the rule"
    assert lease.wait(together, silence, drain) == together, "no short one"
    for says in (
        f"`--peer-timeout {silence:g}s`, `--wait-peer {asked:g}s` and the default `--grace {grace:g}s` the lease lasts "
        f"{lease.length(silence, drain):g} s, the two count as {together:g} s in place of {silence + asked:g}",
        f"free after {together + free:g} s (`wait` in the record `lost`) in place of {silence + asked + free:g}.",
    ):
        assert says in page
