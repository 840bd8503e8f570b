"""Reads the files that Python processes of the command left in the beat folder when they died of an exception
(`ftrun_hooks/_last.py`), or of a signal (`ftrun_hooks/_crash.py`).

It accesses only that memory file system, and each call is bounded, whatever the command has put there.
"""

import os
import re
from collections.abc import Iterator
from itertools import islice
from typing import Final

from ftrun.core.rules import crash_causes
from ftrun.core.rules.crash_causes import CrashStack, ExceptionRecord, Traceback
from ftrun.core.rules.first_death import Death
from ftrun.host import beat_folders, safe_files
from ftrun_hooks import _crash as crash
from ftrun_hooks import _last as at

NS: Final = 1e9
FILES: Final = 64
ENTRIES: Final = 65536
NAME: Final = re.compile(rf"{at.RAISED}(\d{{20}})-(\d{{1,10}})")
CRASH: Final = re.compile(rf"{crash.CRASHED}(\d{{20}})-(\d{{1,10}})")
CHILD: Final = re.compile(r"(\d{1,9}):(\d{1,10}):(-?\d{1,3})", re.ASCII)
NUMBER: Final = re.compile(r"\d{1,19}", re.ASCII)


def last_of(beat_dir: str, since: float, pid: int) -> Traceback | None:
    """Return the last traceback of a process, else the last of its descendants."""
    found = read(beat_dir, since, pid) or [one for one in read(beat_dir, since) if pid in one.parents]
    return max(found, key=lambda one: one.at, default=None)


def read(beat_dir: str, since: float, pid: int | None = None) -> list[Traceback]:
    """Return the tracebacks from `since` (s, CLOCK_MONOTONIC) on, of the process `pid` if given; of many, the first and
    the last.  Incomplete and malformed files are skipped."""
    try:
        folder = beat_folders.open_folder(beat_dir)
    except OSError:
        return []
    try:
        with os.scandir(folder) as entries:
            matched = ((NAME.fullmatch(entry.name), entry.name) for entry in islice(entries, ENTRIES))
            names = sorted(
                name
                for match, name in matched
                if match and int(match[1]) >= since * NS and pid in (None, int(match[2]))
            )
        if len(names) > FILES:
            names = names[: FILES // 2] + names[-FILES // 2 :]
        parsed = (_parse(safe_files.read_foreign(name, at.SIZE + 1, folder)) for name in names)
        return [traceback for traceback in parsed if traceback is not None]
    except OSError:
        return []
    finally:
        os.close(folder)


def crash_of(beat_dir: str, since: float, pid: int) -> CrashStack | None:
    """Return the stack with which this process ended, else the newest from `since` (s, CLOCK_MONOTONIC) on: the process
    may be a shell around the program.  A standby may have begun before `since`."""
    try:
        folder = beat_folders.open_folder(beat_dir)
    except OSError:
        return None
    try:
        with os.scandir(folder) as entries:
            named = [match for entry in islice(entries, ENTRIES) if (match := CRASH.fullmatch(entry.name))]
        named = [match for match in named if int(match[2]) == pid or int(match[1]) >= since * NS]
        newest = sorted(named, key=lambda match: (int(match[2]) == pid, int(match[1])), reverse=True)
        for match in newest[:FILES]:
            content = safe_files.read_foreign(match[0], crash.SIZE, folder)
            if content and (found := crash_causes.parsed_crash(content.decode("utf-8", "replace"))) is not None:
                return found
        return None
    except OSError:
        return None
    finally:
        os.close(folder)


def _parse(content: bytes) -> Traceback | None:
    if len(content) > at.SIZE or not content.endswith(b"\nend\n"):
        return None
    lines = (line.partition(" ") for line in content.decode("utf-8", "replace").split("\n"))
    fields = {key: value if value.isprintable() else _plain(value) for key, _, value in lines}
    pid, moment = _number(fields.get("pid")), _number(fields.get("at"))
    exception = _exception(fields, "")
    if pid is None or moment is None or exception is None:
        return None
    parents = (_number(pid) for pid in fields.get("parents", "").split()[: at.ANCESTORS])
    return Traceback(
        pid,
        exception,
        parents=tuple(parent for parent in parents if parent is not None),
        started=(_number(fields.get("started")) or 0) / NS,
        at=moment / NS,
        rank=_number(fields.get("rank")),
        program=fields.get("program", ""),
        root=_exception(fields, "root-"),
        explicit_cause=fields.get("chain") == "cause",
        children=tuple(_children(fields.get("children", ""))),
    )


def _children(text: str) -> Iterator[Death]:
    for match in (CHILD.fullmatch(entry) for entry in text.split()[: at.CHILDREN]):
        if match is not None:
            yield Death(*map(int, match.groups()))


def _exception(fields: dict[str, str], prefix: str) -> ExceptionRecord | None:
    kinds = tuple(fields.get(f"{prefix}kinds", "").split())
    message, more, where, own = (fields.get(prefix + key, "") for key in ("message", "more", "where", "own"))
    frames = tuple(filter(None, fields.get(prefix + "frames", "").split("|")))
    stack = tuple(reversed([place for place in fields.get(prefix + "stack", "").split("|") if place]))
    source = fields.get(prefix + "source", "")
    return ExceptionRecord(kinds, message, more, where, own, frames, source, stack) if kinds else None


def _plain(text: str) -> str:
    """Replace characters that could move a terminal's cursor."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and NUMBER.fullmatch(text) else None
