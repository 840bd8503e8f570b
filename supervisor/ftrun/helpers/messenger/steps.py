"""`steps.jsonl`: the progress of training over time, for the timeline and the sparkline.

At first there is one line a second, later fewer, so that a week has less than 10,000 lines.
"""

import json
import os
import time
from typing import Final

from ftrun.helpers.lines import Lines
from ftrun.host import safe_files
from ftrun_hooks import layout as at

FILE: Final = "steps.jsonl"
PERIOD: Final = 1.0  # s between two lines at first
FRACTION: Final = 1000  # later the period is the elapsed time divided by this


class Steps:
    """`attempt`: the number of the current attempt; 0: not known yet."""

    def __init__(self, beat_dir: str, lines: Lines) -> None:
        self._path, self._lines = f"{beat_dir}/{at.BEATS}", lines
        self._since = time.monotonic()
        self._last_progress: tuple[int, ...] = ()
        self.attempt = 0
        self.due = self._since

    def record(self, now: float) -> None:
        if now < self.due:
            return
        self.due = now + max(PERIOD, (now - self._since) / FRACTION)
        steps = self._read_steps()
        if not steps or not self.attempt:
            return
        progress = (self.attempt, min(steps), max(steps), len(steps))
        if progress == self._last_progress:
            return
        self._last_progress = progress
        sample = {"mono": round(now, 3)} | dict(zip(("attempt", "low", "high", "ranks"), progress, strict=True))
        try:
            with open(safe_files.open_append(FILE), "a", encoding="ascii") as stream:
                stream.write(json.dumps(sample) + "\n")
        except OSError as error:
            self._lines.problem(f"{FILE}: {error.strerror}")

    def _read_steps(self) -> list[int]:
        """The steps of all ranks that count steps.  The file is opened each time, because ftrun recreates one that the
        command has damaged."""
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return []
        try:
            # The file is read and not mapped: if the command truncated it meanwhile, access would raise SIGBUS.
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
