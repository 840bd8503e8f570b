"""When a rank is overdue, by which rule, and when to look again."""

import pytest

from ftrun.core.machine.values import TOUCH, Attempt, Rank, Section
from ftrun.core.ranks.table import Rounds
from ftrun.core.rules.liveness import Assessment, Limits, assess, section_limit, time_awake

LIMITS = Limits(hang=60.0, start=40.0, section=50.0)
MOVING = Rank(9, moved_at=1e9)
OFF = Limits(hang=None, start=None, section=None)
NOTHING = Assessment(None, None)


def assessed(
    *ranks: Rank, now: float, limits: Limits = LIMITS, aways: tuple[tuple[float, float], ...] = ()
) -> Assessment:
    return assess(Attempt(1, pid=100, spawned_at=0.0, ranks=ranks, aways=aways), now, limits)


def rule(assessment: Assessment) -> tuple[str, int | None] | None:
    return None if assessment.finding is None else (assessment.finding.rule, assessment.finding.rank)


def test_before_the_first_move_the_start_limit_holds_from_the_claim() -> None:
    """Where another rank has moved; else it holds from the spawn."""
    assert rule(assessed(Rank(0, claimed_at=10.0), MOVING, now=49.9)) is None
    assert rule(assessed(Rank(0, claimed_at=10.0), MOVING, now=50.0)) == ("start", 0)


def test_ranks_that_are_done_have_to_end_once_all_are() -> None:
    first = Rank(0, moved_at=10.0, done=True)
    assert rule(assessed(first, Rank(1, moved_at=200.0), now=259.0)) is None
    for last in (Rank(1, moved_at=200.0, done=True), Rank(1, moved_at=200.0, present=False)):
        assert rule(assessed(first, last, now=259.0)) is None
        assert rule(assessed(first, last, now=260.0)) == ("step", 0)


def test_nothing_is_concluded_from_a_rank_whose_heartbeats_may_be_unseen() -> None:
    """It is still read in time, since it may be seen again."""
    section = Section("checkpoint", 0.0, 20.0)
    for rank in (Rank(0, moved_at=0.0), Rank(TOUCH, moved_at=0.0), Rank(0, sections=(section,))):
        assert assessed(rank, MOVING, now=1e4).finding is not None
        assert rule(assessed(rank._replace(unseen=True), MOVING, now=1e4)) is None
    assert assessed(Rank(0, moved_at=0.0, unseen=True), now=1e4).deadline == 1e4 + 60.0 / 8


def test_a_given_start_limit_holds_from_the_spawn() -> None:
    assert assessed(now=1.0)[:2] == (None, 6.0)
    assert rule(assessed(now=40.0)) == ("start", None)
    assert rule(assessed(Rank(0, claimed_at=30.0), now=40.0)) == ("start", None)
    assert rule(assessed(Rank(0, present=False), now=40.0)) == ("start", None)


@pytest.mark.parametrize(
    "rank",
    [
        Rank(0, moved_at=39.0),
        Rank(0, moved_at=39.0, done=True),
        Rank(TOUCH, moved_at=39.0),
        Rank(0, moved_at=39.0, present=False),
    ],
)
def test_any_movement_or_end_disarms_the_start_limit(rank: Rank) -> None:
    assert rule(assessed(rank, now=40.0)) is None


def test_a_round_whose_processes_are_all_new_is_a_start() -> None:
    """Nobody is left of those that had moved, and none of the new processes has sent a heartbeat."""
    gone = Rank(0, moved_at=20.0, present=False), Rank(1, moved_at=21.0, present=False)
    attempt = Attempt(1, pid=100, ranks=gone, rounds=Rounds(number=2, began=30.0))
    assert assess(attempt, 69.0, LIMITS)[:2] == (None, 70.0)
    assert rule(assess(attempt, 70.0, LIMITS)) == ("start", None)
    alive = attempt._replace(ranks=(gone[0], Rank(1, moved_at=21.0)))
    assert rule(assess(alive, 69.0, LIMITS)) is None
    assert rule(assess(alive, 70.0, LIMITS)) == ("start", 1), "a process that is left is the one that is late"
    moved = attempt._replace(ranks=(gone[0], Rank(1, moved_at=31.0, present=False)))
    assert assess(moved, 1e6, LIMITS) == NOTHING
    assert assess(attempt, 1e6, OFF) == NOTHING


def test_missing_heartbeats_of_barred_processes_do_not_count() -> None:
    attempt = Attempt(1, pid=100, cannot_beat=True)
    assert assess(attempt, 1e6, LIMITS) == NOTHING
    moved = attempt._replace(ranks=(Rank(0, moved_at=1.0),))
    assert rule(assess(moved, 1e6, LIMITS)) == ("step", 0), "those that can are assessed"


def test_a_section_before_the_first_move_has_its_own_deadline() -> None:
    compiling = Rank(0, claimed_at=1.0, sections=(Section("compile", 2.0, 500.0),))
    assert rule(assessed(compiling, now=501.0)) is None
    assert rule(assessed(compiling, now=502.0)) == ("section", 0)


def test_the_credit_of_a_section_counts_before_the_first_move_too() -> None:
    compiled = Rank(0, claimed_at=1.0, credit=500.0)
    assert rule(assessed(compiled, now=539.0)) is None
    assert rule(assessed(compiled, now=540.0)) == ("start", None)
    assert rule(assessed(compiled, MOVING, now=541.0)) == ("start", 0)


def test_a_section_without_a_limit_has_the_common_one() -> None:
    assert rule(assessed(Rank(0, moved_at=10.0, sections=(Section("save", 20.0),)), now=70.0)) == ("section", 0)
    assert assessed(Rank(0, moved_at=10.0, sections=(Section("save", 20.0),)), now=1e6, limits=OFF) == NOTHING


def test_a_section_of_the_hooks_has_the_given_hang_limit() -> None:
    limits = LIMITS._replace(automatic=60.0)
    inside = Rank(0, moved_at=0.0, sections=(Section("torch.save", 0.0, automatic=True),))
    assert assessed(inside, now=59.9, limits=limits).finding is None
    found = assessed(inside, now=60.0, limits=limits).finding
    assert found is not None
    assert (found.rule, found.section, found.limit) == ("section", "torch.save", 60.0)
    short = LIMITS._replace(hang=3600.0, start=3600.0, automatic=8.0)
    assert assessed(Rank(0, moved_at=100.0), now=100.0, limits=short).deadline == 101.0, "one may open before the look"


def test_a_section_needs_no_limit_unless_one_was_given() -> None:
    limits = Limits(hang=None, start=None, section=None, auto=True, idle=1800.0)
    for automatic in (False, True):
        section = Section("between epochs", 0.0, automatic=automatic)
        assert section_limit(section, limits) is None
        assert section_limit(section._replace(timeout=60.0), limits) == 60.0
        assert assess(Attempt(1, ranks=(Rank(0, moved_at=0.0, sections=(section,)),)), 1e9, limits).finding is None


def test_time_in_closed_sections_is_no_silence() -> None:
    assert rule(assessed(Rank(0, moved_at=10.0, credit=100.0), now=169.0)) is None
    assert rule(assessed(Rank(0, moved_at=10.0, credit=100.0), now=170.0)) == ("step", 0)


def test_the_rank_furthest_over_its_limit_is_named() -> None:
    ranks = Rank(0, moved_at=30.0), Rank(1, moved_at=10.0), Rank(2, moved_at=20.0)
    assert rule(assessed(*ranks, now=100.0)) == ("step", 1)


@pytest.mark.parametrize(
    ("since", "now", "aways", "expected"),
    [
        (0, 10, (), 10),
        (0, 10, ((2, 5),), 7),
        (0, 10, ((2, 5), (6, 8)), 5),
        (0, 100, ((10, 60), (20, 50)), 50),  # Ctrl-Z, then the laptop sleeps, then fg
        (4, 10, ((2, 5),), 5),
        (6, 10, ((2, 5),), 4),
        (0, 4, ((2, 50),), 2),
        (10, 4, (), 0),
    ],
)
def test_time_awake_excludes_periods_away(
    since: float, now: float, aways: tuple[tuple[float, float], ...], expected: float
) -> None:
    assert time_awake(since, now, aways) == expected
