"""A thread that polls is seen in its wait, however crowded the machine is; and what has not run is not read again."""

import itertools
import os
import threading
from typing import Any

import pytest

from support.runs import DEADLINE, wait_for
from waitproof import procfs, threads
from waitproof.mappings import Mappings
from waitproof.world import WaitingProcess, WaitingThread


@pytest.mark.parametrize(
    ("name", "busy", "reads"),
    [
        pytest.param("gloo_tcp_loop", 3, 4, id="a poller is read until it waits"),
        pytest.param("gloo_tcp_loop", 99, 1 + threads.AGAIN, id="a few times only"),
        pytest.param("pt_elastic", 1, 2, id="torchrun"),
        pytest.param("python", 3, 4, id="what may wait for the interpreter's lock is, too"),
        pytest.param("python", 99, 5, id="for a short while in a whole observation"),
    ],
)
def test_a_thread_that_runs_is_read_until_it_waits(
    name: str, busy: int, reads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[WaitingThread]()

    def read(pid: int, tid: int, mappings: Mappings) -> WaitingThread:
        running = len(seen) < busy
        seen.append(WaitingThread(tid, None, running=running, state="R" if running else "S", name=name))
        return seen[-1]

    monkeypatch.setattr(threads, "thread", read)
    clock = itertools.count(0.0, threads.SPARE / 4)  # each sleep of a few milliseconds takes this long, under load
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    reader = threads.ThreadReader({})
    found = reader._at_rest(7, 8, {})
    assert (len(seen), found) == (reads, seen[-1])
    if (name, busy) == ("python", 99):
        reader._at_rest(7, 9, {})
        assert len(seen) == reads + 1, "the next one of the same observation is read once"


def test_a_thread_that_has_not_run_is_taken_from_the_earlier_observation(monkeypatch: pytest.MonkeyPatch) -> None:
    pid, locks, reached = os.getpid(), (threading.Lock(), threading.Lock()), threading.Event()
    for lock in locks:
        lock.acquire()

    def run() -> None:
        locks[0].acquire()
        reached.set()
        locks[1].acquire()

    thread = threading.Thread(target=run)
    thread.start()
    tid = thread.native_id
    assert tid is not None
    read, really = list[str](), procfs.read

    def counted(path: str, *rest: Any, **named: Any) -> bytes | None:
        read.append(path)
        return really(path, *rest, **named)

    def waits() -> bool:
        return threads.thread(pid, tid, Mappings()).state == "S"

    def observed(before: dict[int, WaitingProcess]) -> WaitingThread:
        read.clear()
        return next(one for one in threads.ThreadReader(before).process(pid, {}).threads if one.tid == tid)

    try:
        wait_for(waits, "its first wait")
        first = threads.ThreadReader({}).process(pid, {})
        one = next(found for found in first.threads if found.tid == tid)
        monkeypatch.setattr(procfs, "read", counted)
        assert observed({pid: first}) is one
        assert f"/proc/{pid}/task/{tid}/stat" not in read
        assert observed({pid: first._replace(start=1)}) is not one, "another process with this number"
        locks[0].release()
        assert reached.wait(DEADLINE)
        wait_for(waits, "its next wait")
        assert observed({pid: first}) is not one, "it has run"
    finally:
        for lock in locks:
            if lock.locked():
                lock.release()
        thread.join()
