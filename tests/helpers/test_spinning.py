"""What looks see of a rank that computes, on real processes: what is the same after a while, and what can be seen
outside."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from ftrun.core.machine.values import Spin
from ftrun.core.rules import liveness
from ftrun.helpers.evidence.look import look
from ftrun.messages.evidence import LookRequest, RankState
from support.evidence_job import Job, ask, needs_spy, rank
from support.evidence_job import job as job
from support.runs import wait_for
from support.short import quick

pytestmark = needs_spy
HEAD = """import os, subprocess, sys, threading, time
def ready():
    os.write(1, b'ready\\n')
"""
IN_ONE_FUNCTION = {
    "a counter": "n = 0; ready()\nwhile True: n += 1",
    "beside a thread that waits for a lock": (
        "lock = threading.Lock(); lock.acquire(); threading.Thread(target=lock.acquire, daemon=True).start(); ready()\n"
        "while lock.locked(): pass"
    ),
    "beside a child that waits": "p = subprocess.Popen(['sleep', '900']); ready()\nwhile True: pass",
}
SEEN = {
    "it writes": "f = open(os.devnull, 'w'); ready()\nwhile True:\n    f.write('x'); f.flush()",
    "it looks for a file": (
        "def look():\n    open(os.devnull).read(1)\nready()\nwhile True:\n    [n for n in range(10**5)]; look()"
    ),
    "it starts processes": (
        "ready()\nwhile True:\n    pid = os.fork()\n    if not pid: os._exit(0)\n    os.waitpid(pid, 0)\n"
        "    for n in range(10**5): pass"
    ),
    "its thread works": (
        "def work():\n    while True: pass\n"
        "threading.Thread(target=work, daemon=True).start(); ready()\nwhile True: pass"
    ),
    "its child works": ("p = subprocess.Popen([sys.executable, '-c', 'while True: pass']); ready()\nwhile True: pass"),
    "other functions": (
        "def one():\n    until = time.monotonic() + 0.7\n    while time.monotonic() < until: pass\n"
        "def two():\n    until = time.monotonic() + 0.9\n    while time.monotonic() < until: pass\n"
        "ready()\nwhile True: one(); two()"
    ),
}


def see(job: Job) -> Spin | None:
    now = time.monotonic()
    found = look(LookRequest(job.pid, now, (), (RankState(0, job.pid, moved_at=now - 60, step=7),), between=0.2))
    assert found.open_reason == "rank 0 computes"
    return found.spin


@pytest.mark.parametrize("name", IN_ONE_FUNCTION)
def test_a_rank_in_one_function_looks_the_same_at_each_look(job: Job, name: str) -> None:
    job.start(HEAD + IN_ONE_FUNCTION[name])
    first = wait_for(lambda: see(job), "a look that sees it")
    assert first.why.startswith("rank 0 computes at <string>:")
    assert (first.rank, first.pid) == (0, job.pid)
    time.sleep(1.0)  # in which it would have done something
    later = wait_for(lambda: see(job), "another one")
    assert liveness.follow_spin(first, later) is first


@pytest.mark.parametrize("name", quick(SEEN, ("it writes", "its child works", "other functions")))
def test_what_can_be_seen_outside_makes_it_another_one(job: Job, name: str) -> None:
    job.start(HEAD + SEEN[name])

    def spin() -> Spin | None:
        now = time.monotonic()
        return look(LookRequest(job.pid, now, (), (RankState(0, job.pid, moved_at=now - 60),), between=0.2)).spin

    first = spin()

    def differs() -> bool:
        """A look may find it between two functions, or in a call."""
        later = spin()
        return first is None or later is None or liveness.follow_spin(first, later) is not first

    wait_for(differs, "that")


def test_no_look_stops_the_process(job: Job) -> None:
    """It would be seen in state t or T, and in its tracer."""
    job.start(HEAD + IN_ONE_FUNCTION["a counter"])
    status = Path(f"/proc/{job.pid}/status")
    seen, done = set[str](), threading.Event()

    def watch() -> None:
        while not done.is_set():
            lines = status.read_text().splitlines()
            seen.update(line for line in lines if line.startswith(("State:", "TracerPid:")))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        for _ in range(5):
            see(job)
    finally:
        done.set()
        watcher.join()
    assert seen <= {"State:\tR (running)", "TracerPid:\t0"}


def test_the_evidence_finds_it_once_more(job: Job) -> None:
    job.start(HEAD + IN_ONE_FUNCTION["a counter"])
    finding = {"rule": "spin", "rank": 0, "age": 3600.0, "limit": 3600.0, "mechanism": "rank 0 computes at <string>:5"}
    ranks = [rank(0, job.pid, 3600.0)]
    answer = ask(job, finding=finding, given=False, ranks=ranks)
    assert answer.result["cleared"] is None, answer.result
    assert answer.result["mechanism"] == finding["mechanism"]
    again = ask(job, finding=finding | {"pid": job.pid + 1}, given=False, ranks=ranks)
    assert again.result["cleared"] == "it does something else now"
