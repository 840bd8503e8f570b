"""`progress` records read without parsing their JSON: they are most of a long run's records.

A line is understood only if it is exactly as ftrun writes it, without any escape; every other line is left to the JSON
parser, so that the result is the same.
"""

import re
from typing import Final

from ftrun.records.record_files import PROGRESS

_NUMBER: Final = rb"\d{1,15}(?:\.\d{1,9})?"
_LINE: Final = re.compile(
    rb'\{"schema": 1, "time": "([0-9T:.Z-]{1,40})", "mono": ('
    + _NUMBER
    + rb'), "event": "progress", "attempt": (\d{1,9}),'
    rb' "by": "([a-z]{1,20})", "step": (\d{1,15}|null), "checkpoint": (?:null|"([!#-\[\]-~]{1,500})")'
    rb"(?:, \"seen\": (" + _NUMBER + rb"))?\}"
)


Progress = tuple[float, bool, int | None, bytes]  # its time, whether it is a checkpoint, its step, and the whole line


def progress(line: bytes) -> Progress | None:
    """The fields that a history needs; None for any other line."""
    found = _LINE.fullmatch(line) if PROGRESS in line else None
    if found is None:
        return None
    mono, by, step = found.group(2, 4, 5)
    return float(mono), by == b"checkpoint", None if step == b"null" else int(step), line


def text(line: bytes) -> str | None:
    """The record as `ftctl events` prints it; None for any other line."""
    found = _LINE.fullmatch(line) if PROGRESS in line else None
    if found is None:
        return None
    time, _, attempt, by, step, checkpoint, seen = found.groups()
    shown = b"%s %3s progress   by=%s" % (time, attempt.lstrip(b"0") or b"0", by)
    if step != b"null":
        shown += b" step=%s" % step
    if checkpoint is not None:
        shown += b" checkpoint=%s" % checkpoint
    if seen is not None:
        shown += b" seen=%.6g" % float(seen)
    return shown.decode("ascii")


def json(line: bytes) -> str | None:
    """The record as JSON; None for any other line."""
    return line.decode("ascii") if PROGRESS in line and _LINE.fullmatch(line) else None
