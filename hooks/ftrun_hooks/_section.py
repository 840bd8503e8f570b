"""Sections: named parts of a run that have a timeout of their own."""

from __future__ import annotations

import struct
from _thread import get_ident
from time import monotonic_ns
from typing import Any, Callable, TypeVar, cast

from . import layout as at
from ._beat import own_slot
from ._interrupt import deferred

UNITS = (("ms", 10**6), ("s", 10**9), ("m", 60 * 10**9), ("h", 3600 * 10**9), ("d", 86400 * 10**9))
LONGEST = 1 << 61  # added to any time of the clock it still fits into 64 bits, with two flags
Function = TypeVar("Function", bound=Callable[..., Any])
Entry = struct.Struct(f"=QQ{at.NAME_BYTES}s")


class Open:
    """A section that is open, as in its table entry; `timeout` includes the flags."""

    __slots__ = ("name", "owner", "side", "started", "timeout")

    def __init__(self, name: bytes, timeout: int, owner: memoryview) -> None:
        self.name, self.owner = name, owner
        self.side = get_ident() not in (own_slot.main, own_slot.mover)
        self.timeout = timeout | at.SIDE if self.side else timeout
        self.started = monotonic_ns()


class TimedSection:
    """A context manager and a decorator.  It may be entered many times, also while it is open."""

    def __init__(self, name: object, timeout: object) -> None:
        self.name, self.timeout = name, timeout
        self._entry_name = _fitting(name)
        self._nanoseconds = 0 if timeout is None else nanoseconds(timeout)
        self._open: list[Open] = []

    def __enter__(self) -> None:
        opened: list[Open] = []
        try:
            _table.push(self._entry_name, self._nanoseconds, opened)
            self._open += opened
        except Exception:
            pass
        except BaseException:  # a signal handler raised: the block is not entered, so nothing would close the section
            _close(opened)
            self._open = [entry for entry in self._open if entry not in opened]
            raise

    def __exit__(self, *error: object) -> None:
        try:
            self._leave(bool(error and error[0]))
        except BaseException:  # a signal handler raised
            self._leave(bool(error and error[0]))
            raise

    def _leave(self, broken: bool) -> None:
        left = self._open[-1:]
        _close(left, broken)
        self._open = [entry for entry in self._open if entry not in left]

    def __call__(self, function: Function) -> Function:
        from functools import wraps

        @wraps(function)
        def within(*args: Any, **kwargs: Any) -> Any:
            with TimedSection(self.name, self.timeout):
                return function(*args, **kwargs)

        return cast(Function, within)


def section(name: str, timeout: float | str | None = None) -> TimedSection:
    """A stretch that may take `timeout` (seconds, or like `20m`) without a heartbeat; its end is not a heartbeat.

    Without a timeout the supervisor's own applies.  ValueError if the timeout is not a duration.
    """
    return TimedSection(name, timeout)


class TrainerStage:
    """At most one section at a time.  Trainers have events for most beginnings and ends, but not for all, so entering a
    section leaves the one before.

    ValueError if a timeout is not a duration.
    """

    def __init__(self, eval_timeout: float | str | None, save_timeout: float | str | None) -> None:
        self.timeouts = {True: save_timeout, False: eval_timeout}
        for timeout in self.timeouts.values():
            if timeout is not None:
                nanoseconds(timeout)
        self.name: str | None = None
        self._open: TimedSection | None = None

    def timeout(self, name: str) -> float | str | None:
        return self.timeouts[name == "checkpoint"]

    def enter(self, name: str) -> None:
        """Enter the section `name`.  A repeated call, with each batch, restarts a section without a timeout of its own:
        an evaluation may take hours, but a single batch may not."""
        timeout = self.timeout(name)
        if name == self.name and timeout is not None:
            return
        fresh = section(name, timeout)
        fresh.__enter__()
        self.leave()  # only now, so that there is no moment without a section
        self.name, self._open = name, fresh

    def leave(self, error: BaseException | None = None) -> None:
        """Leave the section, if any; with an `error`, because of it."""
        left, self.name, self._open = self._open, None, None
        if left is not None:
            left.__exit__(type(error) if error else None, error, None)


class Automatic(TimedSection):
    """A section that the hooks open around a call of the program, only in the main thread of a process with a slot.

    It claims no slot: a launcher that saves a file before it starts its workers is not a rank.  An exception that
    closes it is not where the program failed, of which it knows nothing.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name, None)
        self._nanoseconds = at.AUTOMATIC

    def __enter__(self) -> None:
        if own_slot.words is not None and get_ident() == own_slot.main:
            super().__enter__()

    def _leave(self, broken: bool) -> None:
        super()._leave(False)


class SectionTable:
    """The open sections of this process, outermost first.  Each change rewrites all of it, for consistency."""

    def __init__(self) -> None:
        self.open: list[Open] = []
        self.busy_since = 0

    def push(self, name: bytes, timeout: int, opened: list[Open]) -> None:
        """Open a section; nothing outside ftrun.  It is in `opened` before anybody can see it, so that the caller can
        close it even if a signal handler raises here."""
        words = own_slot.claim()
        if words is None:
            return
        with deferred, own_slot.lock:
            self._forget_others(words)
            entered = Open(name, timeout, words)
            opened.append(entered)
            if not self._replaces_step_timeout():
                self.busy_since = entered.started
            self.open.append(entered)
            words[at.BROKEN_AT] = 0
            self._write(words, own_slot.credit, self.open)
        header, allowed = own_slot.header, timeout & ~at.AUTOMATIC
        if header is not None:
            planned = header[at.H_NEXT_LOOK]
            if entered.started + allowed < planned if allowed else planned == at.NO_LOOK:
                own_slot.ring()

    def remove(self, left: Open, broken: bool) -> None:
        """Close a section.  If a signal handler raises here, the same call completes it; a rank may then be credited
        with the section twice, but never with less."""
        words = own_slot.words
        if words is None or left.owner is not words:  # entered before a fork: the parent closes it
            return
        with deferred, own_slot.lock:
            rest = [entry for entry in self.open if entry is not left]
            credit = own_slot.credit
            if self._replaces_step_timeout() and not any(not entry.side for entry in rest):
                credit += max(0, monotonic_ns() - max(self.busy_since, words[at.MOVED_AT]))
            self._write(words, credit, rest, left.name if broken else None)
            self.open = rest

    def _replaces_step_timeout(self) -> bool:
        """Whether a section's timeout applies instead of that of the step."""
        return any(not entry.side for entry in self.open)

    def _forget_others(self, words: memoryview) -> None:
        self.open = [entry for entry in self.open if entry.owner is words]

    def _write(self, words: memoryview, credit: int, entries: list[Open], broken: bytes | None = None) -> None:
        packed = [Entry.pack(entry.started, entry.timeout, entry.name) for entry in entries[: at.SECTIONS]]
        table = b"".join(packed).ljust(at.SECTIONS * at.SECTION_WORDS * at.WORD, b"\0")
        changing = words[at.SEQUENCE] | 1
        words[at.SEQUENCE] = changing
        try:
            words[at.SECTION_TABLE :] = _words(table)
            words[at.DEPTH] = len(entries)
            words[at.CREDIT] = own_slot.credit = credit
            if broken is not None:
                words[at.BROKEN_NAME : at.BROKEN_NAME + at.NAME_BYTES // at.WORD] = _words(broken)
                words[at.BROKEN_AT] = monotonic_ns()
        finally:
            words[at.SEQUENCE] = changing + 1


def _close(entries: list[Open], broken: bool = False) -> None:
    for entry in entries:
        try:
            _table.remove(entry, broken)
        except Exception:
            pass


def _words(content: bytes) -> memoryview:
    return memoryview(content.ljust(at.NAME_BYTES, b"\0")).cast("Q")


def _fitting(name: object) -> bytes:
    """The name, cut between two characters to the size in the table."""
    try:
        return str(name).encode("utf-8", "replace")[: at.NAME_BYTES].decode("utf-8", "ignore").encode()
    except Exception:
        return b"?"


def nanoseconds(duration: object) -> int:
    """`duration` (seconds, or a text with a unit) as 1 to LONGEST nanoseconds; ValueError for anything else."""
    if isinstance(duration, str):
        value, scale = _split(duration.strip())
    elif isinstance(duration, (int, float)) and not isinstance(duration, bool):
        value, scale = duration, 10**9
    else:
        raise _bad(duration)
    if not 0 < value < float("inf"):
        raise _bad(duration)
    # A float beyond LONGEST may not fit an int of any useful size: compare before converting.
    return LONGEST if value >= LONGEST / scale else max(1, int(value * scale))


def _split(text: str) -> tuple[float, int]:
    for unit, scale in UNITS:
        number = text[: -len(unit)]
        if text.endswith(unit) and number.isascii() and number.replace(".", "", 1).isdigit():
            return float(number), scale
    raise _bad(text)


def _bad(duration: object) -> ValueError:
    return ValueError(f"not a duration: {duration!r} (a number of seconds, or like '500ms', '90s', '10m', '1h', '1d')")


def close_all() -> None:
    """Close the sections that the training function left open when it was interrupted."""
    for entered in reversed(_table.open[:]):
        _table.remove(entered, broken=False)


_table = SectionTable()
