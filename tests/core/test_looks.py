"""When a job that stands still is looked at, and what the looks prove."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ftrun.core.machine.events import Looked
from ftrun.core.machine.values import Attempt, ClosedLook, Rank, Section
from ftrun.core.rules import looks
from ftrun.core.rules.liveness import STILL
from ftrun.core.rules.looks import LOST, SPACING

SPAWNED = 100.0
CLOSED = ClosedLook(0.0, "f", "it waits for itself", 0, 7)


def attempt(*ranks: Rank) -> Attempt:
    return looks.follow(Attempt(1, pid=7, spawned_at=SPAWNED, ranks=ranks))


def looked(seen: Attempt, now: float, found: ClosedLook | None = None, cost: float = 0.0, took: float = 3.0) -> Attempt:
    """After a look that began at `now`."""
    begun = looks.begin(seen, now)
    if found is None:
        return looks.end(begun, Looked(now + took, "it waits", cost=cost))
    return looks.end(begun, Looked(now + took, None, found.mechanism, found.fingerprint, found.rank, found.pid, cost))


def all_looks(seen: Attempt, until: float, cost: float = 0.0) -> list[float]:
    """For how long the job had stood still at each look, where every look is open."""
    found: list[float] = []
    while (at := looks.due(seen, SPAWNED + 5)) is not None and at < until:
        found.append(looks.age_of(seen, at))
        seen = looked(seen, at, cost=cost)
    return found


def test_looks_are_taken_several_times_in_the_first_minute_and_then_every_30_seconds() -> None:
    first = [15, 22, 30, 40, 50, 60]
    assert all_looks(attempt(), SPAWNED + 160) == [*first, 90, 120, 150]
    assert all_looks(attempt(Rank(0, claimed_at=103.0), Rank(1, moved_at=102.0)), SPAWNED + 70) == first


def test_looks_take_at_most_half_a_per_cent_of_a_core() -> None:
    ages = all_looks(attempt(), SPAWNED + 100_000, cost=0.5)
    assert 0.5 * len(ages) <= 0.005 * 100_000 + 0.5
    assert ages[:3] == [15, 15 + 3 + SPACING * 0.5, 15 + 2 * (3 + SPACING * 0.5)]


def test_a_deadlock_that_the_group_suspects_is_looked_at_again_soon_but_not_for_ever() -> None:
    seen, at, ages = attempt(), SPAWNED, list[float]()
    while (at := looks.due(seen, at) or 0.0) < SPAWNED + 200:
        ages.append(looks.age_of(seen, at))
        seen = looks.end(looks.begin(seen, at), Looked(at + 3, "it waits for member 0", again=True))
    assert ages[:9] == [15 + n * (looks.AGAIN + 3) for n in range(9)]
    assert ages[9:] == [ages[8] + n * looks.PERIOD for n in range(1, 5)]


def test_a_rank_that_is_gone_is_not_looked_at_and_one_that_is_done_is() -> None:
    assert looks.due(attempt(Rank(0, done=True, present=False), Rank(1, present=False)), 200.0) is None
    seen = attempt(Rank(0, done=True, claimed_at=101.0, present=False), Rank(1, claimed_at=150.0))
    assert seen.look.still == (1, 150.0)
    seen = attempt(Rank(0, done=True, moved_at=101.0), Rank(1, present=False))
    assert seen.look.still == (0, 101.0)


def test_a_rank_that_is_done_is_not_looked_at_while_others_train() -> None:
    seen = attempt(Rank(0, done=True, moved_at=101.0), Rank(1, claimed_at=150.0))
    assert seen.look.still == (1, 150.0)


def test_a_section_does_not_delay_a_look() -> None:
    rank = Rank(0, moved_at=150.0, sections=(Section("save", 151.0, 600.0),))
    assert looks.due(attempt(rank), 160.0) == 165.0


def test_a_look_that_is_not_answered_has_failed_after_a_while() -> None:
    assert looks.due(looks.begin(attempt(), 115.0), 116.0) == 115.0 + LOST


def test_a_look_without_a_result_changes_nothing_and_is_known_until_one_has_a_result() -> None:
    once = looked(attempt(Rank(0, moved_at=104.0)), 119.0, CLOSED)
    failed = looks.end(looks.begin(once, 127.0), Looked(128.0, "no memory", failed=True))
    assert failed.look == once.look._replace(age=23.0, again=None, earliest=127.0 + LOST, failed="no memory")
    moved = looks.follow(failed._replace(ranks=(Rank(0, moved_at=140.0),)))
    assert moved.look.failed == "no memory"
    assert looked(moved, 155.0).look.failed == ""


def test_two_closed_looks_that_find_the_same_are_a_proof() -> None:
    once = looked(attempt(), 115.0, CLOSED, cost=9.0)
    assert not once.look.proved
    assert looks.due(once, 118.0) == 118.0 + looks.AGAIN, "whatever a look costs"
    twice = looked(once, 123.0, CLOSED)
    assert twice.look.proved
    assert looks.due(twice, 126.0) is None


def test_closed_looks_that_differ_prove_nothing() -> None:
    once = looked(attempt(), 115.0, CLOSED)
    for change in ({"fingerprint": "g"}, {"rank": 1}, {"pid": 8}, {"mechanism": "it waits for another"}):
        twice = looked(once, 123.0, CLOSED._replace(**change))
        assert not twice.look.proved
        assert looks.due(twice, 126.0) == 130.0, "the third one comes at its usual time"
        assert looked(twice, 130.0, CLOSED._replace(**change)).look.proved
    nameless = CLOSED._replace(fingerprint="")
    assert not looked(looked(attempt(), 115.0, nameless), 123.0, nameless).look.proved


def test_a_movement_ends_what_the_looks_have_shown() -> None:
    still = (Rank(0, pid=7, moved_at=104.0), Rank(1, pid=8, moved_at=103.0))
    once = looked(attempt(*still), 119.0, CLOSED)
    assert looks.follow(once) is once
    for ranks in (
        (still[0], Rank(1, pid=8, moved_at=121.0)),  # the one that had stood still for the longest time
        (Rank(0, pid=7, moved_at=121.0), still[1]),  # the one at the end of the chain
        (still[0], still[1]._replace(present=False)),
    ):
        moved = looks.follow(once._replace(ranks=ranks))
        assert moved.look.closed is None
        assert not looked(moved, 140.0, CLOSED).look.proved


def test_a_look_that_a_movement_has_overtaken_does_not_delay_the_next() -> None:
    begun = looks.begin(attempt(Rank(0, moved_at=104.0)), 119.0)
    moved = looks.follow(begun._replace(ranks=(Rank(0, moved_at=120.0),)))
    assert moved.look.begun is None
    assert looks.due(moved, 121.0) == 135.0


def test_after_a_freeze_a_proof_begins_anew_and_not_at_once() -> None:
    thawed = looks.forget(looked(attempt(), 115.0, CLOSED), 119.0)
    assert (thawed.look.closed, looks.due(thawed, 119.0)) == (None, 119.0 + looks.AGAIN)


def test_a_refuted_proof_makes_the_looks_rarer_for_the_whole_attempt() -> None:
    refuted = looks.refute(looked(looked(attempt(), 115.0, CLOSED), 123.0, CLOSED), 31.0)
    assert looks.due(refuted, 131.0) == SPAWNED + 62.0
    moved = looks.follow(refuted._replace(ranks=(Rank(0, moved_at=140.0),)))
    assert looks.due(moved, 141.0) == 140.0 + 62.0


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["read", "read", "look", "look", "freeze", "refute"]),
        st.floats(0.0, 50.0),
        st.integers(0, 1),
        st.sampled_from([None, CLOSED, CLOSED, CLOSED._replace(fingerprint="g"), CLOSED._replace(rank=None)]),
    ),
    max_size=40,
)


@given(EVENTS)
def test_a_proof_is_two_equal_looks_without_a_movement_between_them(events: list[Any]) -> None:
    """Whatever happens, in whatever order; and the next look is never in the past of the last one."""
    now, seen, alike = SPAWNED, attempt(), list[ClosedLook]()
    for what, later, number, found in events:
        now += later
        before = seen.look.still
        if what == "read":
            ranks = (Rank(0, pid=7, moved_at=SPAWNED), Rank(1, pid=8, moved_at=now if number else SPAWNED + 1))
            seen = looks.follow(seen._replace(ranks=ranks))
        elif what == "freeze":
            seen, alike = looks.forget(seen, now), []
        elif what == "refute":
            seen, alike = looks.refute(seen, 20.0), []
        elif (at := looks.due(seen, now)) is not None and at <= now:
            assert looks.age_of(seen, now) >= STILL - 1e-6
            seen = looked(seen, now, found, cost=0.1)
            alike = [] if found is None else [*alike, found]
        if seen.look.still != before:
            alike = []
        assert not seen.look.proved or alike[-2:] == [alike[-1]] * 2
        due = looks.due(seen, now)
        assert due is None or seen.look.again is not None or due >= SPAWNED + STILL - 1e-6
