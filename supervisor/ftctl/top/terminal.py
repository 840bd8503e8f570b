"""The terminal of a live view: keys and signals, and the original state restored at the end."""

import os
import select
import signal
import sys
import termios
import time
import tty
from types import FrameType
from typing import Any, Final, Self

ENDS: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
STOP: Final = signal.SIGTSTP
CAUGHT: Final = (*ENDS, STOP, signal.SIGWINCH)


def shows_unicode() -> bool:
    """Whether the terminal shows Unicode: not with the locale C or POSIX, for which Python itself assumes UTF-8."""
    assumed = bool(sys.flags.utf8_mode) and "PYTHONUTF8" not in os.environ
    return not assumed and (getattr(sys.stdout, "encoding", "") or "").lower().replace("-", "") == "utf8"


def shows_colours() -> bool:
    """Whether the terminal shows colours, by its name; rich handles `NO_COLOR`."""
    return not os.environ.get("TERM", "dumb").startswith(("dumb", "vt"))


class Keys:
    """Reads keys at once and without echo; signals are results of `wait`.  On exit, for any reason, the terminal and
    the signal handlers are restored."""

    def __init__(self) -> None:
        self._fd = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
        self._before: dict[int, Any] = {}
        self._caught: list[int] = []

    def __enter__(self) -> Self:
        self._wake_reader, self._wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._old_wake = signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)
        for number in CAUGHT:
            self._before[number] = signal.signal(number, self._catch)
        self._modes = None if self._fd is None else termios.tcgetattr(self._fd)
        if self._fd is not None:
            tty.setcbreak(self._fd)
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd is not None and self._modes is not None:
            try:
                termios.tcsetattr(self._fd, termios.TCSADRAIN, self._modes)
            except termios.error:
                pass  # the terminal has hung up
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._old_wake)
        os.close(self._wake_reader)
        os.close(self._wake_writer)

    def _catch(self, number: int, frame: FrameType | None) -> None:
        self._caught.append(number)
        if number in ENDS:
            signal.signal(number, signal.SIG_DFL)  # if the terminal blocks, a second one ends the program at once

    def wait(self, seconds: float) -> str | int | None:
        """A key, the number of a signal, or None after so many seconds."""
        until = time.monotonic() + seconds
        while not self._caught:
            left = until - time.monotonic()
            if left <= 0:
                return None
            sources = [self._wake_reader, *([] if self._fd is None else [self._fd])]
            ready, _, _ = select.select(sources, [], [], left)
            if self._wake_reader in ready:
                os.read(self._wake_reader, 4096)
            elif self._fd in ready and self._fd is not None:
                key = self._read(self._fd)
                if key:
                    return key
                self._fd = None  # end of input: there will be no more keys
        return self._caught.pop(0)

    def _read(self, fd: int) -> str:
        try:
            key = os.read(fd, 1)
            if key == b"\x1b" and select.select([fd], [], [], 0)[0]:  # the rest of an arrow key
                key += os.read(fd, 2)
            return key.decode("ascii", "replace")
        except OSError:
            return ""
