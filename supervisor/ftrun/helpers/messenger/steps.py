"""How far training was when: `steps.jsonl`, for the timeline and the sparkline.

At first a line a second, then the rarer the longer it runs, so that a week has less than 10,000.
"""

import json
import os
import time
from typing import Final

from ftrun.helpers.lines import Lines
from ftrun.host import safe_files
from ftrun_hooks import layout as at

FILE: Final = "steps.jsonl"
OFTEN: Final = 1.0  # s
PART: Final = 1000  # of the time so far


class Steps:
    """`attempt`: the one that is under way; 0: not yet told."""

    def __init__(self, beat_dir: str, lines: Lines) -> None:
        self._path, self._lines = f"{beat_dir}/{at.BEATS}", lines
        self._since = time.monotonic()
        self._last: tuple[int, ...] = ()
        self.attempt = 0
        self.due = self._since

    def tend(self, now: float) -> None:
        if now < self.due:
            return
        self.due = now + max(OFTEN, (now - self._since) / PART)
        steps = self._steps()
        if not steps or not self.attempt:
            return
        seen = (self.attempt, min(steps), max(steps), len(steps))
        if seen == self._last:
            return
        self._last = seen
        sample = {"mono": round(now, 3)} | dict(zip(("attempt", "low", "high", "ranks"), seen, strict=True))
        try:
            with open(safe_files.open_append(FILE), "a", encoding="ascii") as stream:
                stream.write(json.dumps(sample) + "\n")
        except OSError as error:
            self._lines.problem(f"{FILE}: {error.strerror}")

    def _steps(self) -> list[int]:
        """Of all ranks that count steps.  Opened anew each time: a command may spoil the file, and it is made again."""
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return []
        try:
            # Read, not mapped: a file that the command cuts off meanwhile would be a SIGBUS.
            content = memoryview(os.pread(fd, at.FILE_BYTES, 0))
        except OSError:
            return []
        finally:
            os.close(fd)
        if len(content) < at.FILE_BYTES:
            return []
        slots = content[at.HEADER_WORDS * at.WORD :].cast("Q")
        magics, steps = slots[at.MAGIC_WORD :: at.SLOT_WORDS].tolist(), slots[at.STEP :: at.SLOT_WORDS].tolist()
        return [step - 1 for magic, step in zip(magics, steps, strict=True) if magic and step]
