"""The command of the soak of warm starts: `warm_work.py LAST LOOK FIFO HOOKS`.

Each start fails once a standby waits for the next one.  In one start in LOOK it prints `ready <number>` first and waits
until something is written into FIFO.  After as many restarts as the file LAST says it ends with 0.
"""

import colorsys  # something that a standby imports, and that costs little
import os
import sys
import time
from pathlib import Path


def main(last: str, look: int, fifo: str, hooks: str) -> None:
    sys.path.insert(0, hooks)
    import ftrun_hooks as ft

    assert colorsys
    number = int(os.environ["MA_PROC_START_CNT"])
    ft.beat(number)
    if number > int(Path(last).read_text()):
        return
    while not standby_waits():
        time.sleep(0.02)  # a process that looks more often has less of a busy machine, as it has used its share
    if number % look == 0:
        print("ready", number, flush=True)
        Path(fifo).read_bytes()
    sys.exit(3)


def standby_waits() -> bool:
    """Whether the last record about standbys says that one waits."""
    path = Path(os.environ["FTRUN_RUN_DIR"], "events.jsonl")
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 8192))
        lines = [line for line in file.read().splitlines() if b'"event": "st' in line]
    return bool(lines) and b'"standby"' in lines[-1] and b'"ready"' in lines[-1]


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
