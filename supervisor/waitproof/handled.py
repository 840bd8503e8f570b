"""Which of the signals that a process handles may end one of its waits.  Pure.

Some end hardly any wait of a healthy job: those that ask a process to end or to pause, those that its own code raises,
and those that the C library uses for itself.
"""

from typing import Final

CHILD: Final = 17  # SIGCHLD
INTERRUPT: Final = 2  # SIGINT, which Python handles by itself
TERMINATE: Final = 15  # SIGTERM
_ENDING: Final = frozenset({1, INTERRUPT, 3, TERMINATE})  # SIGHUP, SIGQUIT
# SIGILL, SIGBUS, SIGFPE, SIGSEGV, SIGPIPE, SIGXFSZ, SIGSYS
_OWN: Final = frozenset({4, 7, 8, 11, 13, 25, 31, 32, 33})
_ABORT: Final = 6  # SIGABRT, which `faulthandler.enable()` handles together with the other fatal signals:
_FATAL: Final = frozenset({4, 7, 8, 11})
# They end a job, and nobody sends one to a rank that trains for it to continue.
LAST: Final = frozenset({1, INTERRUPT, TERMINATE})
_PAUSING: Final = frozenset({18, 20, 21, 22})  # SIGCONT, SIGTSTP, SIGTTIN, SIGTTOU
_HARMLESS: Final = _ENDING | _PAUSING | _OWN | {CHILD}
_INTERRUPTING: Final = 41  # SIGRTMIN + 7: the first one that hooks/ftrun_hooks/_interrupt.py may take


def alarms(caught: frozenset[int], obeys_ftrun: bool = False) -> list[int]:
    """The handled signals that may end any wait.  `obeys_ftrun`: a thread of the process interrupts its main thread on
    an order of ftrun, with the first signal that the program does not use; if the program may use one of these too, it
    is one."""
    orders = {number for number in caught if number >= _INTERRUPTING} if obeys_ftrun else set()
    return sorted(caught - _HARMLESS - _faulthandlers(caught) - (orders if len(orders) == 1 else set()))


def awaited(caught: frozenset[int], python: bool) -> list[int]:
    """The signals that may end a call that waits for a signal."""
    return sorted(caught - _OWN - _faulthandlers(caught) - {CHILD} - ({INTERRUPT} if python else set()))


def asking(caught: frozenset[int], python: bool) -> frozenset[int]:
    """The handled signals that ask a process to end, to pause or to go on after a pause, and that the program handles:
    it may do something else instead, like a job that waits after SIGTSTP until its scheduler sends SIGCONT."""
    return caught & (_ENDING | _PAUSING) - ({INTERRUPT} if python else set())


def _faulthandlers(caught: frozenset[int]) -> frozenset[int]:
    return frozenset({_ABORT}) if caught >= _FATAL else frozenset()
