"""What may end the waits of a process beside the threads of the job: signals that it handles, timers, a debugger."""

import os
import re
from typing import Final

from waitproof import procfs
from waitproof.handled import INTERRUPT
from waitproof.world import Interrupts

# Programs that handle SIGINT by themselves, in order to end: the interpreter, and shells.
INTERRUPTED: Final = re.compile(r"python[\d.]*|sh|bash|dash|busybox")
# Programs whose handlers end no wait: of what ends them, as SIGXCPU, to remove a file that is not complete first; of
# SIGUSR1 and SIGUSR2, to start more or fewer processes, or (make, debug_signal_handler in its sources) to say more.
UNMOVED: Final = frozenset({"gzip", "bzip2", "xz", "sort", "make", "xargs"})

# Functions of the kernel in which a thread stands that something else than its system call holds: a freezer (cgroup v2)
# or a debugger; who handles the page faults of its memory (userfaultfd(2)), or its calls (seccomp_unotify(2)); the
# program that serves a file system, of which a page is mapped (FUSE).
HELD: Final = frozenset(
    {"get_signal", "do_freezer_trap", "ptrace_stop", "ptrace_notify", "__refrigerator"}
    | {"handle_userfault", "seccomp_do_user_notification", "request_wait_answer"}
)


def read(pid: int, program: str) -> Interrupts | None:
    """The interrupts of a process; None if it is gone.  `program`: the path of its file."""
    fields = procfs.status(pid)
    if "SigCgt" not in fields:
        return None
    caught = int(fields["SigCgt"], 16)
    # Without CONFIG_CHECKPOINT_RESTORE there is no such file; a timer then shows by the signal that it sends.
    timers = bool(procfs.read(f"/proc/{pid}/timers"))
    signals = frozenset(number for number in range(1, 65) if caught >> number - 1 & 1)
    if os.path.basename(program) in UNMOVED:
        signals = frozenset()
    if INTERRUPT in signals and INTERRUPTED.fullmatch(os.path.basename(program)):
        signals -= {INTERRUPT}
    return Interrupts(signals, int(fields.get("TracerPid", "0")), timers)
