"""The kinds of trouble that `fthang` makes, one function each."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, NoReturn

USAGE = (
    *("none", "sleep", "spin", "stop", "deadlock", "nobeat"),
    *("crash CODE", "signal NAME", "orphans N", "daemon", "forkstorm"),
)
STORM = 30
STORM_PAUSE = 0.05  # seconds that a process of the storm lives
STORM_LASTS = 600  # seconds: one that nobody ends must not eat the machine


class Plan(NamedTuple):
    """What to say, then what to do.  `begin` may return: the training goes on then."""

    line: str
    begin: Callable[[], None]


def plan(kind: str, arg: str | None) -> Plan:
    """The trouble of this name; ValueError, in one line, for an unknown kind or an argument that does not fit."""
    usage = {use.split()[0]: use for use in USAGE}
    if kind not in usage:
        raise ValueError(f"unknown kind {kind!r}{_near(kind, list(usage))}; one of: {', '.join(USAGE)}")
    if (arg is None) == (" " in usage[kind]):
        raise ValueError(f"{kind} takes {'no' if arg is not None else 'an'} argument: fthang {usage[kind]}")
    if kind == "crash":
        code = _number(arg, "an exit code", 0, 255)
        return Plan(f"crashing: exit code {code}", partial(os._exit, code))
    if kind == "signal":
        number = _signal(arg or "")
        return Plan(f"killing itself: {number.name}", partial(_die_of, number))
    if kind == "orphans":
        count = _number(arg, "a number of orphans", 1, 10_000)
        return Plan(f"left behind: {count} orphans", partial(_orphans, count))
    if kind == "daemon":
        return Plan("left behind: a daemon", _daemon)
    return Plan(f"hanging: {kind}", HANGS.get(kind, _nothing))


def _sleep() -> NoReturn:
    while True:
        time.sleep(3600)


def _spin() -> NoReturn:
    while True:
        pass


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _deadlock() -> None:
    from threading import Lock

    lock = Lock()
    with lock, lock:
        pass


def _forkstorm() -> NoReturn:
    over = time.monotonic() + STORM_LASTS
    for _ in range(STORM):
        if os.fork() == 0:
            _fork_until(over)
    _sleep()


def _fork_until(over: float) -> NoReturn:
    """No process for long, and never more than one at a time."""
    while time.monotonic() < over:
        time.sleep(STORM_PAUSE)
        try:
            if os.fork():
                os._exit(0)
        except OSError:  # no room for another one just now
            pass
    os._exit(0)


def _orphans(count: int) -> None:
    def leave() -> None:
        for _ in range(count):
            if os.fork() == 0:
                _sleep()

    _in_child(leave)


def _daemon() -> None:
    def leave() -> None:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork() == 0:
            _sleep()

    _in_child(leave)


def _in_child(leave: Callable[[], None]) -> None:
    """Let a child do it and end, so that what it started has lost its parent once this returns."""
    child = os.fork()
    if child == 0:
        try:
            leave()
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def _die_of(number: signal.Signals) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)  # Python ignores SIGPIPE and makes an exception of SIGINT
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)


def _nothing() -> None:
    pass


HANGS: dict[str, Callable[[], None]] = {
    "sleep": _sleep,
    "spin": _spin,
    "stop": _stop,
    "deadlock": _deadlock,
    "forkstorm": _forkstorm,
}


def _number(text: str | None, what: str, least: int, most: int) -> int:
    if text is None or not (text.isascii() and text.isdigit() and len(text) < 9) or not least <= int(text) <= most:
        raise ValueError(f"not {what} from {least} to {most}: {text!r}")
    return int(text)


def _signal(text: str) -> signal.Signals:
    name = text.upper() if text.upper().startswith("SIG") else f"SIG{text.upper()}"
    try:
        return signal.Signals(int(text)) if text.isascii() and text.isdigit() else signal.Signals[name]
    except (KeyError, ValueError):
        raise ValueError(f"not a signal: {text!r}{_near(name, [known.name for known in signal.Signals])}") from None


def _near(word: str, known: list[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(word, known, 1)
    return f" (did you mean {near[0]!r}?)" if near else ""
