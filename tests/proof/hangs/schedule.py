"""Runs many jobs side by side: as many as the processors carry."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import NamedTuple


class Job(NamedTuple):
    cores: float
    do: Callable[[], None]


def run_all(jobs: Iterable[Job], at_once: int, cores: float, pause: float, stop: threading.Event) -> None:
    """Start each job as soon as fewer than `at_once` run, which compute less than `cores` together with it, `pause`
    seconds after the start before.  Jobs behind one that has to wait may be started before it.  Return once all have
    ended that were started before `stop` was set."""
    waiting, running, freed = list(jobs), dict[threading.Thread, Job](), threading.Event()

    def do(job: Job) -> None:
        try:
            job.do()
        finally:
            running.pop(threading.current_thread())
            freed.set()

    while waiting and not stop.is_set():
        used = sum(job.cores for job in list(running.values()))
        fits = (job for job in waiting if used + job.cores <= cores or not running)
        if len(running) < at_once and (job := next(fits, None)) is not None:
            waiting.remove(job)
            thread = threading.Thread(target=do, args=(job,))
            running[thread] = job
            thread.start()
            stop.wait(pause)
        else:
            freed.wait(1)
            freed.clear()
    for thread in list(running):
        thread.join()
