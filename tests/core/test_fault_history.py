"""The one place where a wall clock decides: 24 hours over boots, and schedules in a row."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.core.rules.fault_history import (
    DAY,
    KEPT,
    Clock,
    Occurrence,
    ReachedBefore,
    Schedule,
    age,
    merge,
    reached_before,
    schedules_before,
    times_in_a_row,
    vain_schedules,
)

HOUR = 3600.0
NOW = Clock(1e9, "this", 50 * HOUR)


@pytest.mark.parametrize(
    ("then", "seconds"),
    [
        (Clock(1e9 - HOUR, "this", 49 * HOUR), HOUR),
        (Clock(5.0, "this", 49 * HOUR), HOUR),  # the wall clock was set forward since
        (Clock(2e9, "this", 49 * HOUR), HOUR),  # back
        (Clock(1e9 - HOUR, "other", 49 * HOUR), HOUR),
        (Clock(1e9 - HOUR, "other", 0.0), HOUR),  # the clock of another boot does not count
        (Clock(1e9 + HOUR, "other", 1.0), 0.0),  # set back since: no fault is undone by that
        (Clock(1e9 - HOUR), HOUR),  # a boot without a name
        (Clock(1e9 - HOUR, "this", 51 * HOUR), 0.0),
    ],
)
def test_age_across_boots_and_clock_changes(then: Clock, seconds: float) -> None:
    assert age(then, NOW) == seconds


def test_a_boot_without_a_name_is_not_the_same_as_another_without() -> None:
    assert age(Clock(1e9 - HOUR, "", 5.0), Clock(1e9, "", 9.0)) == HOUR


def fault(hours: float, node: str = "n", device: str = "gpu0", code: str = "46") -> Occurrence:
    return Occurrence(node, device, code, "major", Clock(1e9 + hours * HOUR, "this", hours * HOUR))


def test_occurrences_of_a_day_on_one_device_count() -> None:
    others = [fault(1, node="m"), fault(1, device="gpu1"), fault(1, node="m", code="48")]
    assert times_in_a_row([fault(0), fault(1), *others, fault(24)], fault(24)) == 3
    assert times_in_a_row([fault(0), fault(1), fault(24.001)], fault(24.001)) == 2
    assert times_in_a_row([], fault(3)) == 1
    assert DAY == 24 * HOUR


def test_another_code_on_the_device_ends_the_row() -> None:
    row = [fault(0), fault(1), fault(2, code="48"), fault(3), fault(4, code="48", device="gpu1"), fault(5)]
    assert times_in_a_row(row, fault(5)) == 2
    assert times_in_a_row([*row, fault(6)], fault(6)) == 3
    assert times_in_a_row([fault(0), fault(1), fault(2, code="48")], fault(1)) == 2, (
        "what came after it is not before it"
    )


def test_occurrences_are_kept_once_in_order_and_bounded() -> None:
    assert merge([fault(2), fault(1)], [fault(1), fault(3)]) == (fault(2), fault(1), fault(3))
    assert merge([fault(9)], [fault(1)]) == (fault(9), fault(1))
    many = [fault(n) for n in range(KEPT + 5)]
    assert merge(many[: KEPT // 2], many[KEPT // 2 :]) == tuple(many[5:])


def schedule(number: int, *flags: str, step: int | None = None, key: str = "k") -> Schedule:
    progressed, faulted, failed = (flag in flags for flag in ("progressed", "faulted", "failed"))
    return Schedule(key, number, "n", 0.0, step, None, progressed, faulted, failed)


@pytest.mark.parametrize(
    ("schedules", "row"),
    [
        ([], 0),
        ([schedule(1, "failed"), schedule(2, "failed")], 2),
        ([schedule(1, "failed", "progressed"), schedule(2, "failed"), schedule(3, "failed")], 3),
        ([schedule(1, "failed"), schedule(2, "failed", "progressed"), schedule(3, "failed")], 2),
        ([schedule(1, "failed"), schedule(2, "failed", "faulted"), schedule(3, "failed")], 1),
        ([schedule(1, "failed"), schedule(2), schedule(3, "failed")], 2),  # stopped from outside, or without a result
    ],
)
def test_vain_schedules_are_counted(schedules: list[Schedule], row: int) -> None:
    assert vain_schedules(schedules) == row


def test_tasks_of_a_job_share_a_schedule() -> None:
    schedules = [schedule(1, "failed", step=3), schedule(1, "progressed", step=7), schedule(2, "failed"), schedule(3)]
    (first, second) = schedules_before(schedules, 3)
    assert (first.best_step, first.progressed, first.failed) == (7, True, True)
    assert second == schedule(2, "failed")


def test_schedules_of_an_earlier_job_are_left_out() -> None:
    schedules = [schedule(1, "progressed"), schedule(2, "failed"), schedule(3, "failed"), schedule(1, "failed")]
    assert schedules_before(schedules, 2) == (schedule(1, "failed"),)
    assert schedules_before(schedules, 1) == ()


@given(st.lists(st.builds(schedule, st.integers(0, 9), st.sampled_from(["failed", "progressed", "faulted"]))))
def test_earlier_schedules_are_in_order(schedules: list[Schedule]) -> None:
    numbers = [one.number for one in schedules_before(schedules, 5)]
    assert all(number < 5 for number in numbers)
    assert numbers == sorted(set(numbers))


def life(number: int, member: int, step: int | None, saved: str = "", at: int | None = None) -> Schedule:
    return Schedule(
        f"{number}/{member}", number, "n", 0.0, step, at, last_step=step, last_checkpoint=saved, member=member
    )


@pytest.mark.parametrize(
    ("lives", "expected"),
    [
        ([], ReachedBefore()),
        ([life(1, 1, 40, "/own", 40), life(1, 0, 50, "/other", 50)], ReachedBefore(40, "/own")),
        ([life(1, 2, 40, "/old", 40), life(1, 0, 50, "/newest", 50)], ReachedBefore(50, "/newest")),
        ([life(1, 1, 40, "/first", 40), life(2, 1, 45)], ReachedBefore(45, "/first")),
        ([life(1, 1, 40, "/first", 40), life(2, 1, None)], ReachedBefore(40, "/first")),
        ([life(3, 1, 99, "/present", 99)], ReachedBefore()),
        ([life(2, 1, 90, "/foreign", 90), life(1, 1, 7, "/own", 7), life(2, 1, 8)], ReachedBefore(8, "/own")),
    ],
)
def test_next_schedule_begins_where_the_latest_one_was(lives: list[Schedule], expected: ReachedBefore) -> None:
    assert reached_before(lives, 3, member=1) == expected
