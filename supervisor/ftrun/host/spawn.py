"""Starts children by fork, because only code in the child can take the terminal's foreground and request to die with
ftrun."""

import _signal  # type: ignore[import-not-found]
import errno
import fcntl
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import NoReturn

from ftrun.core.named_tuple import NamedTuple
from ftrun.host import oom, signals

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


class Child(NamedTuple):
    """`report` becomes readable when the child has executed (end of file) or failed to execute (its errno)."""

    pid: int
    report: int


def prctl(option: int, value: int) -> bool:
    import _ctypes  # a real PID 1 does not need it; `ctypes` would take four times as long to load

    address = _ctypes.dlsym(_ctypes.dlopen(None, os.RTLD_NOW), "prctl")  # type: ignore[arg-type]  # this program
    return bool(_ctypes.call_cdeclfunction(address, (option, value, 0, 0, 0)) == 0)


def become_subreaper() -> bool:
    """Become the parent of the tree's orphans in place of init.  The setting survives exec, but not fork."""
    return prctl(PR_SET_CHILD_SUBREAPER, 1)


def report_pipe() -> tuple[int, int]:
    """The pipe by which children report their execs: an end to read from, and one that the parent closes after the
    forks.  The first is at its end when all have executed; each that cannot writes its errno and a space."""
    return os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)


class Start(NamedTuple):
    """How one process of the command is started.  `streams`: descriptors that replace the standard streams of these
    numbers.  `terminal`: in whose foreground it is started; None: in none."""

    command: Sequence[str]
    environment: Mapping[str, str]
    streams: Mapping[int, int] = MappingProxyType({})
    terminal: int | None = None


def fork(run: Callable[[], NoReturn]) -> int:
    """The pid of a child that runs this, which may only prepare an exec and execute.  Raises OSError."""
    if os.getpid() != 1:
        import _ctypes  # noqa: F401 - loaded before the fork: the child only calls it
    # Blocked across the fork: a handler that runs in the child would write to ftrun's signal pipe.
    before = _signal.pthread_sigmask(_signal.SIG_BLOCK, signals.CAUGHT)
    try:
        with oom.original_score():
            pid = os.fork()
            if pid == 0:
                run()
            return pid
    finally:
        _signal.pthread_sigmask(_signal.SIG_SETMASK, before)


def die_with(parent: int) -> None:
    """In a child of `parent`: the kernel ends it when the thread that has forked it ends, which it does by itself where
    that is PID 1."""
    if parent != 1:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def spawn(
    start: Start, inherited: signals.Inherited, group: int = 0, reporting: tuple[int, int] | None = None
) -> Child:
    """Start a process in the process group `group`, or in one of its own (0).

    Does not wait for the exec.  The child inherits only the descriptors that ftrun itself inherited: all others are
    close-on-exec.  It gets SIGKILL when ftrun dies.  `reporting`: a pipe of `report_pipe` that several children share.
    """
    report, failed = reporting or report_pipe()
    try:
        pid = fork(partial(_become, start, inherited, os.getpid(), failed, group))
    except OSError:
        if reporting is None:
            os.close(report)
        raise
    finally:
        if reporting is None:
            os.close(failed)
    with suppress(OSError):  # it has already executed, after doing so itself; or a sandbox refuses it
        os.setpgid(pid, group or pid)  # in parent and child, so that neither has to wait for the other
    return Child(pid, report)


def _become(start: Start, inherited: signals.Inherited, parent: int, failed: int, group: int) -> NoReturn:
    """Runs in the child between fork and exec; never returns to the parent's code."""
    try:
        signal.set_wakeup_fd(-1)
        has_group = _join(group)
        if start.terminal is not None and has_group:
            os.tcsetpgrp(start.terminal, os.getpid())  # SIGTTOU is blocked here
        die_with(parent)
        for number, fd in start.streams.items():
            os.dup2(fd, number)
            os.set_blocking(number, True)  # an earlier attempt may have changed it
        signals.restore(inherited)
        if not start.command[0]:
            raise FileNotFoundError(errno.ENOENT, "an empty command")
        _execute(start.command, dict(start.environment))
    except OSError as error:
        os.write(failed, b"%d " % (error.errno or errno.EIO))
    except BaseException:
        os.write(failed, b"%d " % errno.EINVAL)
    finally:
        os._exit(127)


def _join(group: int) -> bool:
    """Enter this process group, or one of its own (0) if it has just ended.  Return whether that is permitted: a
    sandbox may refuse it, and the command runs all the same."""
    for wanted in (group, 0):
        try:
            os.setpgid(0, wanted)
        except OSError:
            continue
        return True
    return False


def _execute(command: Sequence[str], environment: dict[str, str]) -> None:
    """Execute it as execvp(3) does: a script without '#!' is run by the shell.  Raises OSError."""
    try:
        os.execvpe(command[0], list(command), environment)
    except OSError as error:
        folders = [""] if "/" in command[0] else os.get_exec_path(environment)
        paths = (os.path.join(folder, command[0]) for folder in folders)
        script = next((path for path in paths if os.path.isfile(path) and os.access(path, os.X_OK)), None)
        if error.errno != errno.ENOEXEC or script is None or _is_binary(script):
            raise
        os.execve("/bin/sh", ["sh", script, *command[1:]], environment)


def _is_binary(path: str) -> bool:
    """Whether it is a program for another machine rather than a script; as bash(1) decides it."""
    with open(path, "rb", 0) as file:
        return b"\0" in file.read(128).split(b"\n")[0]


class Piped(NamedTuple):
    """`output` is the helper's output and `held` its input, both non-blocking; its stdin ends when `held` is closed.
    Both may be the same descriptor."""

    pid: int
    output: int
    held: int


def spawn_helper(
    command: Sequence[str],
    log: int,
    passed: Sequence[int] = (),
    lasting: bool = False,
    paired: bool = False,
    expendable: bool = False,
) -> Piped:
    """Start a helper with `log` as its stderr and `passed` as 3 and up, and no other descriptor of ftrun.

    Keys of the terminal do not reach it, and if ftrun is not PID 1 it gets SIGKILL when ftrun dies.  A `lasting` helper
    does not: it completes its work when its stdin ends, and ignores signals that may be sent to all processes.  An
    `expendable` one is killed before the command where memory is short: the command would live without it.  A
    `paired` helper has one socket for both directions, which is one descriptor for ftrun.  Raises OSError if it cannot
    start.
    """
    own_ends, child_ends = _pair() if paired else _pipes()
    try:
        pid = fork(partial(_exec_helper, command, (*child_ends, log, *passed), os.getpid(), lasting, expendable))
    except OSError:
        for fd in set(own_ends):
            os.close(fd)
        raise
    finally:
        for fd in set(child_ends):
            os.close(fd)
    for fd in own_ends:
        os.set_blocking(fd, False)
    return Piped(pid, *own_ends)


Ends = tuple[int, int]  # one to read from and one to write to


def _pipes() -> tuple[Ends, Ends]:
    output, child_stdout = os.pipe2(os.O_CLOEXEC)
    try:
        child_stdin, held = os.pipe2(os.O_CLOEXEC)
    except OSError:
        os.close(output)
        os.close(child_stdout)
        raise
    return (output, held), (child_stdin, child_stdout)


def _pair() -> tuple[Ends, Ends]:
    import _socket  # the module `socket` would cost PID 1 more time than all of this

    kind = _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC
    own, of_child = (one.detach() for one in _socket.socketpair(_socket.AF_UNIX, kind))
    return (own, own), (of_child, of_child)


def _exec_helper(
    command: Sequence[str], streams: Sequence[int], parent: int, lasting: bool, expendable: bool
) -> NoReturn:
    """Runs in the child between fork and exec."""
    try:
        signal.set_wakeup_fd(-1)
        with suppress(OSError):  # a sandbox refuses it
            os.setsid()
        if not lasting:
            die_with(parent)
        _arrange(streams)
        if expendable:
            oom.write(oom.FIRST_TO_KILL)
        signals.restore(signals.Inherited(frozenset(), frozenset(signals.CAUGHT if lasting else ())))
        os.execv(command[0], list(command))
    finally:
        os._exit(127)


def _arrange(streams: Sequence[int]) -> None:
    """Make these the descriptors 0, 1, 2 and so on, and close all others, with as few as possible at a time: the limit
    may be low (`ulimit -n`).  If standard streams were closed when ftrun started, ftrun's may have their numbers."""
    left, kept = list(streams), sorted({*streams})
    for low, high in zip([-1, *kept], [*kept, 1 << 20], strict=True):
        if low + 1 < high:  # of an empty range Python may close all
            os.closerange(low + 1, high)
    for number in range(len(left)):
        if number in left[number + 1 :] and left[number] != number:
            moved = fcntl.fcntl(number, fcntl.F_DUPFD, len(left))
            left = [moved if fd == number else fd for fd in left]
        if (fd := left[number]) == number:
            os.set_inheritable(number, True)
            continue
        os.dup2(fd, number)
        if fd >= len(left) and fd not in left[number + 1 :]:
            os.close(fd)
    os.closerange(len(left), 1 << 20)


def explain_exec_failure(command: str, number: int) -> tuple[int, str]:
    """Return the exit code (126, 127) and a line for an exec that failed with this errno, as shells do."""
    if number in (errno.ENOENT, errno.ENOTDIR):
        if "/" in command and os.path.exists(command):
            return 127, f"{command}: its interpreter (the first line, '#!') was not found"
        if not command:
            return 127, "the command is empty"
        return 127, f"{command}: command not found{_quoted(command)}"
    if os.path.isdir(command):
        return 126, f"{command}: is a directory"
    if number == errno.ENOEXEC:
        return 126, f"{command}: not a program of this machine"
    return 126, f"{command}: {os.strerror(number)}"


def _quoted(command: str) -> str:
    """Return a hint if a whole command line was given as one argument."""
    if len(command.split()) < 2:
        return ""
    return f" (it is one argument with spaces: try without the quotes, ftrun {command}, or ftrun sh -c '{command}')"
