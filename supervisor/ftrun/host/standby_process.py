"""One standby: a process of the command that imports (`ftrun_hooks/_parked.py`), waits, and is started when the command
is.

ftrun executes it like the command: the same words, folder, streams, limits and signal settings.  While it waits it is
first for the OOM killer and has the lowest priority, where the kernel lets a process undo that.  It ends by itself when
ftrun dies, because then its requests end.
"""

import fcntl
import os
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NoReturn

from ftrun.core.named_tuple import NamedTuple
from ftrun.host import oom, signals, spawn
from ftrun.host.signals import writing

VARIABLE: Final = "FTRUN_PARKED"
FIRST_FD: Final = 1000  # of the descriptors of a standby, beyond those that a program counts on
FDS: Final = 6
LOWEST: Final = 19  # priority (nice)
FIRST_TO_KILL: Final = b"1000"
NICE, SCORE = 1, 2  # what a process may set and undo, as its exit status says
ANSWER: Final = 8192  # bytes that are read at once


class Restored(NamedTuple):
    """The priority and the oom_score_adj of a process that ftrun executes now."""

    nice: int
    score: bytes | None

    def settings(self, group: int) -> list[str]:
        score = [] if self.score is None else [f"oom={self.score.decode()}"]
        return [f"group={group}", f"nice={self.nice}", *score]


class StandbyProcess:
    """The process and its descriptors: `answers` is to be polled.  Raises OSError if it cannot be created."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        imports: str,
        inherited: signals.Inherited,
        streams: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        self.streams = dict(streams)
        self._start = os.memfd_create("start", os.MFD_CLOEXEC)
        ends = [*os.pipe2(os.O_CLOEXEC), *os.pipe2(os.O_CLOEXEC)]
        self._requests, self.answers = ends[1], ends[2]
        given = ends[0], ends[3], self._start
        first = min(FIRST_FD, os.sysconf("SC_OPEN_MAX") - 2 * FDS)
        environment = {**environment, VARIABLE: f"{first}:{imports}"}
        parent = os.getpid()
        if parent != 1:
            import ctypes  # noqa: F401 - loaded before the fork: the child only calls it
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signals.CAUGHT)
        try:
            with oom.original_score():
                self.pid = os.fork()
                if self.pid == 0:
                    _become(command, environment, inherited, streams, given, first, parent)
        except OSError:
            self.pid = 0
            self.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(ends[0])
            os.close(ends[3])
        os.set_blocking(self.answers, False)
        os.set_blocking(self._requests, False)

    def read(self) -> bytes | None:
        """Return what it has answered since the last call; empty after its end; None: nothing yet."""
        try:
            return os.read(self.answers, ANSWER)
        except BlockingIOError:
            return None

    def start(self, environment: Mapping[str, str], ours: Iterable[str], withheld: Iterable[str], group: int) -> None:
        """Have it become the command with this environment, in this process group (0: its own).  Its answer is `warm`,
        or why it cannot.  `ours` and `withheld`: variables that may differ from those that it has waited with.  Raises
        OSError."""
        lists = (
            [f"{name}={value}" for name, value in environment.items()],
            ours,
            withheld,
            _restored().settings(group),
        )
        content = os.fsencode("\0".join("\0".join((*one, "")) for one in lists))
        for number in self.streams:
            os.set_blocking(number, True)  # an earlier attempt may have changed it
        with writing():
            os.pwrite(self._start, content, 0)
            os.write(self._requests, b"!")

    def close(self) -> None:
        """Close its descriptors: one that waits then ends."""
        for fd in (self._start, self._requests, self.answers):
            if fd >= 0:
                os.close(fd)
        self._start = self._requests = self.answers = -1

    def kill(self) -> None:
        """It still has to be reaped."""
        if self.pid:
            try:
                os.kill(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


def wait_until_gone(pid: int, until: float) -> None:
    """Reap a child that was killed; it blocks until then, so it is for the very end."""
    try:
        while os.waitpid(pid, os.WNOHANG)[0] == 0 and time.monotonic() < until:
            time.sleep(0.002)
    except ChildProcessError:
        pass  # it was reaped before


def _restored() -> Restored:
    return Restored(os.getpriority(os.PRIO_PROCESS, 0), oom.given_score())


def _may_undo(restored: Restored) -> int:
    """Return what this process may change and change back; a process of its own tries it.  Runs in the child."""
    pid = os.fork()
    if pid == 0:
        found = 0
        try:
            os.setpriority(os.PRIO_PROCESS, 0, LOWEST)
            os.setpriority(os.PRIO_PROCESS, 0, restored.nice)
            found |= NICE
        except OSError:
            pass
        if restored.score is not None and oom.write(FIRST_TO_KILL) and oom.write(restored.score):
            found |= SCORE
        os._exit(found)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _become(
    command: Sequence[str],
    environment: Mapping[str, str],
    inherited: signals.Inherited,
    streams: Mapping[int, int],
    given: Sequence[int],
    first: int,
    parent: int,
) -> NoReturn:
    """Runs in the child between fork and exec."""
    try:
        signal.set_wakeup_fd(-1)
        os.setpgid(0, 0)
        if parent != 1:
            spawn.prctl(spawn.PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)
        for number, fd in streams.items():
            os.dup2(fd, number)
        for number, fd in enumerate([fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, first + FDS) for fd in given], first):
            os.dup2(fd, number)
        restored = _restored()
        may = _may_undo(restored)
        if may > 0 and may & NICE:
            os.setpriority(os.PRIO_PROCESS, 0, LOWEST)
        if may > 0 and may & SCORE:
            oom.write(FIRST_TO_KILL)
        signals.restore(inherited)
        os.execvpe(command[0], list(command), dict(environment))
    finally:
        os._exit(127)
