"""Crashes, and processes that a training leaves behind while it continues."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from ftrun.workload.context import Setting
from ftrun.workload.hangs import sleep


def crash(setting: Setting) -> None:
    os._exit(int(setting.value))


def die(setting: Setting) -> None:
    """End by the signal, without a core file."""
    import resource

    number = signal.Signals(int(setting.value))
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)  # Python ignores SIGPIPE and turns SIGINT into an exception
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)


def orphans(setting: Setting) -> None:
    def leave() -> None:
        for _ in range(int(setting.value)):
            if os.fork() == 0:
                sleep(setting)

    _in_child(leave)


def daemon(setting: Setting) -> None:
    def leave() -> None:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork() == 0:
            sleep(setting)

    _in_child(leave)


def _in_child(leave: Callable[[], None]) -> None:
    """Call `leave` in a child that ends, so that the processes it started are orphans once this returns."""
    child = os.fork()
    if child == 0:
        try:
            leave()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
