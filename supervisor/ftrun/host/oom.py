"""ftrun is spared where the kernel kills a whole control group for memory (`memory.oom.group`).

Processes whose oom_score_adj is -1000 are excepted from that (Documentation/admin-guide/cgroup-v2.rst).  To go below
what one was given takes CAP_SYS_RESOURCE (proc_pid_oom_score_adj(5)).  What we start has what ftrun was given.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ftrun.host import cgroup, procfs

PATH: Final = "/proc/self/oom_score_adj"
EXEMPT: Final = b"-1000"
_given: bytes | None = None  # as ftrun was started with it, while it has another one


def exempt_from_group_kill() -> None:
    """Where the kernel kills all of our control group for one process, and where we may; else nothing changes."""
    global _given
    if _given is not None or not cgroup.killed_together():
        return
    before = (procfs.read(PATH, 64) or b"").strip()
    # Written back first: who may not do that must not be spared, for all that it starts would be spared as well.
    if before and before != EXEMPT and _write(before) and _write(EXEMPT):
        _given = before


@contextmanager
def original_score() -> Iterator[None]:
    """Whatever is forked within has the value that ftrun was given."""
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
            _given = None  # it stays as given


def can_be_exempted() -> bool:
    """Whether this process could be; it is as before."""
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
