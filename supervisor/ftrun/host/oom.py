"""Exempts ftrun where the kernel kills a whole control group for memory (`memory.oom.group`).

Processes whose oom_score_adj is -1000 are exempt from that kill (Documentation/admin-guide/cgroup-v2.rst).  A value
below the inherited one requires CAP_SYS_RESOURCE (proc_pid_oom_score_adj(5)).  Children of ftrun get the value that
ftrun was started with.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ftrun.host import cgroup, procfs

PATH: Final = "/proc/self/oom_score_adj"
EXEMPT: Final = b"-1000"
_given: bytes | None = None  # the value that ftrun was started with, while its own differs


def exempt_from_group_kill() -> None:
    """Exempt this process if the kernel kills the whole control group for one process, and if it is permitted;
    otherwise nothing changes."""
    global _given
    if _given is not None or not cgroup.killed_together():
        return
    before = (procfs.read(PATH, 64) or b"").strip()
    # First check that the value can be written back: otherwise all children would be exempt as well.
    if before and before != EXEMPT and _write(before) and _write(EXEMPT):
        _given = before


@contextmanager
def original_score() -> Iterator[None]:
    """Processes forked inside this context get the value that ftrun was started with."""
    global _given
    if _given is None:
        yield
        return
    if not _write(_given):
        raise OSError("cannot write back the oom_score_adj that ftrun was given")
    try:
        yield
    finally:
        if not _write(EXEMPT):
            _given = None  # it keeps the original value


def can_be_exempted() -> bool:
    """Return whether this process could be exempted; its value is unchanged afterwards."""
    before = (procfs.read(PATH, 64) or b"").strip()
    if before == EXEMPT:
        return True
    return bool(before) and _write(before) and _write(EXEMPT) and _write(before)


def _write(value: bytes) -> bool:
    try:
        with open(PATH, "wb", buffering=0) as file:
            return file.write(value) == len(value)
    except OSError:
        return False
