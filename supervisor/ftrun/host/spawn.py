"""Starting a child: fork, because only code in the child can take the terminal and ask to die with us."""

import errno
import fcntl
import os
import signal
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, NoReturn

from ftrun.host import oom, signals

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


class Child(NamedTuple):
    """`report` becomes readable when the child has executed (end of file) or failed to (its errno)."""

    pid: int
    report: int


def prctl(option: int, value: int) -> bool:
    import ctypes  # not needed by a real PID 1

    return bool(ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) == 0)


def become_subreaper() -> bool:
    """Orphans of our tree come to us and not to init.  The bit survives exec, not fork."""
    return prctl(PR_SET_CHILD_SUBREAPER, 1)


def spawn(
    command: Sequence[str],
    environment: Mapping[str, str],
    inherited: signals.Inherited,
    terminal: int | None = None,
    die_with_us: bool = True,
    streams: Mapping[int, int] = MappingProxyType({}),
) -> Child:
    """Start `command` in a process group of its own, in the foreground of `terminal` if there is one.

    Does not wait for the exec.  Only descriptors that ftrun itself inherited are passed on: all its own are
    close-on-exec.  With `die_with_us` the child gets SIGKILL when ftrun dies (as PID 1 the kernel sees to that).
    `streams`: descriptors of ours that it gets in place of the standard streams of these numbers.
    """
    report, failed = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    if die_with_us:
        import ctypes  # noqa: F401 - loaded before the fork: the child only calls it
    parent = os.getpid()
    # Blocked across the fork: a handler that ran in the child would write into our own pipe.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals.CAUGHT)
    try:
        with oom.original_score():
            pid = os.fork()
            if pid == 0:
                _become(command, environment, inherited, terminal, parent if die_with_us else None, failed, streams)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    os.close(failed)
    try:
        os.setpgid(pid, pid)  # in both, so that neither has to wait for the other
    except OSError:
        pass  # it has executed already, having done so itself
    return Child(pid, report)


def _become(
    command: Sequence[str],
    environment: Mapping[str, str],
    inherited: signals.Inherited,
    terminal: int | None,
    parent: int | None,
    failed: int,
    streams: Mapping[int, int],
) -> NoReturn:
    """The child between fork and exec; never returns into the parent's code."""
    try:
        signal.set_wakeup_fd(-1)
        os.setpgid(0, 0)
        if terminal is not None:
            os.tcsetpgrp(terminal, os.getpid())  # SIGTTOU is blocked here
        if parent is not None:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)
        for number, fd in streams.items():
            os.dup2(fd, number)
            os.set_blocking(number, True)  # an earlier attempt may have left it otherwise
        signals.restore(inherited)
        if not command[0]:
            raise FileNotFoundError(errno.ENOENT, "an empty word")
        os.execvpe(command[0], list(command), dict(environment))
    except OSError as error:
        os.write(failed, str(error.errno or errno.EIO).encode())
    except BaseException:
        os.write(failed, str(errno.EINVAL).encode())
    finally:
        os._exit(127)


AF_UNIX, SOCK_STREAM, SOCK_CLOEXEC = 1, 1, 0o2000000


class Piped(NamedTuple):
    """`output` is what it says, `held` what it is told, neither of them blocking; its stdin ends with `held`.  The two
    may be one."""

    pid: int
    output: int
    held: int


def spawn_helper(
    command: Sequence[str], log: int, passed: Sequence[int] = (), lasting: bool = False, paired: bool = False
) -> Piped:
    """Start a program of ours with `log` as its stderr and `passed` from 3 on, and nothing else of ours.

    It gets no key of the terminal and, where we are not PID 1, SIGKILL when we die.  A `lasting` one does not: it sees
    its stdin end and does what is left to do, deaf to signals that may be sent to all.  A `paired` one has a socket for
    both directions: one descriptor of ours.  OSError if it cannot start.
    """
    if os.getpid() != 1:
        import ctypes  # noqa: F401 - loaded before the fork: the child only calls it
    parent = os.getpid()
    ours, theirs = _pair() if paired else _pipes()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals.CAUGHT)
    try:
        with oom.original_score():
            pid = os.fork()
            if pid == 0:
                _help(command, (*theirs, log, *passed), parent, lasting)
    except OSError:
        for fd in set(ours):
            os.close(fd)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for fd in set(theirs):
            os.close(fd)
    for fd in ours:
        os.set_blocking(fd, False)
    return Piped(pid, *ours)


Ends = tuple[int, int]  # to read from and to write to


def _pipes() -> tuple[Ends, Ends]:
    output, said = os.pipe2(os.O_CLOEXEC)
    try:
        end, held = os.pipe2(os.O_CLOEXEC)
    except OSError:
        os.close(output)
        os.close(said)
        raise
    return (output, held), (end, said)


def _pair() -> tuple[Ends, Ends]:
    """Without the socket module, which would cost PID 1 more than all of this."""
    import ctypes

    both = (ctypes.c_int * 2)()
    if ctypes.CDLL(None, use_errno=True).socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, both):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return (both[0], both[0]), (both[1], both[1])


def _help(command: Sequence[str], streams: Sequence[int], parent: int, lasting: bool) -> NoReturn:
    """The child between fork and exec."""
    try:
        signal.set_wakeup_fd(-1)
        os.setsid()
        if parent != 1 and not lasting:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        # Ours may have taken the numbers of the standard streams, where those were closed at our start.
        for number, fd in enumerate([fcntl.fcntl(stream, fcntl.F_DUPFD, len(streams)) for stream in streams]):
            os.dup2(fd, number)
        os.closerange(len(streams), 1 << 20)
        signals.restore(signals.Inherited(frozenset(), frozenset(signals.CAUGHT if lasting else ())))
        if lasting or os.getppid() == parent:
            os.execv(command[0], list(command))
    finally:
        os._exit(127)


def explain_exec_failure(command: str, number: int) -> tuple[int, str]:
    """The exit code (126, 127) and the line for an exec that failed with this errno, as shells have it."""
    if number in (errno.ENOENT, errno.ENOTDIR):
        if "/" in command and os.path.exists(command):
            return 127, f"{command}: its interpreter (the first line, '#!') was not found"
        if not command:
            return 127, "the command is an empty word"
        return 127, f"{command}: command not found{_quoted(command)}"
    if os.path.isdir(command):
        return 126, f"{command}: is a directory"
    if number == errno.ENOEXEC:
        return 126, f"{command}: not a program (no '#!' line, or built for another machine)"
    return 126, f"{command}: {os.strerror(number)}"


def _quoted(command: str) -> str:
    """A hint for a whole command line that was given as one word."""
    if len(command.split()) < 2:
        return ""
    return f" (it is one word with spaces in it: try without the quotes, ftrun {command}, or ftrun sh -c '{command}')"
