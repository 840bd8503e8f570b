"""The clocks that outlive a process."""

import time

from ftrun.core.rules.fault_history import Clock
from ftrun.host import procfs
from ftrun.messages import records


def clock() -> Clock:
    """Return the current wall-clock time, and the time since this boot."""
    return Clock(time.time(), procfs.boot_id(), time.clock_gettime(time.CLOCK_BOOTTIME))


def timestamp() -> str:
    """Return the current wall-clock time as it is in records."""
    now = time.time_ns()
    return records.timestamp(now, time.gmtime(now // 1_000_000_000))
