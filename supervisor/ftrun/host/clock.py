"""The clocks that outlive a process."""

import time

from ftrun.core.rules.fault_history import Clock
from ftrun.host import procfs


def clock() -> Clock:
    """The time now, on the wall and since this boot."""
    return Clock(time.time(), procfs.boot_id(), time.clock_gettime(time.CLOCK_BOOTTIME))
