"""Named stretches of a run that have a deadline of their own."""

from __future__ import annotations

import struct
from time import monotonic_ns
from typing import Any, Callable, TypeVar, cast

from . import layout as at
from ._duration import nanoseconds
from ._slot import mine

Function = TypeVar("Function", bound=Callable[..., Any])
Entry = struct.Struct(f"=QQ{at.NAME_BYTES}s")


class Open:
    """A section that somebody is in, as its entry in the table says it."""

    __slots__ = ("name", "owner", "started", "timeout")

    def __init__(self, name: bytes, timeout: int, owner: memoryview) -> None:
        self.name, self.timeout, self.owner = name, timeout, owner
        self.started = monotonic_ns()


class Section:
    """Enter it with `with`, or put it before a function.  It may be entered many times, and in itself."""

    def __init__(self, name: object, timeout: object) -> None:
        self.name, self.timeout = name, timeout
        self._entry_name = _fitting(name)
        self._nanoseconds = 0 if timeout is None else nanoseconds(timeout)
        self._open: list[Open] = []

    def __enter__(self) -> None:
        try:
            entered = _table.push(self._entry_name, self._nanoseconds)
            if entered is not None:
                self._open.append(entered)
        except Exception:
            pass

    def __exit__(self, *error: object) -> None:
        try:
            if self._open:
                _table.remove(self._open.pop())
        except Exception:
            pass

    def __call__(self, function: Function) -> Function:
        from functools import wraps

        @wraps(function)
        def within(*args: Any, **kwargs: Any) -> Any:
            with Section(self.name, self.timeout):
                return function(*args, **kwargs)

        return cast(Function, within)


def section(name: str, timeout: float | str | None = None) -> Section:
    """A stretch that may take `timeout` (seconds, or like `20m`) without a beat; its end is no beat.

    Without a timeout the supervisor's own limit holds.  ValueError for a timeout that is no duration.
    """
    return Section(name, timeout)


class Table:
    """The open sections of this process, outermost first.  Each change rewrites the table, so none can spoil it."""

    def __init__(self) -> None:
        self.open: list[Open] = []
        self.busy_since = 0

    def push(self, name: bytes, timeout: int) -> Open | None:
        words = mine.claim()
        if words is None:
            return None
        with mine.lock:
            self._forget_others(words)
            entered = Open(name, timeout, words)
            if not self.open:
                self.busy_since = entered.started
            self.open.append(entered)
            self._write(words, words[at.CREDIT])
        header = mine.header
        if header is not None:
            planned = header[at.H_NEXT_LOOK]
            if entered.started + timeout < planned if timeout else planned == at.NO_LOOK:
                mine.ring()
        return entered

    def remove(self, left: Open) -> None:
        words = mine.words
        if words is None or left.owner is not words:  # entered before a fork: the parent's to close
            return
        with mine.lock:
            self.open.remove(left)
            credit = words[at.CREDIT]
            if not self.open:
                credit += max(0, monotonic_ns() - max(self.busy_since, words[at.MOVED_AT]))
            self._write(words, credit)

    def _forget_others(self, words: memoryview) -> None:
        self.open = [entry for entry in self.open if entry.owner is words]

    def _write(self, words: memoryview, credit: int) -> None:
        shown = [Entry.pack(entry.started, entry.timeout, entry.name) for entry in self.open[: at.SECTIONS]]
        table = b"".join(shown).ljust(at.SECTIONS * at.SECTION_WORDS * at.WORD, b"\0")
        changing = words[at.SEQUENCE] | 1
        words[at.SEQUENCE] = changing
        try:
            words[at.SECTION_TABLE :] = memoryview(table).cast("Q")
            words[at.DEPTH] = len(self.open)
            words[at.CREDIT] = credit
        finally:
            words[at.SEQUENCE] = changing + 1


def _fitting(name: object) -> bytes:
    """As much of the name as the table holds, cut between two characters."""
    try:
        return str(name).encode("utf-8", "replace")[: at.NAME_BYTES].decode("utf-8", "ignore").encode()
    except Exception:
        return b"?"


_table = Table()
