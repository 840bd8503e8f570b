"""The rule for a rank that computes for an hour in one function, of which nothing is seen outside."""

import pytest

from ftrun.core.machine.events import Looked
from ftrun.core.machine.values import Attempt, Rank, Section, Spin
from ftrun.core.rules import liveness, looks
from ftrun.core.rules.idle import Idle, Thresholds, TreeSample, observe
from ftrun.core.rules.liveness import Limits, assess, waits_for_devices

LIMITS = Limits(hang=None, start=None, section=None, auto=True, idle=1800.0)
RANK = Rank(0, pid=7, moved_at=100.0, step=200)
SEEN = Spin(115.0, "rank 0 computes at train.py:7", "f", 0, 7)
ATTEMPT = looks.follow(Attempt(1, pid=7, spawned_at=50.0, ranks=(RANK,)))


def looked(seen: Attempt, now: float, found: Spin | None) -> Attempt:
    result = Looked(now + 1, "it computes", cost=0.1, spin=found and found._replace(since=now))
    return looks.end(looks.begin(seen, now), result)


def found_at(seen: Attempt, until: float = 20_000.0) -> float | None:
    """When the rank is found, in steps of 5 s."""
    return next((now for now in map(float, range(100, int(until), 5)) if assess(seen, now, LIMITS).finding), None)


def test_a_rank_is_found_an_hour_after_the_first_of_the_looks_that_found_the_same() -> None:
    seen = looked(ATTEMPT, 115.0, SEEN)
    for now in (122.0, 130.0, 1000.0, 3600.0):
        seen = looked(seen, now, SEEN)
    assert found_at(seen) == 115.0 + liveness.SPIN_LIMITS["spin"]
    finding = assess(seen, 115.0 + liveness.SPIN_LIMITS["spin"], LIMITS).finding
    assert finding is not None
    assert (finding.rule, finding.rank, finding.pid, finding.mechanism) == ("spin", 0, 7, SEEN.why)


@pytest.mark.parametrize(
    "other",
    [None, SEEN._replace(fingerprint="g"), SEEN._replace(pid=8), SEEN._replace(others=150.0)],
    ids=["it waits", "another function, or it has written", "another process", "its other threads work"],
)
def test_another_result_in_between_begins_the_hour_anew(other: Spin | None) -> None:
    seen = looked(looked(looked(ATTEMPT, 115.0, SEEN), 2000.0, other), 2030.0, SEEN._replace(others=150.0))
    assert found_at(seen) in (2000.0 + liveness.SPIN_LIMITS["spin"], 2030.0 + liveness.SPIN_LIMITS["spin"])


def test_other_threads_may_use_a_twentieth_of_a_core() -> None:
    seen = looked(looked(ATTEMPT, 115.0, SEEN), 1115.0, SEEN._replace(others=50.0))
    assert found_at(seen) == 115.0 + liveness.SPIN_LIMITS["spin"]
    seen = looked(looked(ATTEMPT, 115.0, SEEN), 1115.0, SEEN._replace(others=51.0))
    assert found_at(seen) == 1115.0 + liveness.SPIN_LIMITS["spin"]


def test_what_the_whole_tree_reads_and_writes_counts_too() -> None:
    idle = observe(Idle(), TreeSample(900.0, 180.0, 1.0, 1e6), Thresholds())
    quiet = observe(idle, TreeSample(1080.0, 180.0, 1.0, 100.0), Thresholds())
    seen = looked(ATTEMPT._replace(idle=quiet), 115.0, SEEN)
    assert found_at(seen) == 900.0 + liveness.SPIN_LIMITS["spin"]


@pytest.mark.parametrize(
    "rank",
    [
        RANK._replace(moved_at=None),
        RANK._replace(moved_at=101.0),
        RANK._replace(sections=(Section("solve", 100.0, 90_000.0),)),
        RANK._replace(pid=8),
        RANK._replace(present=False),
    ],
    ids=["never moved", "moved since", "a section with a limit of its own", "another process", "gone"],
)
def test_for_whom_it_is_not(rank: Rank) -> None:
    seen = looked(ATTEMPT, 115.0, SEEN)._replace(ranks=(rank,))
    assert found_at(seen if rank == RANK else looks.follow(seen), 9000.0) is None


def test_a_rank_that_is_done_may_compute_while_others_train() -> None:
    """Not once all are done: then it has to end."""
    done, other = RANK._replace(done=True), Rank(1, pid=8, moved_at=90.0, step=200)
    seen = looked(looks.follow(ATTEMPT._replace(ranks=(done, other))), 115.0, SEEN)
    assert found_at(seen, 9000.0) is None
    assert (
        found_at(looked(looks.follow(ATTEMPT._replace(ranks=(done,))), 115.0, SEEN))
        == 115.0 + liveness.SPIN_LIMITS["spin"]
    )


def test_time_that_does_not_count_as_silence() -> None:
    seen = looked(ATTEMPT, 115.0, SEEN)._replace(aways=((200.0, 1200.0),))
    assert found_at(seen) == 1115.0 + liveness.SPIN_LIMITS["spin"]
    assert looks.forget(seen, 1200.0).look.spin == SEEN
    assert looks.refute(seen, 3600.0).look.spin is None


def test_a_given_timeout_switches_it_off() -> None:
    seen = looked(ATTEMPT, 115.0, SEEN)
    assert assess(seen, 1e6, LIMITS._replace(auto=False)).finding is None


# --- all ranks wait for their devices or for each other ---------------------------------------------------------------

AWAITED = Spin(115.0, "rank 0 waits for its device", "f", 0, 7, on_device=True)


def test_ranks_that_wait_for_devices_that_do_not_work_are_found_within_a_minute() -> None:
    seen = looked(ATTEMPT, 115.0, AWAITED)
    for now in (122.0, 130.0, 140.0, 150.0):
        seen = looked(seen, now, AWAITED)
    assert found_at(seen) == 115.0 + liveness.SPIN_LIMITS["device-wait"]
    finding = assess(seen, 170.0, LIMITS).finding
    assert finding is not None
    assert (finding.rule, finding.rank, finding.pid, finding.mechanism) == ("device-wait", 0, 7, AWAITED.why)


def test_a_rank_that_computes_after_it_waited_for_its_device_is_another_result() -> None:
    seen = looked(looked(ATTEMPT, 115.0, AWAITED), 140.0, AWAITED._replace(on_device=False))
    assert found_at(seen) == 140.0 + liveness.SPIN_LIMITS["spin"]
    assert found_at(looked(looked(ATTEMPT, 115.0, AWAITED), 140.0, None), 9000.0) is None


def test_in_a_group_the_ranks_of_all_members_have_to_wait() -> None:
    seen, group = looked(ATTEMPT, 115.0, AWAITED), LIMITS._replace(idle_together=True)
    limit = 115.0 + liveness.SPIN_LIMITS["device-wait"]
    assert not waits_for_devices(seen, limit - 1, group)
    assert waits_for_devices(seen, limit, group)
    assert assess(seen, limit, group).finding is None
    finding = assess(seen._replace(group_awaits_devices=True), limit, group).finding
    assert finding is not None
    assert finding.rule == "device-wait"


def test_collectives_that_are_launched_between_two_looks_end_what_they_showed() -> None:
    """An answer that is missing once is no change."""
    seen = looked(ATTEMPT, 115.0, AWAITED._replace(launched="7"))
    assert found_at(looked(looked(seen, 122.0, AWAITED), 140.0, AWAITED._replace(launched="7"))) == found_at(seen)
    assert found_at(looked(seen, 140.0, AWAITED._replace(launched="8"))) == 140.0 + liveness.SPIN_LIMITS["device-wait"]
