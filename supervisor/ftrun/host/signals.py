"""Signals: received in order through a pipe; children get the signal settings that ftrun was started with."""

import _signal  # type: ignore[import-not-found]  # its functions return numbers, of which `signal` makes enums
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Final

from ftrun.core.named_tuple import NamedTuple
from ftrun.host import early_signals, procfs

# A crash of ftrun itself must not be hidden: a handler that returns would repeat it without end.  So these are blocked,
# and those that another process has sent are read (`watch_faults`).  The last two cannot be caught.
NEVER_CAUGHT: Final = early_signals.FAULTS | {signal.SIGKILL, signal.SIGSTOP}
CAUGHT: Final = tuple(sorted(_signal.valid_signals() - NEVER_CAUGHT))
SIGSET, SIGINFO = 16, 128  # words of sigset_t, bytes of signalfd_siginfo
STOP: Final = frozenset({int(signal.SIGTERM), int(signal.SIGINT), int(signal.SIGQUIT)})
JOB_CONTROL: Final = frozenset({int(signal.SIGTSTP), int(signal.SIGTTIN), int(signal.SIGTTOU)})


class Inherited(NamedTuple):
    """The signal settings that ftrun was started with: the blocked mask and the ignored signals."""

    mask: frozenset[int]
    ignored: frozenset[int]


# Python ignores these when it starts, which hides whether they were ignored before.
IGNORED_BY_PYTHON: Final = (int(signal.SIGPIPE), int(signal.SIGXFSZ))
# Programs that ignore SIGPIPE only on request, and pass that on to their children: shells, by POSIX, and systemd with
# `IgnoreSIGPIPE=` (systemd.exec(5)), its default.  Others (Python, sshd, nginx) ignore it only for themselves.
PASS_ON_SIGPIPE: Final = frozenset({b"sh", b"bash", b"dash", b"zsh", b"ksh", b"mksh", b"ash", b"busybox", b"systemd"})


def _ignored_by_shell() -> frozenset[int]:
    """Return which signals of `IGNORED_BY_PYTHON` were ignored when ftrun was started, as far as the parent process
    shows."""
    lines = (procfs.read(f"/proc/{os.getppid()}/status", 8192) or b"").split(b"\n")
    fields = {name: value.strip() for name, _, value in (line.partition(b":") for line in lines)}
    if fields.get(b"Name") not in PASS_ON_SIGPIPE:
        return frozenset()
    ignored = int(fields.get(b"SigIgn", b"0"), 16)
    return frozenset(number for number in IGNORED_BY_PYTHON if ignored >> (number - 1) & 1)


def _nothing(number: int, frame: object) -> None:
    """The C-level handler has already written the number to the pipe."""


class Signals:
    """Owns every catchable signal from its creation to `release`.  `stop`: the first received signal that requests the
    end."""

    stop: int | None = None

    def __init__(self) -> None:
        mask = early_signals.inherited_mask
        if mask is None:
            mask = frozenset(_signal.pthread_sigmask(_signal.SIG_BLOCK, ()))
        ignored = frozenset(s for s in CAUGHT if _signal.getsignal(s) == _signal.SIG_IGN and s not in IGNORED_BY_PYTHON)
        self.inherited = Inherited(mask, ignored | _ignored_by_shell())
        self.fd, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in CAUGHT:
            _signal.signal(number, _nothing)
        _signal.pthread_sigmask(_signal.SIG_SETMASK, early_signals.FAULTS)
        self._faults: int | None = None

    def read(self) -> bytes:
        """Return the signals that arrived since the last call, one byte each: the oldest first, then those of
        a crash."""
        try:
            numbers = os.read(self.fd, 4096)
        except BlockingIOError:
            numbers = b""
        self.stop = self.stop or next((number for number in numbers if number in STOP), None)
        return numbers + self._sent_faults()

    def watch_faults(self) -> int | None:
        """Return a descriptor that is readable when somebody has sent a signal of a crash; None if there is none, so
        that they have no effect.  They wait for the first call, which loads ctypes: not before the command starts."""
        if self._faults is None:
            import ctypes

            numbers = (ctypes.c_ulong * SIGSET)(sum(1 << (number - 1) for number in early_signals.FAULTS))
            fd = ctypes.CDLL(None).signalfd(-1, numbers, os.O_NONBLOCK | os.O_CLOEXEC)
            self._faults = fd if fd >= 0 else None
        return self._faults

    def _sent_faults(self) -> bytes:
        if self._faults is None:
            return b""
        try:
            found = os.read(self._faults, len(early_signals.FAULTS) * SIGINFO)
        except BlockingIOError:
            return b""
        each = [found[at : at + SIGINFO] for at in range(0, len(found), SIGINFO)]
        # A positive code (`ssi_code`): the kernel reports something about ftrun, such as broken memory that it may
        # drop.
        sent = [one for one in each if int.from_bytes(one[8:12], sys.byteorder, signed=True) <= 0]
        return bytes(int.from_bytes(one[:4], sys.byteorder) for one in sent)

    def requeue(self, numbers: bytes) -> None:
        """Put back signals that were read before there was a handler for them, except those that request the end, which
        `stop` holds, and SIGCHLD."""
        pending = bytes(number for number in numbers if number not in STOP and number != signal.SIGCHLD)
        with suppress(BlockingIOError):  # the pipe is full: more signals than were read
            os.write(self._write, pending)

    def release(self) -> None:
        """Stop catching signals: for the very end."""
        signal.set_wakeup_fd(-1)
        for fd in (self.fd, self._write, self._faults):
            if fd is not None:
                os.close(fd)


def restore(inherited: Inherited) -> None:
    """Set dispositions and mask as ftrun was started with; runs in the child, with all signals blocked, right before
    exec."""
    for number in CAUGHT:
        _signal.signal(number, _signal.SIG_IGN if number in inherited.ignored else _signal.SIG_DFL)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, inherited.mask)


@contextmanager
def blocked(*numbers: int, dropped: Sequence[int] = ()) -> Iterator[None]:
    """Block these signals; those of `dropped` that arrive meanwhile are discarded."""
    before = _signal.pthread_sigmask(_signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        for number in dropped:
            if number in _signal.sigpending() and number not in before:
                _signal.sigtimedwait((number,), 0)
        _signal.pthread_sigmask(_signal.SIG_SETMASK, before)


def writing() -> AbstractContextManager[None]:
    """For every write of ftrun itself to a pipe, socket, file or terminal.  It may hit a broken pipe or a file size
    limit, or be a background write to a terminal: the resulting signal must not be forwarded to the command."""
    raised = signal.SIGPIPE, signal.SIGXFSZ
    return blocked(signal.SIGTTOU, *raised, dropped=raised)
