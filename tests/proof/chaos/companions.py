"""What a training may have beside its steps, by name: found in programs of users, and no reason to end one."""

import array
import ctypes
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

LIBC = ctypes.CDLL(None)
NOBODY = 65534
PR_SET_DUMPABLE = 4
FOREVER = 10**6  # s
SHORT_INPUT = 99  # exit code of who has not found its input whole


def child(*, session: bool = False) -> bool:
    """A process of its own begins here (True); the caller goes on."""
    if os.fork():
        return False
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if session:
        os.setsid()
    return True


def telemetry(folder: Path) -> None:
    """A thread with a timer, as of a metrics library."""

    def report() -> None:
        while True:
            time.sleep(0.1)

    threading.Thread(target=report, daemon=True).start()


def native_timer(folder: Path) -> None:
    """A thread without Python frames, which sleeps and wakes."""
    thread = ctypes.c_ulong()
    LIBC.pthread_create(ctypes.byref(thread), None, LIBC.sleep, ctypes.c_void_p(3600))


def unreadable(folder: Path) -> None:
    """A process of another user, of which others of that user can read nothing."""
    if child():
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        LIBC.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
        time.sleep(FOREVER)


def handed_over(folder: Path) -> None:
    """A descriptor of a pipe that another process got as a message, and nobody else has."""
    ours, theirs = socket.socketpair()
    if child(session=True):
        ours.close()
        theirs.recvmsg(1, socket.CMSG_SPACE(8))
        time.sleep(FOREVER)
    theirs.close()
    reader, writer = os.pipe()
    ours.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [reader, writer]))])
    for fd in (reader, writer):
        os.close(fd)


def unended_output(folder: Path) -> None:
    """Output without a newline, as of a progress bar."""

    def show() -> None:
        while True:
            os.write(1, b"\r 37%")
            time.sleep(0.05)

    threading.Thread(target=show, daemon=True).start()


def used_up_input(folder: Path) -> None:
    """All of stdin, which each start has to find whole."""
    if sys.stdin.read() != (folder / "input").read_text():
        os._exit(SHORT_INPUT)


COMPANIONS: dict[str, Callable[[Path], None]] = {
    "telemetry": telemetry,
    "native timer": native_timer,
    "unreadable process": unreadable,
    "handed over": handed_over,
    "output without a newline": unended_output,
    "used up input": used_up_input,
}
