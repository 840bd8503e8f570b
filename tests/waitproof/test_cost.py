"""What a look at many threads costs: counted, since processor time differs between machines."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from ftrun.helpers.evidence import look as module
from ftrun.messages.evidence import LookRequest
from support.runs import wait_for
from waitproof import libraries, waits, wakers

THREADS = 40
JOB = f"""import os, threading
lock = threading.Lock()
lock.acquire()
for _ in range({THREADS}):
    threading.Thread(target=lock.acquire, daemon=True).start()
os.write(1, b"1")
lock.acquire()
"""


@pytest.fixture
def job() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", JOB], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.read(1) == b"1"
            wait_for(lambda: all_wait(process.pid), "each thread waits")
            yield process.pid
        finally:
            process.kill()


def all_wait(pid: int) -> bool:
    calls = set()
    for tid in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{tid}/syscall", encoding="ascii") as file:
            calls.add(file.read())
    return len(calls) == THREADS + 1 and not any("running" in call for call in calls)


def test_threads_that_wait_alike_are_examined_once_and_those_that_have_not_run_are_read_once(
    job: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, examined = Counter[str](), Counter[int]()
    really, of = os.open, wakers.Reader._of

    def counted(path: Any, *rest: Any, **named: Any) -> Any:
        opened[str(path)] += 1
        return really(path, *rest, **named)

    def counted_of(self: wakers.Reader, pid: int, thread: Any) -> Any:
        examined[id(self)] += 1
        return of(self, pid, thread)

    monkeypatch.setattr(os, "open", counted)
    monkeypatch.setattr(wakers.Reader, "_of", counted_of)
    found = module.look(LookRequest(job, 0.0, between=0.0))
    assert found.open_reason is None, found.open_reason
    assert not opened[f"/proc/{job}/mem"], "all of them run Python, so what else is on their stacks decides nothing"
    assert {opened[f"/proc/{job}/task/{tid}/stat"] for tid in os.listdir(f"/proc/{job}/task")} == {1}
    assert sum(examined.values()) <= 3 * 3, "in each of three walks the main thread, and the others once"
    world = waits.empty(frozenset())
    waits.observe_job(world, [job])
    opened.clear()
    code = libraries.read((job, thread) for thread in world.processes[job].threads)
    assert len(code.threads) == THREADS + 1
    assert opened[f"/proc/{job}/mem"] == 1
