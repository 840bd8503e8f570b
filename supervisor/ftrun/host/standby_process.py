"""The processes behind standbys: the command once more, which imports (`ftrun_hooks/_parked.py`), waits, and is started
when the command is; or, for several ranks, one that imports and then forks such a process for each of them.

ftrun executes them like the command: the same words, folder, streams, limits and signal settings.  While it waits a
standby is first for the OOM killer and has a low priority, where the kernel lets a process undo that.  It ends by
itself when ftrun dies, because then its requests end.
"""

import fcntl
import os
import re
import signal
import stat
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NoReturn

from ftrun.core.named_tuple import NamedTuple
from ftrun.host import oom, signals, spawn
from ftrun.host.signals import writing

VARIABLE: Final = "FTRUN_PARKED"
ROOM: Final = "FTRUN_PARKED_ROOM"  # keeps a place in the environment block for what the start adds
MORE_ROOM: Final = 8192  # bytes, beyond the variables that the start adds as far as they are known
FIRST_FD: Final = 1000  # of the descriptors of a standby, beyond those that a program counts on
LEAST_FD: Final = 64  # the least number for the first of them
SET: Final = 6  # descriptors of one standby: requests, answers, the start, and copies of the standard streams
LOWER: Final = 10  # priority (nice), below the command's; measured in ADR 18
NICE, SCORE = 1, 2  # what a process may set and undo, as its exit status says
ANSWER: Final = 8192  # bytes that are read at once
KEPT: Final = 1 << 14  # bytes of the imports that a standby leaves


class OriginalSettings(NamedTuple):
    """The priority and the oom_score_adj of a process that ftrun executes now."""

    nice: int
    score: bytes | None

    def settings(self, group: int) -> list[str]:
        score = [] if self.score is None else [f"oom={self.score.decode()}"]
        return [f"group={group}", f"nice={self.nice}", *score]


class Plan(NamedTuple):
    """How standbys are executed.  `environment`: that with which they wait; `imports`: the file with what they import;
    `room`: bytes of the variables that they get later.  `eager`: the command has never run, so it must be seen to be
    Python before it is executed, and nothing runs yet that it could disturb."""

    command: Sequence[str]
    environment: Mapping[str, str]
    imports: str
    inherited: signals.Inherited
    room: int = 0
    eager: bool = False


class StandbyProcess:
    """A standby; `answers` is to be polled, `pid` is 0 until it is known.  `streams` are those of its rank.  Raises
    OSError if its descriptors cannot be created."""

    def __init__(self, streams: Mapping[int, int]) -> None:
        self.pid, self.streams = 0, dict(streams)
        self._start = os.memfd_create("start", os.MFD_CLOEXEC)
        self._given: tuple[int, ...] = ()
        self._requests = self.answers = -1
        try:
            requests, self._requests = os.pipe2(os.O_CLOEXEC)
            self._given = (requests,)
            self.answers, answers = os.pipe2(os.O_CLOEXEC)
            self._given = requests, answers
        except OSError:
            self.close()
            raise
        os.set_blocking(self.answers, False)
        os.set_blocking(self._requests, False)

    @property
    def given(self) -> list[int]:
        """The descriptors that it inherits, in the order of their numbers there."""
        return [*self._given, self._start, *(self.streams.get(number, number) for number in range(3))]

    def close_given(self) -> None:
        for fd in self._given:
            os.close(fd)
        self._given = ()

    def read(self) -> bytes | None:
        """Return what it has answered since the last call; empty after its end; None: nothing yet."""
        try:
            return os.read(self.answers, ANSWER)
        except BlockingIOError:
            return None

    def imports(self) -> bytes:
        """What it has left for a later ftrun (`_parked.py`), if that is complete."""
        size = os.fstat(self._start).st_size
        return os.pread(self._start, KEPT, 0) if size <= KEPT else b""

    def write(self, lists: Iterable[Iterable[str]]) -> None:
        """Replace the content of the file that it reads at its start."""
        content = os.fsencode("\0".join("\0".join((*one, "")) for one in lists))
        with writing():
            os.ftruncate(self._start, 0)
            os.pwrite(self._start, content, 0)

    def go_on(self) -> None:
        with writing():
            os.write(self._requests, b"!")

    def start(self, environment: Mapping[str, str], ours: Iterable[str], withheld: Iterable[str], group: int) -> None:
        """Let the standby become the command with this environment, in this process group (0: its own).  Its answer is
        `warm`, or why it cannot.  `ours` and `withheld`: variables that may differ from those that it has waited with.
        Raises OSError."""
        variables = [f"{name}={value}" for name, value in environment.items()]
        for number in self.streams:
            os.set_blocking(number, True)  # an earlier attempt may have changed it
        self.write((variables, ours, withheld, _restored().settings(group)))
        self.go_on()

    def close(self) -> None:
        """Close its descriptors: one that waits then ends."""
        self.close_given()
        for fd in (self._start, self._requests, self.answers):
            if fd >= 0:
                os.close(fd)
        self._start = self._requests = self.answers = -1

    def kill(self) -> None:
        """Send SIGKILL; the process still has to be reaped."""
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


def execute(plan: Plan, streams: Mapping[int, int]) -> StandbyProcess:
    """A standby that imports by itself.  Raises OSError or ValueError."""
    standby = StandbyProcess(streams)
    try:
        standby.pid = _fork(plan, [standby], 0)
    except (OSError, ValueError):
        standby.close()
        raise
    return standby


def execute_template(
    plan: Plan, streams: Sequence[Mapping[int, int]], differing: Iterable[str], reports: Iterable[str]
) -> tuple[StandbyProcess, list[StandbyProcess]]:
    """A template and the standbys that it will fork, whose pids it answers.  `streams`, one for each, are of the same
    `kind`, because Python's objects for them are created before the fork.  `differing`: variables that are not the
    same for all; `reports`: the files with what the other ranks have imported.  Raises OSError or ValueError."""
    sets: list[StandbyProcess] = []
    try:
        for one in (streams[0], *streams):
            sets.append(StandbyProcess(one))
        template = sets[0]
        template.write((differing, reports))
        template.pid = _fork(plan, sets, len(streams))
    except (OSError, ValueError):
        for standby in sets:
            standby.close()
        raise
    return template, sets[1:]


def kind(streams: Mapping[int, int]) -> tuple[object, ...]:
    """What Python's objects for the standard streams depend on."""
    return tuple(_kind(streams.get(number, number)) for number in range(3))


def _kind(fd: int) -> object:
    try:
        found = os.fstat(fd)
    except OSError:
        return None
    return stat.S_IFMT(found.st_mode), found.st_blksize, os.isatty(fd)


def _fork(plan: Plan, sets: Sequence[StandbyProcess], ranks: int) -> int:
    count = SET * len(sets)
    first = min(FIRST_FD, os.sysconf("SC_OPEN_MAX") - 2 * count)
    if first < LEAST_FD:
        raise ValueError("the limit of open files (ulimit -n) is too low")
    room = "." * (plan.room + MORE_ROOM)
    environment = {**plan.environment, VARIABLE: f"{first}:{ranks}:{plan.imports}", ROOM: room}
    given = [fd for one in sets for fd in one.given]
    pid = spawn.fork(partial(_become, plan, environment, sets[0].streams, given, first, os.getpid()))
    for one in sets:
        one.close_given()
    return pid


def wait_until_gone(pid: int, until: float) -> None:
    """Reap a child that was killed; it blocks until then, so it is for the very end."""
    with suppress(ChildProcessError):  # it was reaped before
        while os.waitpid(pid, os.WNOHANG)[0] == 0 and time.monotonic() < until:
            time.sleep(0.002)


def _restored() -> OriginalSettings:
    return OriginalSettings(os.getpriority(os.PRIO_PROCESS, 0), oom.given_score())


def _may_undo(restored: OriginalSettings) -> int:
    """Return what this process may change and change back; a process of its own tries it.  Runs in the child."""
    pid = os.fork()
    if pid == 0:
        found = 0
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, restored.nice + LOWER)
            os.setpriority(os.PRIO_PROCESS, 0, restored.nice)
            found |= NICE
        if restored.score is not None and oom.write(oom.FIRST_TO_KILL) and oom.write(restored.score):
            found |= SCORE
        os._exit(found)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _become(
    plan: Plan,
    environment: Mapping[str, str],
    streams: Mapping[int, int],
    given: Sequence[int],
    first: int,
    parent: int,
) -> NoReturn:
    """Runs in the child between fork and exec."""
    try:
        signal.set_wakeup_fd(-1)
        os.setpgid(0, 0)
        spawn.die_with(parent)
        if plan.eager and not _is_python(plan.command[0], environment.get("PATH", os.defpath)):
            os.write(given[1], b"cold\0the first word of the command is not the Python interpreter itself\n")
            os._exit(0)
        copies = [_copied(fd, first + len(given)) for fd in given]
        for number, fd in streams.items():
            os.dup2(fd, number)
        for number, copy in enumerate(copies, first):
            if copy is not None:
                os.dup2(copy, number)
        restored = _restored()
        may = _may_undo(restored)
        if may > 0 and may & NICE and not plan.eager:
            os.setpriority(os.PRIO_PROCESS, 0, restored.nice + LOWER)
        if may > 0 and may & SCORE:
            oom.write(oom.FIRST_TO_KILL)
        signals.restore(plan.inherited)
        os.execvpe(plan.command[0], list(plan.command), dict(environment))
    finally:
        os._exit(127)


def _copied(fd: int, least: int) -> int | None:
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, least)
    except OSError:
        return None  # a standard stream with which ftrun was not started


def _is_python(program: str, path: str) -> bool:
    """Whether this is an interpreter, and no script that would have effects before one."""
    folders = [""] if "/" in program else [f"{folder}/" for folder in path.split(":")]
    found = next((f"{folder}{program}" for folder in folders if os.access(f"{folder}{program}", os.X_OK)), "")
    if not re.fullmatch(r"python[\d.]*[a-z]*", os.path.basename(os.path.realpath(found))):
        return False
    with open(found, "rb") as file:
        return file.read(4) == b"\x7fELF"
