"""Programs that a helper runs, and waits for while it listens to its stdin."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Final

from ftrun.helpers.lines import Lines
from ftrun.host import signals, spawn

LOG: Final = 2


class Children:
    """One of them in a process: it reaps every child, adopted ones too."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._codes: dict[int, int] = {}
        self._started: list[subprocess.Popen[bytes]] = []  # kept: one that is dropped is waited for by `subprocess`
        self._bell, ring = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(ring, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def start(
        self, words: Sequence[str], environment: Mapping[str, str], output: int = LOG, with_us: bool = False
    ) -> int:
        """Its pid; OSError if it cannot be started.  In a session of its own; `with_us`: it dies when we do."""
        child = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=os.environ | dict(environment),
            start_new_session=True,
            preexec_fn=_die_with_us if with_us else None,
        )
        self._started.append(child)
        return child.pid

    def wait(self, pid: int, until: float | None) -> int | None:
        """Its exit code, or the number of the signal below 0; None if that comes too late, or stdin ended before."""
        while True:
            self.reap()
            left = None if until is None else until - time.monotonic()
            if pid in self._codes or self._lines.ended or (left is not None and left <= 0):
                return self._codes.get(pid)
            self.listen(left)

    def listen(self, timeout: float | None) -> None:
        """Until a child has ended or stdin has, or `timeout` s."""
        self._lines.requests(timeout, self._bell)
        try:
            os.read(self._bell, 4096)
        except BlockingIOError:
            pass

    def reap(self) -> bool:
        """Whether there are children that have not ended."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return True
                self._codes[pid] = os.waitstatus_to_exitcode(status)
        except ChildProcessError:
            return False


def _die_with_us() -> None:
    signals.restore(signals.Inherited(frozenset(), frozenset()))  # we may be deaf to some; `timeout` needs them
    spawn.prctl(spawn.PR_SET_PDEATHSIG, signal.SIGKILL)


def why(code: int) -> str | None:
    """How it failed, for a person; None if it did not."""
    if code >= 0:
        return f"it ended with {code}" if code else None
    try:
        return f"it was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"it was ended by signal {-code}"  # a real-time one
