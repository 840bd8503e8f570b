"""Programs that a helper runs and waits for while it still listens on stdin."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Final

from ftrun.core.text import sentences
from ftrun.helpers.lines import ProtocolLines
from ftrun.host import signals, spawn

LOG: Final = 2


class Children:
    """At most one instance per process: it reaps every child, adopted ones too."""

    def __init__(self, lines: ProtocolLines) -> None:
        self._lines = lines
        self._codes: dict[int, int] = {}
        self._started: list[subprocess.Popen[bytes]] = []  # kept, because `subprocess` would wait for a discarded one
        self._bell, ring = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(ring, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], output: int = LOG, kill_with_parent: bool = False
    ) -> int:
        """Start a program in a session of its own, and return its pid; OSError if it cannot be started.
        `kill_with_parent`: the program is killed when this process ends."""
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=os.environ | dict(environment),
            start_new_session=True,
            preexec_fn=_kill_with_parent if kill_with_parent else None,
        )
        self._started.append(child)
        return child.pid

    def wait(self, pid: int, until: float | None) -> int | None:
        """The exit code, or the negative signal number; None if it comes after `until`, or stdin has ended."""
        while True:
            self.reap()
            left = None if until is None else until - time.monotonic()
            if pid in self._codes or self._lines.ended or (left is not None and left <= 0):
                return self._codes.get(pid)
            self.listen(left)

    def listen(self, timeout: float | None) -> None:
        """Wait until a child has ended or stdin has, for at most `timeout` s."""
        self._lines.requests(timeout, self._bell)
        try:
            os.read(self._bell, 4096)
        except BlockingIOError:
            pass

    def reap(self) -> bool:
        """Reap all children that have ended.  Returns whether others are still running."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return True
                self._codes[pid] = os.waitstatus_to_exitcode(status)
        except ChildProcessError:
            return False


def _kill_with_parent() -> None:
    signals.restore(signals.Inherited(frozenset(), frozenset()))  # this process may ignore some that `timeout` needs
    spawn.prctl(spawn.PR_SET_PDEATHSIG, signal.SIGKILL)


def why(code: int) -> str | None:
    """A description of the failure for a person; None if the program succeeded."""
    if code >= 0:
        return f"it ended with {code}" if code else None
    return f"it was ended by {sentences.signal(-code)}"
