"""What may end the waits of a process beside the threads of the job: signals that it handles, timers, a debugger."""

from typing import Final

from ftrun.helpers.evidence.world import Interrupts
from ftrun.host import procfs

# Functions of the kernel in which a thread stands that something else than its system call holds: a freezer (cgroup v2)
# or a debugger; who handles the page faults of its memory (userfaultfd(2)), or its calls (seccomp_unotify(2)); the
# program that serves a file system, of which a page is mapped (FUSE).
HELD: Final = frozenset(
    {"get_signal", "do_freezer_trap", "ptrace_stop", "ptrace_notify", "__refrigerator"}
    | {"handle_userfault", "seccomp_do_user_notification", "request_wait_answer"}
)


def read(pid: int) -> Interrupts | None:
    """None if the process is gone."""
    lines = (procfs.read(f"/proc/{pid}/status") or b"").splitlines()
    fields = {name: value for name, separator, value in (line.partition(b":") for line in lines) if separator}
    if b"SigCgt" not in fields:
        return None
    caught = int(fields[b"SigCgt"], 16)
    # Without CONFIG_CHECKPOINT_RESTORE there is no such file; a timer then shows by the signal that it sends.
    timers = bool(procfs.read(f"/proc/{pid}/timers"))
    signals = frozenset(number for number in range(1, 65) if caught >> number - 1 & 1)
    return Interrupts(signals, int(fields.get(b"TracerPid", b"0")), timers)
