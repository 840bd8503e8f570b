"""The limit for a rank that computes without end, where no proof says so."""

import pytest

from ftrun.core.machine.values import (
    Attempt,
    Confined,
    LearnedTimeouts,
    LookState,
    RaisedLimit,
    Rank,
    Section,
    Standstill,
)
from ftrun.core.rules import looks
from ftrun.core.rules.liveness import Limits, assess
from ftrun.core.rules.spin import is_known, spin_limit

LIMITS = Limits(hang=3600.0, start=3600.0, start_given=False, section=None, auto=True)
RANK = Rank(0, pid=7, moved_at=100.0, step=200, intervals=100, usual=0.5, longest=0.7)
FOUND = Confined("rank 0 computes", "t.py:main > t.py:wait", "f", 0, 7)
LOOK = LookState(Standstill(0, 100.0), confined=FOUND._replace(times=2))
ATTEMPT = Attempt(1, pid=7, spawned_at=50.0, ranks=(RANK,), look=LOOK)


def limit(rank: Rank = RANK, look: LookState = LOOK, patience: int = 1, known: LearnedTimeouts | None = None) -> object:
    return spin_limit(ATTEMPT._replace(ranks=(rank,), look=look, patience=patience), known)


def test_it_is_a_hundred_times_the_usual_silence_and_twenty_minutes_at_least() -> None:
    assert limit() == 1200
    assert limit(RANK._replace(usual=18.0)) == 1800
    assert limit(RANK._replace(longest=700.0)) == 1400, "twice the longest silence"
    assert limit(known=LearnedTimeouts(1000.0, 0.5, 700.0, 100, 5.0)) == 1400, "also of an earlier attempt"
    assert limit(patience=2) == 2400, "a hang in a row may be a silence that the program needs"


@pytest.mark.parametrize(
    ("rank", "why"),
    [
        (RANK._replace(intervals=99), "what is usual is not known yet"),
        (RANK._replace(moved_at=None), "it has not moved"),
        (RANK._replace(sections=(Section("evaluation", 100.0, 900.0),)), "a section has its own timeout"),
        (RANK._replace(rank=1), "another rank"),
        (RANK._replace(pid=8), "another process"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_for_whom_it_is_not(rank: Rank, why: str) -> None:
    assert limit(rank) is None, why


def test_one_look_is_not_enough() -> None:
    assert limit(look=LOOK._replace(confined=FOUND)) is None
    assert limit(look=LOOK._replace(confined=None)) is None


@pytest.mark.parametrize(
    ("places", "known"),
    [
        ((), False),
        (("t.py:main > t.py:wait",), True),
        (("t.py:main > t.py:wait > t.py:arrived",), True),
        (("t.py:main",), False),
        (("t.py:main > t.py:wait_for_data",), False),
    ],
    ids=["none", "the same", "deeper", "above", "another one"],
)
def test_where_the_job_was_before_it_may_be_again(places: tuple[str, ...], known: bool) -> None:
    assert is_known(FOUND.place, places) is known
    assert (limit(look=LOOK._replace(places=places)) is None) is known
    assert is_known("", ()), "a place that could not be seen"


def test_the_rank_is_found_when_the_limit_has_passed() -> None:
    """The timeout of its steps has been raised meanwhile."""
    busy = ATTEMPT._replace(raised=(RaisedLimit(0, 2400.0),))
    before, after = (assess(busy, now, LIMITS) for now in (1299.0, 1300.0))
    assert before.finding is None
    assert before.upcoming is not None
    assert (before.upcoming.rule, before.due) == ("spin", 1300.0)
    assert after.finding is not None
    assert (after.finding.rule, after.finding.limit, after.finding.mechanism) == ("spin", 1200.0, FOUND.why)
    away = busy._replace(aways=((200.0, 500.0),))
    assert assess(away, 1300.0, LIMITS).finding is None, "time that does not count as silence"
    moved = busy._replace(ranks=(RANK._replace(moved_at=650.0),))
    assert assess(moved, 1300.0, LIMITS).finding is None, "it has moved since it was looked at"


def looked(seen: Attempt, now: float, confined: Confined | None, place: str = FOUND.place) -> Attempt:
    return looks.end(looks.begin(seen, now), None, "", now + 3, 0.1, False, True, confined, place)


def test_looks_in_a_row_are_counted_while_the_thread_reads_and_writes_nothing() -> None:
    seen = looks.follow(ATTEMPT._replace(look=LookState()))
    for now, found, times in (
        (115.0, FOUND, 1),
        (130.0, FOUND, 2),
        (160.0, FOUND._replace(place="elsewhere"), 3),
        (220.0, FOUND._replace(fingerprint="g"), 1),
        (340.0, None, 0),
        (460.0, FOUND, 1),
    ):
        seen = looked(seen, now, found)
        assert (seen.look.confined.times if seen.look.confined else 0) == times
    unseen = looks.end(looks.begin(seen, 490.0), None, "", 493.0, 0.1)
    assert unseen.look.confined == seen.look.confined, "a look that compares nothing shows nothing new"


def test_a_freeze_of_ftrun_does_not_make_it_begin_anew_but_a_refutation_does() -> None:
    seen = looked(looks.follow(ATTEMPT._replace(look=LookState())), 115.0, FOUND)
    assert looks.forget(seen, 120.0).look.confined == FOUND
    moved = seen._replace(ranks=(RANK._replace(moved_at=119.0),))
    assert looks.forget(moved, 120.0).look.confined is None
    assert looks.refute(seen, 20.0).look.confined is None


def test_a_place_is_remembered_once_the_job_has_moved_on() -> None:
    seen = looked(looks.follow(ATTEMPT._replace(look=LookState())), 115.0, FOUND)
    assert seen.look.places == ()
    for number, moved in enumerate((120.0, 140.0), 1):
        seen = looks.follow(seen._replace(ranks=(RANK._replace(moved_at=moved),)))
        assert seen.look.places == (FOUND.place, "other")[:number]
        assert seen.look.confined is None
        seen = looked(seen, moved + 15, None, "other")
    for number in range(looks.PLACES):
        seen = looked(seen, 1000.0 + 20 * number, None, str(number))
        seen = looks.follow(seen._replace(ranks=(RANK._replace(moved_at=1010.0 + 20 * number),)))
    assert len(seen.look.places) == looks.PLACES
    assert seen.look.places[0] == "0", "the oldest are forgotten first"
