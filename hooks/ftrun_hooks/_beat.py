"""Beats, checkpoints, and the last words of a rank."""

from __future__ import annotations

import atexit
import os
import sys
from _thread import get_ident
from time import monotonic_ns

from ._slot import mine
from .layout import (
    ALIVE_AT,
    CHECKPOINT,
    CHECKPOINT_AT,
    CHECKPOINT_STEP,
    CREDIT,
    DONE,
    FAIL,
    FATAL,
    FLAGS,
    MOVED_AT,
    SHORT,
    STEP,
)

TOO_HIGH = (1 << 63) - 1


def beat(step: object = None) -> None:
    """This rank is alive; from the main thread, or with a step that advances, it also moves.

    Makes no system call but at the first of them.  A step that is no integer from 0 to 2**63 - 2 is as none.
    """
    try:
        words = mine.words
        if words is None:
            if mine.settled:
                return
            words = mine.claim()
            if words is None:
                return
        now = monotonic_ns()
        after = 0 if step is None else step + 1 if type(step) is int else _after(step)
        if mine.step < after <= TOO_HIGH:
            mine.step = words[STEP] = after
        elif get_ident() != mine.main:
            words[ALIVE_AT] = now
            return
        words[MOVED_AT] = now
        silence = now - mine.moved_at - mine.credit
        mine.moved_at = now
        if mine.credit:
            # After MOVED_AT: a look in between sees too much credit, never an age that is too great.
            mine.credit = words[CREDIT] = 0
        if silence > SHORT:
            mine.long.append((silence, now))
        mine.left -= 1
        if mine.left <= 0:
            mine.learn()
    except Exception:  # at interpreter shutdown even the names above may be gone
        pass


def checkpoint(step: object, path: object = None) -> None:
    """A checkpoint of `step` is safe on disk, at `path`: progress.  It is a beat too, and a newer one always moves."""
    try:
        words = mine.claim()
        if words is None:
            return
        beat(step)
        mine.write_text(CHECKPOINT, None if path is None else os.fsdecode(path))  # type: ignore[arg-type]
        after = _after(step)
        now = monotonic_ns()
        if after > words[CHECKPOINT_STEP]:
            mine.moved_at = words[MOVED_AT] = now
        words[CHECKPOINT_STEP] = after
        words[CHECKPOINT_AT] = now
        mine.ring()
    except Exception:
        pass


def done() -> None:
    """This rank ends on purpose: nobody waits for its beats.  Said by itself at a clean exit."""
    _flag(DONE)


def fail(why: object, recoverable: bool = False) -> None:
    """No restart will cure this: the job ends, and `why` is its reason.  A recoverable failure needs no word."""
    if recoverable:
        return
    try:
        if mine.claim() is not None:
            mine.write_text(FAIL, str(why))
            _flag(FATAL)
    except Exception:
        pass


def _flag(flag: int) -> None:
    try:
        words = mine.claim()
        if words is None:
            return
        with mine.lock:
            words[FLAGS] |= flag
        mine.ring()
    except Exception:
        pass


def _after(step: object) -> int:
    """The step as the file keeps it: one more, and zero for what is none."""
    try:
        from operator import index  # numpy's and torch's integers have __index__ and are no int

        after = index(step) + 1  # type: ignore[arg-type]
    except Exception:
        return 0
    return after if 0 < after <= TOO_HIGH else 0


def _at_exit() -> None:
    # The interpreter leaves an uncaught exception in sys.last_type before it runs this: a crash is not a `done`.
    # An excepthook would say the same until the program sets its own.
    if mine.words is not None and not hasattr(sys, "last_type"):
        done()


atexit.register(_at_exit)
