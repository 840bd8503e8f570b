"""The command of the soak of ranks: `rank_work.py LAST LOOK FIFO HOOKS`.  Rank 1 of two dies in each round.

Each dies once the round before is proved by its record `recovered`, so that the next death is another fault.  In one
round in LOOK it prints `ready <number>` first and waits until something is written into FIFO.  After as many
replacements as the file LAST says both ranks end with 0.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path


def main(last: str, look: int, fifo: str, hooks: str) -> None:
    sys.path.insert(0, hooks)
    import ftrun_hooks as ft

    def dies(number: int) -> bool:
        return number <= int(Path(last).read_text())

    def train(run: "ft.Run") -> None:
        step = run.restore()
        began, records = step, Records()
        while dies(run.round) or step < began + 2:
            step += 1
            run.keep(step, done=step)
            ft.beat(step)
            time.sleep(0.005)
            if run.rank == 1 and dies(run.round) and records.proved(run.round):
                if run.round % look == 0:
                    print("ready", run.round, flush=True)
                    Path(fifo).read_bytes()
                os.kill(os.getpid(), signal.SIGKILL)

    call: Callable[..., None] = ft.recoverable(train)
    call()


class Records:
    """Reads the newest records of the run, only as many as the end of the file has."""

    def __init__(self) -> None:
        self._path = Path(os.environ["FTRUN_RUN_DIR"], "events.jsonl")

    def proved(self, number: int) -> bool:
        """Whether that round has begun and all ranks have moved in it; the first one needs no proof."""
        if number == 1:
            return True
        with self._path.open("rb") as file:
            file.seek(max(0, self._path.stat().st_size - 8192))
            return any(b'"recovered"' in line and b'"round": %d,' % number in line for line in file.read().splitlines())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
