"""The rules of a learned limit, each in a small training: what teaches it, what is remembered, what evidence does."""

import itertools
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.training import AUTO, Step, Training, Within, promptly
from ftrun.core.machine.states import Running, Starting
from ftrun.core.machine.values import TOUCH, Attempt, LearnedTimeouts, Ledger, RaisedLimit, Rank
from ftrun.core.rules import adaptive_timeout
from ftrun.core.rules.liveness import LOOKS_PER_LIMIT, Limits, assess, hang_limit

SECOND = [1.0] * 150
BEFORE = LearnedTimeouts(limit=45.0, usual=4.5, longest=6.0, intervals=500, slowest_start=25.0)


# --- what teaches, and what does not ----------------------------------------------------------------------------------


def test_sections_teach_nothing_and_have_their_own_deadline() -> None:
    silences: list[Step] = [1.0] * 250
    silences[19::20] = [Within(600.0, 1.0)] * 12
    training = Training().start(silences).run()
    assert training.suspicions == []
    assert training.job.ledger.learned == LearnedTimeouts(30.0, 1.0, 1.0, 200, 1.0)
    training = Training().start([*SECOND, Within(4000.0, 1.0)]).run()
    (suspicion,) = training.suspicions
    assert (suspicion.finding.rule, suspicion.finding.limit) == ("section", 3600.0)


def test_ranks_of_different_pace_have_different_limits() -> None:
    """The limit of one does not depend on the other, at the start and after a restart."""

    def ranks() -> tuple[list[float], "itertools.repeat[float]"]:
        return [60.0] * 150, itertools.repeat(0.5)

    training = Training().start(*ranks()).run(20)
    assert training.job.ledger.learned is None, "the slow one may be anything yet"
    for seen in (100, 120):
        assert promptly(training.found_after(stopped=1), 30.0)
        assert promptly(training.found_after(stopped=0), 600.0 if seen > 100 else 1800.0)
        training.run(seen)
    assert training.job.ledger.learned == LearnedTimeouts(600.0, 60.0, 60.0, 14_300, 60.0)
    training.stop()
    training.start(*ranks()).run(20)
    assert promptly(training.found_after(stopped=0), 2 * 600.0), "twice as patient after a hang"
    assert promptly(training.found_after(stopped=1), 2 * 30.0)
    training.run()
    assert [suspicion.step for suspicion in training.suspicions] == [120], "the stop"


def test_all_ranks_may_be_as_silent_as_the_one_that_evaluates() -> None:
    evaluates = [1.0] * 150 + [100.0] + [1.0] * 200
    training = Training(works=True).start(evaluates, itertools.repeat(1.0)).run(300)
    assert promptly(training.found_after(stopped=1), 200.0)


def test_a_machine_that_slept_counts_as_a_long_silence() -> None:
    """The hooks cannot tell it from one: the limit is twice that from then on, at most the start timeout."""
    for asleep, limit in ((100.0, 202.0), (86_400.0, 3600.0)):
        training = Training().start([1.0] * 400).run(150)
        training.sleep(asleep)
        training.run(250)
        assert promptly(training.found_after(), limit)
        assert training.suspicions == []
    assert "at most the start timeout" in str(training.named("learned")[-1]["why"])


def test_the_touch_file_teaches_nothing() -> None:
    touch = Rank(TOUCH, moved_at=5.0)
    assert hang_limit(touch, Attempt(1), AUTO.limits, BEFORE) == (3600.0, False)
    known = Rank(0, intervals=100, usual=5.0, longest=5.0)
    assert adaptive_timeout.learn(None, (known, touch), 3600.0) == LearnedTimeouts(50.0, 5.0, 5.0, 100, 0.0)


def test_a_given_limit_is_not_learned() -> None:
    given = AUTO._replace(limits=AUTO.limits._replace(auto=False, hang=77.0))
    training = Training(given).start(SECOND).run(150)
    assert promptly(training.found_after(), 77.0)
    assert training.job.ledger.learned is None


# --- the start timeout ------------------------------------------------------------------------------------------------


def limited(start: float | None) -> Training:
    return Training(AUTO._replace(limits=AUTO.limits._replace(start=start)), works=True)


def next_check(training: Training) -> float | None:
    """When the hang rules are applied again; the looks at a job that stands still are beside them."""
    assert isinstance(training.job.phase, Starting | Running)
    return assess(training.job.phase.attempt, training.now, training.policy.limits).deadline


def test_without_a_start_timeout_no_limit_holds_before_a_hundred_steps() -> None:
    training = limited(None).start([0.1] * 500).run(99)
    assert isinstance(training.job.phase, Running)
    assert next_check(training) is None
    assert promptly(training.run(100).found_after(), 30.0)


def test_the_start_timeout_bounds_rare_silences_and_not_usual_ones() -> None:
    rare = limited(100.0).start([1.0] * 150 + [90.0] + [1.0] * 200).run(300)
    assert promptly(rare.found_after(), 100.0)
    usual = limited(100.0).start([20.0] * 300).run(150)
    assert promptly(usual.found_after(), 200.0)
    both = limited(100.0).start([20.0] * 150 + [220.0] + [20.0] * 200).run(300)
    assert promptly(both.found_after(), 200.0)


def test_before_the_first_movement_the_start_timeout_holds() -> None:
    training = Training(ledger=Ledger(learned=BEFORE)).start([3500.0, 1.0])
    assert training.run(1).suspicions == []
    training = Training(ledger=Ledger(learned=BEFORE)).start([3700.0]).run()
    assert [(s.finding.rule, s.finding.limit, s.finding.learned) for s in training.suspicions] == [
        ("start", 3600.0, False)
    ]


# --- a provisional limit ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("silences", "limit"),
    [
        ([20.0] * 50, 600.0),  # 30 times the slowest of the first ten
        ([50.0, *[1.0] * 50], 1500.0),
        ([200.0, *[1.0] * 50], 3600.0),  # at most the start timeout
    ],
)
def test_a_provisional_limit_follows_from_the_first_ten_steps(silences: list[float], limit: float) -> None:
    training = Training().start(silences).run(40)
    assert promptly(training.found_after(), limit)


def test_before_ten_steps_a_silence_may_be_five_times_the_time_so_far() -> None:
    """Also one that is longer than any that a stepping program has: what compiles late."""
    training = Training().start([70.0, 10.0, 390.0, *[1.0] * 200])
    assert promptly(training.run(2).found_after(), 400.0)
    assert training.run().suspicions == []
    assert promptly(Training().start([0.1] * 5).run(5).found_after(), 300.0)


# --- a later start ----------------------------------------------------------------------------------------------------


def started_again(first_beat: float) -> Training:
    """A job that hung after its first beat, and its second attempt, without a heartbeat yet."""
    training = Training().start([first_beat, *[1.0] * 120]).run()
    training.stop()
    training.end()
    training.start()
    return training


@pytest.mark.parametrize(("first_beat", "limit"), [(5.5, 300.0), (100.0, 500.0), (2000.0, 10_000.0)])
def test_a_later_start_gets_its_limit_from_earlier_ones(first_beat: float, limit: float) -> None:
    training = started_again(first_beat)
    spawned = training.now
    training.stop()
    hang = training.named("hang")[-1]
    assert (hang["rule"], hang["rank"], hang["limit"], hang["learned"]) == ("start", None, limit, True)
    assert limit <= training.now - spawned <= limit + limit / LOOKS_PER_LIMIT + 5


def test_a_later_start_that_works_is_never_killed() -> None:
    training = started_again(5.5)
    spawned, training.works = training.now, True
    while training.now < spawned + 86_400.0:
        training.step()
    assert all(s.finding.learned for s in training.suspicions[1:])
    assert len(training.suspicions) < 12
    assert len(training.named("hang")) == 1, "that of the first attempt"
    training.works = False
    training.stop()
    assert len(training.named("hang")) == 2


def test_the_slowest_start_is_kept_without_freezes() -> None:
    training = Training()
    for first_beat, slowest in ((40.0, 40.0), (90.0, 90.0), (50.0, 90.0)):
        training.start([first_beat, *[1.0] * 120]).run()
        assert training.job.ledger.first_beat == pytest.approx(slowest, abs=0.1)
        training.stop()
        training.end()
    training.start([10.0, *[1.0] * 120])
    training.sleep(500.0)
    training.run()
    assert training.job.ledger.first_beat == pytest.approx(90.0, abs=0.1)


def test_only_hangs_in_a_row_make_a_later_start_more_patient() -> None:
    for hangs, limit in ((0, 300.0), (1, 300.0), (2, 600.0), (3, 1200.0)):
        training = Training(ledger=Ledger(hang=hangs, first_beat=5.0)).start()
        training.stop()
        assert training.named("hang")[0]["limit"] == limit


@pytest.mark.parametrize("limits", [AUTO.limits._replace(start=None), AUTO.limits._replace(hang=None, auto=False)])
def test_a_rule_that_is_off_gives_later_starts_no_limit(limits: Limits) -> None:
    training = Training(AUTO._replace(limits=limits), Ledger(first_beat=5.0)).start()
    assert next_check(training) is None


# --- over restarts ----------------------------------------------------------------------------------------------------


def test_a_restart_keeps_the_learned_limit() -> None:
    """Warm, it has the limit of before; its first ten steps may take three times the slowest of the earlier start.
    After a hang it is twice as patient."""
    training = Training().start([300.0, 25.0, *[4.0] * 500]).run(500)
    training.stop()
    training.start([280.0, 250.0, *[5.0] * 200])
    assert promptly(training.run(1).found_after(), 1800.0)
    assert promptly(training.run(9).found_after(), 1800.0)
    assert 80.0 <= training.run(10).found_after() <= 80.0 + 1800.0 / LOOKS_PER_LIMIT, "at the look that was planned"
    assert promptly(training.run(99).found_after(), 80.0)
    assert promptly(training.run(100).found_after(), 100.0), "its own by now"
    training.run()
    assert [suspicion.step for suspicion in training.suspicions] == [500], "the stop"


@pytest.mark.parametrize("warm", [5, 50])
def test_half_a_minute_is_the_least_whatever_was_learned(warm: int) -> None:
    nothing = LearnedTimeouts(limit=0.0, usual=0.0, longest=0.0, intervals=0, slowest_start=0.0)
    training = Training(ledger=Ledger(learned=nothing)).start(SECOND).run(warm)
    assert training.suspicions == []
    assert promptly(training.found_after(), 30.0)


def test_a_rare_silence_is_remembered() -> None:
    training = Training(works=True).start([1.0] * 150 + [60.0] + [1.0] * 100).run(240)
    training.stop()
    training.start([1.0] * 50 + [100.0] + [1.0] * 200 + [100.0] + [1.0] * 50).run()
    assert [s.step for s in training.suspicions] == [150, 240], "none in the second attempt"


def test_the_earlier_limit_is_kept_while_a_rank_has_moved_too_little() -> None:
    fast, slow = Rank(0, intervals=100, usual=0.5, longest=0.5), Rank(1, intervals=99, usual=60.0)
    assert adaptive_timeout.learn(BEFORE, (fast, slow), 3600.0) == BEFORE
    for over in (slow._replace(done=True), slow._replace(present=False)):
        learned = adaptive_timeout.learn(BEFORE, (fast, over), 3600.0)
        assert learned == LearnedTimeouts(30.0, 0.5, 6.0, 100, 25.0), "nobody waits for that one"


def test_the_largest_figures_of_all_ranks_are_kept() -> None:
    """The slow rank's usual silence, the fast one's rare one, and the limit that is longest of all."""
    slow = Rank(0, intervals=200, usual=20.0, longest=25.0, slowest_start=70.0)
    fast = Rank(1, intervals=900, usual=0.5, longest=150.0, slowest_start=2.0)
    learned = adaptive_timeout.learn(None, (slow, fast), 3600.0)
    assert learned == LearnedTimeouts(300.0, 20.0, 150.0, 900, 70.0)
    assert adaptive_timeout.learn(learned, (slow._replace(intervals=0),), 3600.0) == learned


@pytest.mark.parametrize(
    ("usual", "longest", "limit", "why"),
    [
        (0.5, 4.5, 30.0, "99 of 100 silences are within 0.5s, over 200 steps; never under 30s"),
        (5.0, 40.0, 50.0, "10 times 5s, within which 99 of 100 silences are, over 200 steps"),
        (5.0, 50.0, 50.0, "10 times 5s, within which 99 of 100 silences are, over 200 steps"),
        (0.5, 31.0, 62.0, "twice the longest silence, 31s, in 200 steps"),
        (5.0, 51.0, 102.0, "twice the longest silence, 51s, in 200 steps"),
        (5.0, 9999.0, 3600.0, "twice the longest silence, 2h 46m, in 200 steps; at most the start timeout"),
    ],
)
def test_the_limit_and_its_reason(usual: float, longest: float, limit: float, why: str) -> None:
    learned = adaptive_timeout.learn(None, (Rank(0, intervals=200, usual=usual, longest=longest),), 3600.0)
    assert learned == LearnedTimeouts(limit, usual, longest, 200, 0.0)
    assert adaptive_timeout.reason(learned) == why


def test_the_record_of_a_learned_limit_has_all_figures() -> None:
    training = Training().start([0.5] * 150).run()
    (record,) = training.named("learned")
    assert record.keys() == {"limit", "why", "usual", "longest", "steps"}
    assert (record["limit"], record["steps"]) == (30.0, 100)


# --- evidence ---------------------------------------------------------------------------------------------------------


def test_evidence_doubles_the_limit_up_to_the_start_timeout() -> None:
    """Something that works and does not move may do so for as long as a start may take."""
    training = Training(works=True).start([*SECOND, 1e9]).run()
    ages = [suspicion.finding.age for suspicion in training.suspicions]
    limits = [suspicion.finding.limit for suspicion in training.suspicions]
    assert promptly(ages[0], 30.0)
    assert all(late / early == pytest.approx(2.2, abs=0.21) for early, late in itertools.pairwise(ages[:-1]))
    assert promptly(ages[-1], 3600.0)
    assert limits[-1] == 3600.0
    assert [s.finding.learned for s in training.suspicions] == [True] * (len(ages) - 1) + [False]
    assert [hang["limit"] for hang in training.named("hang")] == [3600.0]


def test_a_rank_that_stops_working_is_found_at_the_next_limit() -> None:
    training = Training(works=True).start([*SECOND, 1e9])
    while len(training.suspicions) < 2:
        training.step()
    training.step()
    training.works = False
    training.run()
    (hang,) = training.named("hang")
    assert hang["limit"] == pytest.approx(4 * 30.0 + 18, abs=1), "twice 69 s, at which it still worked"
    assert hang["learned"] is True


def test_a_raised_limit_ends_when_the_hooks_have_counted_that_silence() -> None:
    training = Training(works=True).start([1.0] * 150 + [40.0] + [1.0] * 200)
    assert promptly(training.run(150).found_after(), 30.0)
    assert training.run(151).found_after() == pytest.approx(66.0, abs=0.1)
    assert training.run(199).found_after() == pytest.approx(66.0, abs=0.1)
    assert promptly(training.run(200).found_after(), 80.0)


def test_a_suspect_that_moved_is_not_suspected_for_that_silence_again() -> None:
    training = Training().start([1.0] * 150 + [31.0, 1.0, 32.0, 1.0, 33.0] + [1.0] * 200).run()
    assert [suspicion.step for suspicion in training.suspicions] == [150]
    assert [record["why"] for record in training.named("cleared")] == ["it moved"]


def test_the_evidence_of_one_rank_clears_no_other() -> None:
    """Rank 0 moves during the investigation; rank 1, overdue by now, is investigated next."""
    training = Training(works=True).start([1.0] * 150 + [32.5] + [1.0] * 200, [1.0] * 152 + [1e9])
    training.run(155)
    assert [s.finding.rank for s in training.suspicions] == [0, 1]
    training.works = False
    training.run()
    (hang,) = training.named("hang")
    assert hang["rank"] == 1


# --- properties -------------------------------------------------------------------------------------------------------

SAME = settings(
    max_examples=20 if os.environ.get("FTRUN_HYPOTHESIS") == "fast" else 100,
    derandomize=True,
    database=None,
    deadline=None,
)
SECONDS = st.sampled_from([0.0, 0.1, 2.9, 3.0, 25.0, 30.0, 31.0, 400.0, 3600.0, 1e6]) | st.floats(0.0, 1e7)
STARTS = st.none() | st.sampled_from([5.0, 100.0, 3600.0])
LEARNED = st.builds(LearnedTimeouts, SECONDS, SECONDS, SECONDS, st.integers(0, 10_000), SECONDS)
RANKS = st.builds(
    lambda number, moved_at, intervals, usual, longest, start: Rank(
        number, moved_at=moved_at, intervals=intervals, usual=usual, longest=longest, slowest_start=start
    ),
    st.integers(0, 3),
    st.sampled_from([0.0, 5.0]),
    st.sampled_from([0, 1, 9, 10, 99, 100, 5000]),
    *(SECONDS, SECONDS, SECONDS),
)
RAISED = st.builds(RaisedLimit, st.integers(0, 2), st.floats(0, 1e9))


@SAME
@given(RANKS, st.none() | LEARNED, STARTS)
def test_a_limit_is_never_tighter_than_the_usual(
    rank: Rank, before: LearnedTimeouts | None, start: float | None
) -> None:
    limit = adaptive_timeout.limit(rank, before, start)
    if not limit.learned:
        assert (limit.seconds, rank.intervals < 100, before) == (start, True, None)
        return
    assert limit.seconds is not None
    assert limit.seconds >= 30.0
    assert limit.most is None or limit.most >= limit.seconds
    if rank.intervals >= 100:
        bound = max(30.0, 10 * rank.usual)
        assert limit.seconds >= bound
        assert rank.longest <= bound or limit.seconds >= min(2 * rank.longest, start or 1e9)


@SAME
@given(RANKS, st.none() | LEARNED, STARTS, st.lists(RAISED, max_size=3))
def test_evidence_never_makes_a_limit_tighter(
    rank: Rank, before: LearnedTimeouts | None, start: float | None, raised: list[RaisedLimit]
) -> None:
    limits = Limits(start, start, False, None, auto=True)
    plain, _ = hang_limit(rank, Attempt(1), limits, before)
    lenient, by_learning = hang_limit(rank, Attempt(1, raised=tuple(raised)), limits, before)
    assert (plain is None) == (lenient is None)
    assert plain is None or (lenient is not None and lenient >= plain)
    most = adaptive_timeout.limit(rank, before, start).most
    if by_learning:
        assert lenient is not None
        assert most is None or lenient < most


@SAME
@given(st.lists(RANKS, max_size=4), st.none() | LEARNED, STARTS)
def test_learned_figures_are_the_highest_and_stay(
    ranks: list[Rank], before: LearnedTimeouts | None, start: float | None
) -> None:
    learned = adaptive_timeout.learn(before, ranks, start)
    if not ranks or any(rank.intervals < 100 for rank in ranks):
        assert learned == before
        return
    assert learned is not None
    assert learned.longest >= max(rank.longest for rank in ranks)
    assert adaptive_timeout.learn(learned, ranks, start) == learned
    for rank in ranks:
        seconds = adaptive_timeout.limit(rank, learned, start).seconds
        assert seconds is not None
        assert learned.limit >= seconds / 1.12, "all but the tenth that is no news"
