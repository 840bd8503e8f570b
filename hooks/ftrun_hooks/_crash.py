"""The stack of a Python process that a signal ends (SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL): faulthandler writes it
into `crashed-<CLOCK_MONOTONIC in ns, 20 digits>-<pid>` in the beat folder, which is empty until then.

Where the program, or Python's own options, have switched faulthandler on, that stays.  This file is loaded alone,
without the package.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

CRASHED = "crashed-"
SIZE = 16384  # bytes that are read
FILES = 256  # of more files the oldest empty ones are removed: their processes were killed, as others remove their own
# A number that is opened last: were it a low one, a program that closes all descriptors, as daemons do, would open a
# file of its own under it, and a crash would write there.
NUMBERS = range(240, 200, -1)


def enable(folder: str) -> tuple[str, ModuleType | None]:
    """The path of the file, empty where there is none; and faulthandler, if the program has not imported it."""
    known = "faulthandler" in sys.modules
    try:
        import faulthandler

        if faulthandler.is_enabled():
            return "", None
        _make_room(folder)
        path = os.path.join(folder, "%s%020d-%d" % (CRASHED, time.monotonic_ns(), os.getpid()))
        mode = 0o600 if os.stat(folder).st_uid == os.geteuid() else 0o640  # for the supervisor, if that is another user
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, mode)
        faulthandler.enable(_raised(fd))
        _show_own_abort()
        _show_own_faulthandler(faulthandler)
        return path, None if known else faulthandler
    except Exception:
        return "", None
    finally:
        if not known:
            sys.modules.pop("faulthandler", None)


def _show_own_faulthandler(module: ModuleType) -> None:
    """Programs enable faulthandler if it is not enabled, and switch off what they have enabled: they see their own."""
    originals = module.enable, module.disable, module.is_enabled
    own = False

    def enable(*args, **kwargs):  # type: ignore[no-untyped-def]
        nonlocal own
        originals[0](*args, **kwargs)
        own = True

    def disable():  # type: ignore[no-untyped-def]
        nonlocal own
        own, was_own = False, own
        return originals[1]() if was_own else False

    def is_enabled():  # type: ignore[no-untyped-def]
        return own and originals[2]()

    for original, function in zip(originals, (enable, disable, is_enabled)):  # noqa: B905 - Python 3.8 has no `strict`
        function.__doc__, function.__module__ = original.__doc__, original.__module__
        function.__qualname__ = original.__name__
        setattr(module, original.__name__, function)


def _show_own_abort() -> None:
    """Let it be seen from outside whether the program handles SIGABRT itself: a handler of that may end a wait, and
    the kernel does not say whose a handler is.  Then another signal of the same set is left to the kernel
    (supervisor/waitproof/handled.py), one that faulthandler still handles: a handler of the program, or of a library in
    C, stays."""
    import _signal  # type: ignore[import-not-found,unused-ignore]

    original = _signal.signal

    def signal(signalnum, handler, /):  # type: ignore[no-untyped-def]
        if signalnum != _signal.SIGABRT or not callable(handler):
            return original(signalnum, handler)
        shared = _function(_signal.SIGABRT)
        before = original(signalnum, handler)
        for number in (_signal.SIGILL, _signal.SIGFPE, _signal.SIGBUS):
            if shared and _function(number) == shared:
                original(number, _signal.SIG_DFL)
                break
        return before

    signal.__doc__, signal.__module__, signal.__qualname__ = original.__doc__, original.__module__, "signal"
    _signal.signal = signal  # which signal.signal calls


def _function(number: int) -> int:
    """The address of the function in C that handles a signal; 0 if there is none, or it cannot be read."""
    try:
        import ctypes  # only where a program handles SIGABRT

        action = ctypes.create_string_buffer(256)  # struct sigaction (sigaction(2)) begins with the handler
        failed = ctypes.CDLL(None).sigaction(int(number), None, action)
        return 0 if failed else ctypes.c_void_p.from_buffer(action).value or 0
    except Exception:
        return 0


def _raised(fd: int) -> int:
    for number in NUMBERS:
        try:
            os.fstat(number)
        except OSError:
            try:
                os.dup2(fd, number, inheritable=False)
            except OSError:  # beyond the limit
                return fd
            os.close(fd)
            return number
    return fd


def _make_room(folder: str) -> None:
    found = sorted(name for name in os.listdir(folder) if name.startswith(CRASHED))
    for name in found[: FILES // 2] if len(found) > FILES else ():
        remove(os.path.join(folder, name))


def remove(path: str) -> None:
    """Remove the file, if nothing was written into it."""
    try:
        if not os.stat(path).st_size:
            os.unlink(path)
    except OSError:
        pass
