"""Holds back signals that arrive before ftrun can handle them.  Imports only modules that a bare interpreter has loaded
already.

The kernel drops a signal for PID 1 of a namespace if its action is the default one, unless the signal is blocked
(signal.c, `sig_ignored`: "blocked signals are never ignored").  So PID 1 blocks all signals first, and unblocks them
when they have handlers (`host/signals.py`): signals that arrived meanwhile are delivered then.
"""

import _signal  # type: ignore[import-not-found]
import posix
import sys

# Signals of a crash.  Blocking does not hide one: the kernel ends a process that causes it itself, with the default
# action, also if it is PID 1 (signal.c, `force_sig_info_to_task`), and abort(3) unblocks SIGABRT.
FAULTS = frozenset(
    (_signal.SIGSEGV, _signal.SIGBUS, _signal.SIGFPE, _signal.SIGILL, _signal.SIGABRT, _signal.SIGTRAP, _signal.SIGSYS)
)
OPTION = "ftrun-mask"  # -X option of an interpreter that replaces this one: the signal mask of the first one

inherited_mask: frozenset[int] | None = None  # the mask that ftrun was started with, if `block_all` has changed it


def block_all() -> None:
    """Block all signals that can be handled later.  A process other than PID 1 keeps its default actions: they end it,
    which is correct as long as it has started nothing."""
    global inherited_mask
    if posix.getpid() != 1 or inherited_mask is not None:
        return
    before = _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
    given = sys._xoptions.get(OPTION)
    inherited_mask = frozenset(int(s) for s in (given.split() if isinstance(given, str) else () if given else before))


def interpreter_options() -> list[str]:
    """Return the options for an interpreter that replaces this one and calls `block_all` as well."""
    return [] if inherited_mask is None else ["-X", f"{OPTION}={' '.join(map(str, sorted(inherited_mask)))}"]
