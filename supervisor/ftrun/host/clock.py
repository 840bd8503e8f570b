"""The clocks that outlive a process."""

import time

from ftrun.core.rules.fault_history import Clock
from ftrun.host import procfs


def clock() -> Clock:
    """Return the current wall-clock time, and the time since this boot."""
    return Clock(time.time(), procfs.boot_id(), time.clock_gettime(time.CLOCK_BOOTTIME))
