"""Signals: caught by a pipe in the order in which they came, and given back to the child as we were given them."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from ftrun.host import early_signals, procfs

# A fault of our own must not be swallowed (tini's rule); the last two cannot be caught.
NEVER_CAUGHT: Final = frozenset(
    {
        signal.SIGSEGV,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGILL,
        signal.SIGABRT,
        signal.SIGTRAP,
        signal.SIGSYS,
        signal.SIGKILL,
        signal.SIGSTOP,
    }
)
CAUGHT: Final = tuple(sorted(int(s) for s in signal.valid_signals() if s not in NEVER_CAUGHT))
STOP: Final = frozenset({int(signal.SIGTERM), int(signal.SIGINT), int(signal.SIGQUIT)})
JOB_CONTROL: Final = frozenset({int(signal.SIGTSTP), int(signal.SIGTTIN), int(signal.SIGTTOU)})
# Raised by our own writes: they must not reach the command, which did not write.
_WRITING: Final = (signal.SIGPIPE, signal.SIGTTOU, signal.SIGXFSZ)


class Inherited(NamedTuple):
    """What ftrun was started with: the blocked mask and the ignored signals."""

    mask: frozenset[int]
    ignored: frozenset[int]


# Python itself ignores these at its start; what they were before cannot be seen in this process any more.
BY_PYTHON: Final = (int(signal.SIGPIPE), int(signal.SIGXFSZ))
# Programs that ignore SIGPIPE only on request, and hand that on to all that they start: POSIX says so of shells,
# systemd.exec(5) of `IgnoreSIGPIPE=`, which is the default.  Others (Python, sshd, nginx) ignore it for themselves.
HANDING_ON: Final = frozenset({b"sh", b"bash", b"dash", b"zsh", b"ksh", b"mksh", b"ash", b"busybox", b"systemd"})


def _ignored_by_shell() -> frozenset[int]:
    """Those of `BY_PYTHON` that we were started with as ignored, as far as our parent tells."""
    lines = (procfs.read(f"/proc/{os.getppid()}/status", 8192) or b"").split(b"\n")
    facts = {name: value.strip() for name, _, value in (line.partition(b":") for line in lines)}
    if facts.get(b"Name") not in HANDING_ON:
        return frozenset()
    ignored = int(facts.get(b"SigIgn", b"0"), 16)
    return frozenset(number for number in BY_PYTHON if ignored >> (number - 1) & 1)


def _nothing(number: int, frame: object) -> None:
    """The C-level handler has already written the number to the pipe."""


class Signals:
    """Owns every catchable signal from its creation to `release`.  `stop`: the first of those read that asks to end."""

    stop: int | None = None

    def __init__(self) -> None:
        mask = early_signals.inherited_mask
        if mask is None:
            mask = frozenset(int(s) for s in signal.pthread_sigmask(signal.SIG_BLOCK, ()))
        ignored = frozenset(s for s in CAUGHT if signal.getsignal(s) == signal.SIG_IGN and s not in BY_PYTHON)
        self.inherited = Inherited(mask, ignored | _ignored_by_shell())
        self.fd, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in CAUGHT:
            signal.signal(number, _nothing)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def read(self) -> bytes:
        """The signals that came since the last call, one byte each, oldest first."""
        try:
            numbers = os.read(self.fd, 4096)
        except BlockingIOError:
            return b""
        self.stop = self.stop or next((number for number in numbers if number in STOP), None)
        return numbers

    def requeue(self, numbers: bytes) -> None:
        """These were read before there was anybody to have them: they come once more, but for those that ask to end,
        as `stop` says, and for what only told of a child of ours."""
        left = bytes(number for number in numbers if number not in STOP and number != signal.SIGCHLD)
        try:
            os.write(self._write, left)
        except BlockingIOError:
            pass  # nobody has read so many

    def release(self) -> None:
        """From here on nothing is caught: for the very end."""
        signal.set_wakeup_fd(-1)
        os.close(self.fd)
        os.close(self._write)


def restore(inherited: Inherited) -> None:
    """In the child, with all signals blocked, right before exec: dispositions and mask as ftrun was given them."""
    for number in CAUGHT:
        signal.signal(number, signal.SIG_IGN if number in inherited.ignored else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, inherited.mask)


@contextmanager
def writing() -> Iterator[None]:
    """Our own write may break a pipe, meet a file size limit or be a background write to a terminal; the signal for
    that is ours and is dropped."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _WRITING)
    try:
        yield
    finally:
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            if number in signal.sigpending() and number not in before:
                signal.sigtimedwait((number,), 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
