"""What outlives an attempt, a container and a schedule: device faults by node, and what each schedule came to.

The one place where a wall clock decides, because 24 hours may outlive a boot.  Within a boot the monotonic clock is
asked instead, so that a clock that is set back or forward changes nothing.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

DAY: Final = 86400.0  # s
TIMES: Final = 3  # the same fault so often within a day, or so many schedules in a row for nothing (ModelArts)
KEPT: Final = 256  # occurrences
NO_CODE: Final = "reset.json"  # in place of a code: the platform reports a fault and names none (ClusterD)


class Clock(NamedTuple):
    """A time.  `wall`: seconds since the epoch; `mono`: CLOCK_BOOTTIME of the boot that is called `boot` (empty: not
    known)."""

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
    def on(self) -> tuple[str, str]:
        """The device, which is known by its node and its own name."""
        return self.node, self.device

    @property
    def place(self) -> tuple[str, str, str]:
        """What makes it the same fault of the same device."""
        return self.node, self.device, self.code


class Schedule(NamedTuple):
    """One life of a container: the outer scheduler's `number`; `key` is its own.

    `progressed`: it got beyond all before it.  `faulted`: a device fault acted on it.  `failed`: it ended in trouble;
    not so one that succeeded, was stopped from outside, or of which nobody heard again.
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


def age(then: Clock, now: Clock) -> float:
    """Seconds; zero for what lies in the future: a clock that was set back makes no fault undone."""
    if then.boot and then.boot == now.boot:
        return max(0.0, now.mono - then.mono)
    return max(0.0, now.wall - then.wall)


def times(occurrences: Iterable[Occurrence], one: Occurrence) -> int:
    """How many times in a row the code of `one` has occurred on its device of its node within the day that ends with
    `one`, itself included.

    ModelArts ("In-Place Recovery", degradation policies) asks for the same code three consecutive times within 24
    hours, on the same chip of the same node: another code on that device ends the row.
    """
    on_device = [other for other in occurrences if other.on == one.on]
    if one in on_device:
        on_device = on_device[: on_device.index(one)]
    row = 1
    for other in reversed(on_device):
        if other.code != one.code or age(other.at, one.at) > DAY:
            break
        row += 1
    return row


def noted(occurrences: Iterable[Occurrence], others: Iterable[Occurrence]) -> tuple[Occurrence, ...]:
    """Both, each once, the others last: in the order in which they were heard of, whatever a clock says; the last
    `KEPT`."""
    new = dict.fromkeys(others)
    return (*(one for one in dict.fromkeys(occurrences) if one not in new), *new)[-KEPT:]


def in_vain(schedules: Iterable[Schedule]) -> int:
    """How many of these, in a row up to the last, failed without a device fault, and came no further than the first of
    them: attempts are counted as restarts in place are (ModelArts: three reschedules, and it fails the fourth time)."""
    row = 0
    for schedule in schedules:
        if schedule.progressed or schedule.faulted:
            row = 0
        row += schedule.failed and not schedule.faulted
    return row
