"""The failures of one rank of a recoverable training.  What only hangs is in failures.py."""

import os
import signal
import time
from typing import Any, NoReturn

import ftrun_hooks as ft
from ftrun.workload import failures
from ftrun.workload.training import Setting

EXIT_CODE = 3


def kill(setting: Setting) -> NoReturn:
    """At once: nothing of this process runs any more."""
    while True:
        os.kill(os.getpid(), signal.SIGKILL)


def leave_at_once(setting: Setting) -> NoReturn:
    os._exit(EXIT_CODE)


def throw(setting: Setting) -> NoReturn:
    raise ValueError("a failure that fthang was asked for")


def retry(setting: Setting) -> NoReturn:
    raise ft.Retry("a passing failure that fthang was asked for")


def daemon(setting: Setting) -> NoReturn:
    """Die, and leave a daemon behind that ignores SIGTERM."""
    failures.daemon(setting)
    kill(setting)


def ignore(setting: Setting) -> NoReturn:
    """A cleanup that never ends, and that swallows also the exceptions that are no Exception."""
    while True:
        try:
            time.sleep(10**6)  # seconds: longer than any timeout that a user gives
        except BaseException:
            pass


def kill_in_keep(setting: Setting) -> None:
    """From now on: die when half of the next snapshot is written."""
    from ftrun_hooks import _snapshot

    def write_half(item: Any, memory: memoryview) -> None:
        memory[: item.size // 2] = bytes(item.size // 2)
        kill(setting)

    setattr(_snapshot.Bytes, "write", write_half)  # noqa: B010 - a type checker refuses the assignment
