"""The only module that waits for children: a second reaper would steal exit statuses."""

import os
from typing import Final

from ftrun.core.named_tuple import NamedTuple

BATCH: Final = 512  # changes per call, so that a burst of exits cannot block everything else


class ChildChange(NamedTuple):
    """`how` is CLD_EXITED, CLD_KILLED, CLD_DUMPED, CLD_STOPPED or CLD_CONTINUED; `status` is an exit code or a
    signal."""

    pid: int
    how: int
    status: int

    @property
    def ended(self) -> bool:
        return self.how in (os.CLD_EXITED, os.CLD_KILLED, os.CLD_DUMPED)


def waitid_problem() -> str | None:
    """Return in one line why this process cannot wait for children; None if it can.  Reaps nothing."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    except OSError as error:
        return (
            f"the kernel refuses waitid ({error.strerror}), so ftrun could not detect the end of the command; "
            "allow this system call in the seccomp profile of the container"
        )
    return None


def reap() -> tuple[list[ChildChange], bool]:
    """Return the state changes of all children, adopted orphans included, and True if there may be more."""
    changes: list[ChildChange] = []
    while len(changes) < BATCH:
        try:
            info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WSTOPPED | os.WCONTINUED | os.WNOHANG)
        except ChildProcessError:
            return changes, False
        if info is None:
            return changes, False
        changes.append(ChildChange(info.si_pid, info.si_code, info.si_status))
    return changes, True


def discard(pid: int) -> bool:
    """Reap this child if it has ended, and nobody waits for it.  Return whether it was reaped."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG) is not None
    except ChildProcessError:
        return False
