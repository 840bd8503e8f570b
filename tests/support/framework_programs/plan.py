"""What a program of a framework does beside training, by its first argument; each is a program without a change for
ftrun.  It trains STEPS steps, saves after each `EVERY` and resumes from what it saved.

`hang`: at a step of its first start it acquires a lock that nobody releases.  `crash`: after each save it fails.
"""

import os
import sys
import threading

STEPS, EVERY = 30, 6


def at(step: int) -> None:
    """Called in each step, after what the framework does in it."""
    if sys.argv[1] == "hang" and step == EVERY + 2 and os.environ["MA_PROC_START_CNT"] == "1":
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()


def saved(step: int) -> None:
    """Called after each save."""
    if sys.argv[1] == "crash":
        raise RuntimeError(f"no such sample: {step}")
