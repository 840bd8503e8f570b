"""Signals that arrive before ftrun can handle them.  Imports nothing that a bare interpreter has not loaded yet.

The kernel drops a signal for PID 1 of a namespace when its action is the default one, unless the signal is blocked
(signal.c, `sig_ignored`: "blocked signals are never ignored").  So PID 1 blocks all of them first, and unblocks them
when they have handlers (`host/signals.py`): what came meanwhile is delivered then.
"""

import _signal  # type: ignore[import-not-found]
import posix
import sys

# What must not be blocked: a fault of our own would end us without the signal's name (`host/signals.py`, NEVER_CAUGHT).
FAULTS = frozenset(
    (_signal.SIGSEGV, _signal.SIGBUS, _signal.SIGFPE, _signal.SIGILL, _signal.SIGABRT, _signal.SIGTRAP, _signal.SIGSYS)
)
OPTION = "ftrun-mask"  # -X of an interpreter that replaces this one: the mask as it was given to the first one

inherited_mask: frozenset[int] | None = None  # as ftrun was given it, where `block_all` has changed it


def block_all() -> None:
    """Block what can be handled later.  Any process but PID 1 keeps its default actions: they end it, as they should
    where nothing has been started yet."""
    global inherited_mask
    if posix.getpid() != 1 or inherited_mask is not None:
        return
    before = _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals() - FAULTS)
    given = sys._xoptions.get(OPTION)
    inherited_mask = frozenset(int(s) for s in (given.split() if isinstance(given, str) else () if given else before))


def interpreter_options() -> list[str]:
    """Words for an interpreter that replaces this one and calls `block_all` as well."""
    return [] if inherited_mask is None else ["-X", f"{OPTION}={' '.join(map(str, sorted(inherited_mask)))}"]
