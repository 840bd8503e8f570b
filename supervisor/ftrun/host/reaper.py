"""The one owner of waitpid: a stray reaper elsewhere would steal exit statuses (pid1-facts)."""

import os
from typing import Final, NamedTuple

BATCH: Final = 512  # at most so many a turn, so that a storm of exits cannot keep us from the rest


class Change(NamedTuple):
    """`how` is CLD_EXITED, CLD_KILLED, CLD_DUMPED, CLD_STOPPED or CLD_CONTINUED; `status` a code or a signal."""

    pid: int
    how: int
    status: int

    @property
    def ended(self) -> bool:
        return self.how in (os.CLD_EXITED, os.CLD_KILLED, os.CLD_DUMPED)


def waitid_problem() -> str | None:
    """Why children cannot be waited for here, in one line; None where they can.  Takes nothing away."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    except OSError as error:
        return (
            f"the kernel refuses waitid ({error.strerror}), so the end of the command could not be seen; allow this "
            "system call in the seccomp profile of the container"
        )
    return None


def reap() -> tuple[list[Change], bool]:
    """What changed among our children, adopted orphans included; True if there may be more."""
    changes: list[Change] = []
    while len(changes) < BATCH:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WSTOPPED | os.WCONTINUED | os.WNOHANG)
        except ChildProcessError:
            return changes, False
        if found is None:
            return changes, False
        changes.append(Change(found.si_pid, found.si_code, found.si_status))
    return changes, True
