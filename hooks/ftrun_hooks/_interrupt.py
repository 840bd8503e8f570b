"""Leaving a round: an exception that arrives in the main thread, but never within ftrun's own critical sections.

A side thread sends the main thread a signal, whose handler raises `Fenced`.  The handler raises only while the training
function runs (`armed`), outside critical sections (`deferred`), outside imports, whose interruption would leave half a
module behind, and not while an earlier `Fenced` still propagates, so that no cleanup of the program is interrupted.
Otherwise it does nothing: the end of a critical section raises at once, and the side thread repeats the signal until
the function has been left, also where the program swallowed the exception.
"""

from __future__ import annotations

import sys
import threading
from _thread import get_ident
from typing import Any

CHAIN = 64  # exceptions of a chain that are examined
IMPORTING = "<frozen importlib._bootstrap>"


class Fenced(BaseException):
    """The round has ended: the training function is to be left, and ftrun calls it again in the next round.

    Let it pass.  It is no `Exception`, so that `except Exception` does not catch it.
    """


class Deferred:
    """`with deferred:` is a critical section: what it does is not interrupted by `Fenced`.  May be nested."""

    def __init__(self) -> None:
        self.armed = self.pending = False
        self.depth = 0  # of critical sections of the main thread; no other thread receives the signal
        self.main = threading.main_thread().ident
        self.why = ""
        self.base: Any = None  # the frame that called the training function

    def __enter__(self) -> None:
        if self.armed and get_ident() == self.main:
            self.depth += 1  # from here on, also before `with` begins, the handler does not raise

    def __exit__(self, *error: object) -> None:
        if self.depth and get_ident() == self.main:
            self.depth -= 1
            if self.pending and not self.depth:
                self.interrupt(sys._getframe(1))

    def arm(self, base: Any) -> None:
        """The training function is about to be called by the frame `base`."""
        self.depth, self.pending, self.base = 0, False, base
        self.armed = True

    def disarm(self) -> None:
        self.armed = self.pending = False
        self.depth, self.base = 0, None

    def interrupt(self, frame: Any) -> None:
        """Raise Fenced, unless the main thread must not be interrupted now."""
        if not self.armed or fenced_in(sys.exc_info()[1]):
            return
        if self.depth:
            self.pending = True
            return
        while frame is not None and frame is not self.base:
            if frame.f_code.co_filename == IMPORTING:
                return
            frame = frame.f_back
        self.pending = False
        raise Fenced(self.why)


def fenced_in(error: BaseException | None) -> bool:
    """Whether this exception is Fenced, or was raised because of it."""
    seen = 0
    while error is not None and seen < CHAIN:
        if isinstance(error, Fenced):
            return True
        error, seen = error.__cause__ or error.__context__, seen + 1
    return False


class Signal:
    """The signal that interrupts the main thread: the first real-time signal that the program does not use.

    Made in the main thread.  `number` is None if there is none.
    """

    def __init__(self) -> None:
        import signal  # only here: it would cost each program more time than the rest of the hooks

        self.kill = signal.pthread_kill
        self.number: int | None = None
        for number in range(signal.SIGRTMIN + 7, signal.SIGRTMAX):
            if signal.getsignal(number) == signal.SIG_DFL:
                signal.signal(number, lambda _, frame: deferred.interrupt(frame))
                self.number = number
                return

    def send(self) -> None:
        """Called by the side thread; the handler runs in the main thread as soon as that executes Python code."""
        if self.number is not None and deferred.main is not None:
            self.kill(deferred.main, self.number)


deferred = Deferred()
