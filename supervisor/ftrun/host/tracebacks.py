"""What Python processes of the command left in the beat folder when they died of an exception (`ftrun_hooks/_last.py`).

Only ever touches that memory file system, and each call is bounded, whatever the command has put there.
"""

import os
import re
import stat as st
from collections.abc import Iterator
from itertools import islice
from typing import Final

from ftrun.core.rules.crash_causes import ExceptionRecord, Traceback
from ftrun.core.rules.first_death import Death
from ftrun_hooks import _last as at

NS: Final = 1e9
FILES: Final = 64
ENTRIES: Final = 65536
NAME: Final = re.compile(rf"{at.RAISED}(\d{{20}})-\d{{1,10}}")
CHILD: Final = re.compile(r"(\d{1,9}):(\d{1,10}):(-?\d{1,3})", re.ASCII)
NUMBER: Final = re.compile(r"\d{1,19}", re.ASCII)


def read(beat_dir: str, since: float) -> list[Traceback]:
    """Those from `since` (s, CLOCK_MONOTONIC) on, of many the first and the last.  What is torn or mad is none."""
    found: list[Traceback] = []
    for folder in _opened(beat_dir):
        matched = ((NAME.fullmatch(name), name) for name in _names(folder))
        names = sorted(name for match, name in matched if match and int(match[1]) >= since * NS)
        if len(names) > FILES:
            names = names[: FILES // 2] + names[-FILES // 2 :]
        parsed = (_parse(_content(folder, name)) for name in names)
        found += [one for one in parsed if one is not None]
    return found


def _opened(path: str) -> Iterator[int]:
    """The folder itself, once: not what a link that took its place leads to."""
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        yield folder
    finally:
        os.close(folder)


def _names(folder: int) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in islice(entries, ENTRIES)]
    except OSError:
        return []


def _content(folder: int, name: str) -> bytes:
    try:
        file = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return b""
    try:
        found = os.fstat(file)
        return os.read(file, at.SIZE + 1) if st.S_ISREG(found.st_mode) and found.st_nlink == 1 else b""
    except OSError:
        return b""
    finally:
        os.close(file)


def _parse(content: bytes) -> Traceback | None:
    if len(content) > at.SIZE or not content.endswith(b"\nend\n"):
        return None
    lines = (line.partition(" ") for line in content.decode("utf-8", "replace").split("\n"))
    fields = {key: value if value.isprintable() else _plain(value) for key, _, value in lines}
    pid, moment = _number(fields.get("pid")), _number(fields.get("at"))
    thrown = _thrown(fields, "")
    if pid is None or moment is None or thrown is None:
        return None
    parents = (_number(word) for word in fields.get("parents", "").split()[: at.ANCESTORS])
    return Traceback(
        pid,
        thrown,
        parents=tuple(parent for parent in parents if parent is not None),
        started=(_number(fields.get("started")) or 0) / NS,
        at=moment / NS,
        rank=_number(fields.get("rank")),
        program=fields.get("program", ""),
        root=_thrown(fields, "root-"),
        said=fields.get("chain") == "cause",
        children=tuple(_children(fields.get("children", ""))),
    )


def _children(text: str) -> Iterator[Death]:
    for match in (CHILD.fullmatch(word) for word in text.split()[: at.CHILDREN]):
        if match is not None:
            yield Death(*map(int, match.groups()))


def _thrown(fields: dict[str, str], prefix: str) -> ExceptionRecord | None:
    kinds = tuple(fields.get(f"{prefix}kinds", "").split())
    message, more, where, own = (fields.get(prefix + key, "") for key in ("message", "more", "where", "own"))
    return ExceptionRecord(kinds, message, more, where, own) if kinds else None


def _plain(text: str) -> str:
    """Nothing in it moves a terminal's cursor."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and NUMBER.fullmatch(text) else None
