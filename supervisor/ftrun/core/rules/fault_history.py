"""History that outlives an attempt, a container and a schedule: device faults by node, and the result of each schedule.

This is the only place where a wall clock decides, because 24 hours may be longer than a boot.  Within a boot the
monotonic clock is used instead, so that setting the clock changes nothing.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from ftrun.core.named_tuple import NamedTuple

DAY: Final = 86400.0  # s
TIMES: Final = 3  # the same fault within a day, or schedules in a row without progress (ModelArts)
KEPT: Final = 256  # occurrences
NO_CODE: Final = "reset.json"  # in place of a code, where the platform reports a fault without one (ClusterD)


class Clock(NamedTuple):
    """A time.  `wall`: seconds since the epoch; `mono`: CLOCK_BOOTTIME in the boot whose id is `boot`, empty if
    unknown."""

    wall: float
    boot: str = ""
    mono: float = 0.0


class Occurrence(NamedTuple):
    """One device fault that was counted; `job` is the training job in which it occurred."""

    node: str
    device: str
    code: str
    severity: str
    at: Clock
    job: str = ""

    @property
    def device_key(self) -> tuple[str, str]:
        """The device, identified by its node and its name."""
        return self.node, self.device

    @property
    def key(self) -> tuple[str, str, str]:
        """Two occurrences with equal keys are the same fault of the same device."""
        return self.node, self.device, self.code


class Schedule(NamedTuple):
    """One life of a container.  `number` is the outer scheduler's count, `key` identifies this life.

    `progressed`: it got further than all earlier ones.  `faulted`: a device fault ended one of its attempts.  `failed`:
    it ended with a failure; not so a schedule that succeeded, was stopped from outside, or left no result.
    `last_step`, `last_checkpoint` (a path, empty if unknown): as its command would see them at its next start.
    `member`: the rank of this ftrun in its group.
    """

    key: str
    number: int
    node: str
    wall: float
    best_step: int | None = None
    best_checkpoint: int | None = None
    progressed: bool = False
    faulted: bool = False
    failed: bool = False
    phase: str = ""
    job: str = ""
    last_step: int | None = None
    last_checkpoint: str = ""
    member: int = 0


class ReachedBefore(NamedTuple):
    """Where the command of an earlier schedule was: its last step, and the path of its last checkpoint."""

    step: int | None = None
    checkpoint: str | None = None


def age(then: Clock, now: Clock) -> float:
    """Seconds from `then` to `now`; zero for a time in the future, so that setting a clock back removes no fault."""
    if then.boot and then.boot == now.boot:
        return max(0.0, now.mono - then.mono)
    return max(0.0, now.wall - then.wall)


def times_in_a_row(occurrences: Iterable[Occurrence], one: Occurrence) -> int:
    """How many times in a row the code of `one` has occurred on its device of its node within the day that ends with
    `one`, itself included.

    ModelArts ("In-Place Recovery", degradation policies) counts the same code three consecutive times within 24 hours,
    on the same chip of the same node: another code on that device ends the row.
    """
    on_device = [other for other in occurrences if other.device_key == one.device_key]
    if one in on_device:
        on_device = on_device[: on_device.index(one)]
    row = 1
    for other in reversed(on_device):
        if other.code != one.code or age(other.at, one.at) > DAY:
            break
        row += 1
    return row


def merge(occurrences: Iterable[Occurrence], others: Iterable[Occurrence]) -> tuple[Occurrence, ...]:
    """Both, each occurrence once, `others` last, that is in the order in which they were reported and not by a clock;
    the last `KEPT` of them."""
    new = dict.fromkeys(others)
    return (*(one for one in dict.fromkeys(occurrences) if one not in new), *new)[-KEPT:]


def vain_schedules(schedules: Iterable[Schedule]) -> int:
    """How many of these schedules, in a row up to the last, failed without a device fault and got no further than the
    first of them.  They are counted like restarts in place (ModelArts: three reschedules, and the fourth time fails).
    """
    row = 0
    for schedule in schedules:
        if schedule.progressed or schedule.faulted:
            row = 0
        row += schedule.failed and not schedule.faulted
    return row


def schedules_before(schedules: Sequence[Schedule], number: int) -> tuple[Schedule, ...]:
    """The schedules of this job before schedule `number`, joined by number, since the tasks of a job and restarted
    containers share it.  Where the numbers fall, another job has used the folder before."""
    grouped: list[Schedule] = []
    for schedule in earlier_schedules(schedules, number):
        if grouped and schedule.number == grouped[-1].number:
            grouped[-1] = _join(grouped[-1], schedule)
        else:
            grouped.append(schedule)
    return tuple(reversed(grouped))


def earlier_schedules(schedules: Sequence[Schedule], number: int) -> list[Schedule]:
    """The schedules of the same job before schedule `number`, including those of other tasks, the latest first."""
    found: list[Schedule] = []
    for schedule in reversed(schedules):
        if schedule.number >= number and not found:
            continue  # part of the current schedule
        if found and schedule.number > found[-1].number:
            break
        found.append(schedule)
    return found


def reached_before(schedules: Sequence[Schedule], number: int, member: int) -> ReachedBefore:
    """Where this job was before schedule `number`, according to the latest schedule that knows it.  Members may save a
    file each, so the file of the same member comes first; otherwise it is that of the newest checkpoint."""
    earlier = earlier_schedules(schedules, number)
    counts = sorted({one.number for one in earlier}, reverse=True)
    step: int | None = None
    for count in counts:
        lives = [one for one in earlier if one.number == count]
        own = [one for one in lives if one.member == member]
        if step is None:
            step = highest(one.last_step for one in own or lives)
        saved = [one for one in own if one.last_checkpoint] or [one for one in lives if one.last_checkpoint]
        if saved:  # the latest life comes first, and `max` takes the first of several
            newest = max(saved, key=lambda one: -1 if one.best_checkpoint is None else one.best_checkpoint)
            return ReachedBefore(step, newest.last_checkpoint)
    return ReachedBefore(step)


def _join(one: Schedule, other: Schedule) -> Schedule:
    return one._replace(
        best_step=highest((one.best_step, other.best_step)),
        best_checkpoint=highest((one.best_checkpoint, other.best_checkpoint)),
        progressed=one.progressed or other.progressed,
        faulted=one.faulted or other.faulted,
        failed=one.failed or other.failed,
    )


def highest(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)
