"""What a member may tell a new coordinator of the ftruns that run its epoch."""

import pytest

from ftrun.core.group.messages import GroupOrder, Life, MemberReport
from ftrun.core.ranks.shared import NodeRounds
from ftrun.helpers.messenger.known_lives import KnownLives

AT_WORK = (Life(1, "of-1", "boot", "10.0.0.1", 4000),)
ORDER = GroupOrder(1, "run", lives=AT_WORK)
RUNNING = MemberReport(2, "of-2", 1, "node-2", "boot", 1, "running", ran=1)
READY = RUNNING._replace(seq=2, state="ready")


def known(joined: bool = False) -> KnownLives:
    lives = KnownLives(joined)
    lives.reported(RUNNING)
    lives.ordered(ORDER, RUNNING)
    return lives


def test_they_go_with_the_member_to_the_next_coordinator() -> None:
    lives = known()
    lives.sent(RUNNING)
    lives.connected()
    assert lives.of(READY) == AT_WORK


def test_an_earlier_coordinator_that_may_know_that_the_member_has_stopped_may_have_begun_another_epoch() -> None:
    lives = known()
    lives.sent(READY)
    assert lives.of(READY) == AT_WORK
    lives.connected()
    assert lives.of(READY) == ()


def test_the_same_order_again_does_not_take_back_that_the_member_has_stopped() -> None:
    lives = known()
    lives.sent(READY)
    lives.ordered(ORDER, READY)
    lives.connected()
    assert lives.of(READY) == ()


@pytest.mark.parametrize("joined", [False, True])
def test_ranks_that_recover_hide_them_only_where_a_new_container_may_join(joined: bool) -> None:
    lives = KnownLives(joined)
    recovers = RUNNING._replace(rounds=NodeRounds())
    lives.reported(recovers)
    lives.ordered(ORDER, recovers)
    assert lives.of(recovers) == (() if joined else AT_WORK)


def test_after_a_suspension_they_are_known_again_once_the_coordinator_has_said_them_again() -> None:
    lives = known()
    lives.stopped()
    assert lives.of(RUNNING) == ()
    lives.ordered(ORDER, RUNNING)
    assert lives.of(RUNNING) == AT_WORK


def test_those_of_an_earlier_epoch_are_forgotten() -> None:
    lives, later = known(), RUNNING._replace(epoch=2, ran=2)
    assert lives.of(later) == ()
    lives.reported(later)
    assert lives.of(RUNNING) == ()
