"""The calls with which a rank reports heartbeats, checkpoints, its planned end and a permanent failure."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from _thread import get_ident
from time import monotonic_ns

from . import layout as at
from ._interrupt import deferred
from ._slot import own_slot
from .layout import ALIVE_AT, CREDIT, MOVED_AT, SHORT, STEP  # for speed

TOO_HIGH = (1 << 63) - 1


def beat(step: object = None) -> None:
    """This rank is alive; from the main thread, or with a step that advances, it also makes progress.

    Only the first call makes system calls.  A step that is not an integer from 0 to 2**63 - 2 is ignored.
    """
    try:
        words = own_slot.words
        if words is None:
            if own_slot.settled:
                return
            words = own_slot.claim()
            if words is None:
                return
        now = monotonic_ns()
        after = 0 if step is None else step + 1 if type(step) is int else _after(step)
        if own_slot.step < after <= TOO_HIGH:
            own_slot.step = words[STEP] = after
        elif get_ident() != own_slot.main:
            words[ALIVE_AT] = now
            return
        words[MOVED_AT] = now
        silence = now - own_slot.moved_at - own_slot.credit
        own_slot.moved_at = now
        if own_slot.credit:
            # After MOVED_AT: a read in between finds too much credit, but never too great an age.
            own_slot.credit = words[CREDIT] = 0
        if silence > SHORT:
            own_slot.long.append((silence, now))
        own_slot.left -= 1
        if own_slot.left <= 0:
            own_slot.learn()
    except Exception:  # at interpreter shutdown even the names above may be gone
        pass


def checkpoint(step: object, path: object = None) -> None:
    """A checkpoint of `step` is safe on disk, at `path`.  It is a heartbeat too, and a newer one always is progress."""
    try:
        words = own_slot.claim()
        if words is None:
            return
        beat(step)
        with deferred:
            own_slot.write_text(at.CHECKPOINT, None if path is None else os.fsdecode(path))  # type: ignore[arg-type]
            after = _after(step)
            now = monotonic_ns()
            if after > words[at.CHECKPOINT_STEP]:
                own_slot.moved_at = words[MOVED_AT] = now
            words[at.CHECKPOINT_STEP] = after
            words[at.CHECKPOINT_AT] = now
            own_slot.ring()
    except Exception:
        pass


def done() -> None:
    """This rank has trained to its end and is about to exit.  Called automatically at an exit without an
    uncaught exception, whatever its status.

    It is a heartbeat, and from now on the process has as long as between any two of them: one that hangs while it
    shuts down is a hang like any other, but its training has not failed.  More heartbeats undo it.
    """
    _flag(at.DONE)


def fail(why: object, recoverable: bool = False) -> None:
    """No restart will cure this: the job ends, for the reason `why`.  A recoverable failure need not be reported."""
    if recoverable:
        return
    try:
        if own_slot.claim() is not None:
            own_slot.write_text(at.FAIL, str(why))
            _flag(at.FATAL)
    except Exception:
        pass


def _flag(flag: int) -> None:
    try:
        words = own_slot.claim()
        if words is None:
            return
        with deferred, own_slot.lock:
            words[at.FLAGS] |= flag
            if flag == at.DONE:
                own_slot.moved_at = words[MOVED_AT] = monotonic_ns()
                own_slot.credit = words[CREDIT] = 0
        own_slot.ring()
    except Exception:
        pass


def _after(step: object) -> int:
    """The step as the file stores it: step + 1, and zero for a value that is not a step."""
    try:
        from operator import index  # numpy's and torch's integers have __index__ and are no int

        after = index(step) + 1  # type: ignore[arg-type]
    except Exception:
        return 0
    return after if 0 < after <= TOO_HIGH else 0


def _at_exit() -> None:
    # The interpreter leaves an uncaught exception in sys.last_type before it runs this: a crash is not a `done`.
    # An excepthook would notice the same only until the program sets its own.
    if own_slot.words is not None and not hasattr(sys, "last_type"):
        done()


def _main_thread_ended() -> None:
    """The main thread has ended, and the interpreter waits for the other threads; only then do functions of atexit run.

    Where another thread trains, the program is not at its end.  A process that never sent a heartbeat reports that it
    waits for threads: after a restart there may be nothing left to train.
    """
    if hasattr(sys, "last_type"):
        return
    if own_slot.words is not None:
        waits = own_slot.mover == own_slot.main
    else:
        waits = any(not thread.daemon and thread.ident != get_ident() for thread in threading.enumerate())
    if waits:
        done()


def _watch_main_thread() -> None:
    # `threading._register_atexit` has functions called last that were registered first, after those that wait for
    # the threads of executors.
    wait_for_threads = threading._shutdown  # type: ignore[attr-defined]

    def _shutdown() -> None:
        try:
            _main_thread_ended()
        except Exception:
            pass
        wait_for_threads()

    threading._shutdown = _shutdown  # type: ignore[attr-defined]


atexit.register(_at_exit)
if hasattr(threading, "_shutdown") and os.environ.get("FTRUN_BEAT_DIR"):
    _watch_main_thread()
