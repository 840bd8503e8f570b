"""The records of a run dir from the beginning, also while they are being written."""

import os
import time
from collections.abc import Iterator
from itertools import islice
from typing import Final

from ftrun.views import liveness, record_tail, rundir, state
from ftrun.views.record_tail import Record

PAUSE: Final = 0.2  # s between two reads of a growing file
READ: Final = 1 << 20  # bytes
WHOLE_FILE: Final = 1 << 40  # bytes


class RecordStream:
    """The records of this run dir, oldest first.  NoRunDir if there are none.

    A line that is torn, too long or no record is skipped; an incomplete one at the end is read once it is complete.
    """

    def __init__(self, run_dir: str) -> None:
        rundir.check(run_dir)
        self._run_dir, self._path = run_dir, f"{run_dir}/events.jsonl"
        self._at, self._rest, self._too_long = 0, b"", False

    def newest(self, count: int) -> list[Record]:
        """The last `count`; `more` continues after them."""
        end = os.stat(self._path).st_size
        found = [one for line in self._backwards(end, count) if (one := record_tail.record(line)) is not None]
        self._at = end - _torn(self._path, end)
        return found[::-1]

    def _backwards(self, end: int, count: int) -> Iterator[bytes]:
        records = (
            line
            for line in record_tail.backwards(self._path, WHOLE_FILE, end=end)
            if record_tail.record(line) is not None
        )
        return islice(records, count)

    def more(self) -> Iterator[Record]:
        """The records that have been added since the last call."""
        try:
            with open(self._path, "rb") as file:
                self._at = min(self._at, os.fstat(file.fileno()).st_size)  # it may have been truncated
                file.seek(self._at)
                while content := file.read(READ):
                    self._at += len(content)
                    yield from self._complete(content)
        except OSError as error:
            raise rundir.NoRunDir(f"{self._path}: {error.strerror}") from None

    def _complete(self, content: bytes) -> Iterator[Record]:
        *lines, self._rest = (self._rest + content).split(b"\n")
        for line in lines:
            too_long, self._too_long = self._too_long, False
            if not too_long and (found := record_tail.record(line)) is not None:
                yield found
        if len(self._rest) > record_tail.LINE:
            self._rest, self._too_long = b"", True

    def follow(self) -> Iterator[Record]:
        """New records as they come, until the run has ended or ftrun is gone."""
        while True:
            alive = liveness.is_running(self._run_dir, state.load(self._run_dir).part("run"))
            ended = False
            for record in self.more():
                ended = {"ended": True, "started": False}.get(record["event"], ended)
                yield record
            if ended or not alive:
                return
            time.sleep(PAUSE)


def _torn(path: str, end: int) -> int:
    """The number of bytes before `end` that belong to an incomplete line."""
    with open(path, "rb") as file:
        file.seek(start := max(0, end - record_tail.LINE))
        content = file.read(end - start)
    return len(content) - content.rfind(b"\n") - 1
