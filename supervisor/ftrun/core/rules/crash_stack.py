"""The stack of a Python process that a signal ended, as faulthandler writes it.  Pure."""

import re
from typing import Final

from ftrun.core.named_tuple import NamedTuple
from ftrun.core.text.sentences import printable, short

BEGIN: Final = "Fatal Python error: "
FRAME: Final = re.compile(r'  File "(.*)", line (\d+) in (.*)')
LIBRARY: Final = re.compile(r"^<|-packages/|/lib/python3")
FRAMES: Final = 24
EACH: Final = 120  # characters


class CrashStack(NamedTuple):
    """`error`: as `Segmentation fault`.  `frames`: of the thread that crashed, the innermost first, as
    `train.py:68 in step`; `place`: the innermost one of the program's own code, else of any."""

    error: str
    frames: tuple[str, ...]
    place: str


def parsed(text: str) -> CrashStack | None:
    """The last one in the text; None where there is none, or no frame of the thread that crashed."""
    _, begin, rest = text.rpartition(BEGIN)
    if not begin:
        return None
    error, _, threads = rest.partition("\n")
    own = threads.partition("Current thread ")[2].partition("\n\n")[0].split("\n")
    found = [match for line in own if (match := FRAME.fullmatch(line))]
    if not found:
        return None
    frames = tuple(_frame(match) for match in found)
    program = (frame for frame, match in zip(frames, found, strict=True) if not LIBRARY.search(match[1]))
    return CrashStack(short(printable(error), EACH), frames[:FRAMES], next(program, frames[0]))


def _frame(match: re.Match[str]) -> str:
    path, line, function = match.groups()
    return short(printable(f"{path.rpartition('/')[2]}:{line} in {function}"), EACH)
