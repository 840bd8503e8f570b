"""Threads that compute and that nothing can influence, on real processes: for the rule `spin`, which is no proof."""

from __future__ import annotations

import platform
import time
from pathlib import Path

import pytest

from ftrun.helpers.evidence.look import look
from ftrun.helpers.evidence.recurrence import FEW, NOT_FOUND, Comparison
from ftrun.messages.evidence import Look, Looked, RankState
from support.evidence_job import Job, ask, needs_spy
from support.evidence_job import job as job
from support.runs import wait_for

needs_registers = pytest.mark.skipif(platform.machine() != "x86_64", reason="the registers of this machine are unknown")
pytestmark = [needs_spy, needs_registers]

HEAD = """import hashlib, os, random, sys, threading, time
def ready():
    os.write(1, b'ready\\n')
"""
# Loops that never end; no state of theirs recurs.
ENDLESS = {
    "a counter": "def wait():\n    n = 0\n    while n >= 0: n += 1\nready(); wait()",
    "retries": (
        "def arrived(attempt): return attempt < 0\ndef back_off(attempt): return (attempt * 2 + 1) % 1000003\n"
        "def wait():\n    attempt = 0\n    while not arrived(attempt): attempt = back_off(attempt)\nready(); wait()"
    ),
    "beside a thread that waits for a lock": (
        "lock = threading.Lock(); lock.acquire(); threading.Thread(target=lock.acquire, daemon=True).start(); n = 0\n"
        "ready()\nwhile lock.locked(): n += 1"
    ),
}
# What a healthy job computes for minutes; each of these is open for another reason.
HEALTHY = {
    "edit distances of many sentences": (
        "words = [f'w{n}' for n in range(2000)]\n"
        "pairs = [[[random.choice(words) for _ in range(25)] for _ in range(2)] for _ in range(2000)]\n"
        "def distance(one, other):\n    row = list(range(len(other) + 1))\n    for i, a in enumerate(one, 1):\n"
        "        before, row[0] = row[0], i\n        for j, b in enumerate(other, 1):\n"
        "            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (a != b))\n    return row[-1]\n"
        "ready()\nwhile True:\n    for pair in pairs: distance(*pair)"
    ),
    "sorting": "data = [str(random.random()) for _ in range(300000)]; ready()\nwhile True: sorted(data)",
    "until a time": "end = time.monotonic() + 10**6; n = 0; ready()\nwhile time.monotonic() < end: n += 1",
    "until a file exists": "n = 0; ready()\nwhile not os.path.exists('file'): n += 1",
    "a call of a library": "ready(); hashlib.pbkdf2_hmac('sha256', b'a', b'b', 10**9)",
    "until a thread that sleeps sets a flag": (
        "flag = []; n = 0\ndef later():\n    time.sleep(500); flag.append(1)\n"
        "threading.Thread(target=later, daemon=True).start(); ready()\nwhile not flag: n += 1"
    ),
    "steps that are logged": (
        "n = 0; log = open('log', 'w', buffering=1); ready()\n"
        "while True:\n    n += 1\n    if n % 1000 == 0: print(n, file=log)"
    ),
}


def see(job: Job, compare: float) -> Looked:
    now = time.monotonic()
    ranks = (RankState(0, job.pid, moved_at=now - 60),)
    return look(Look(job.pid, now, (), ranks, between=0.3, timeout=20.0, compare=compare))


def confined(job: Job) -> Looked:
    """The first look that finds it so: the kernel mixes up what processes that end have touched."""
    seen: list[Looked] = []

    def found() -> Looked | None:
        seen.append(see(job, 2.0))
        return seen[-1] if seen[-1].confined else None

    try:
        answer: Looked = wait_for(found, "a look that finds it confined", 180)
        return answer
    except AssertionError as error:
        raise AssertionError(f"{error}; {seen[-1]}") from None


# Each of these takes a processor for seconds, so most of them are slow tests.
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "a counter" else pytest.mark.slow) for name in ENDLESS]
)
def test_a_loop_that_counts_is_confined_but_not_proved(job: Job, name: str) -> None:
    job.start(HEAD + ENDLESS[name])
    found = confined(job)
    assert found.open_reason == f"rank 0 {NOT_FOUND}"
    assert found.confined.startswith("rank 0 computes at <string>:")
    assert found.confined.endswith(", which nothing can influence")
    assert (found.rank, found.pid) == (0, job.pid)
    assert found.place.startswith("<string>:<module>")
    assert ("wait" in found.place) == (name != "beside a thread that waits for a lock")


QUICK = ("edit distances of many sentences", "until a time", "until a thread that sleeps sets a flag")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in HEALTHY]
)
def test_what_a_healthy_job_computes_is_not_confined(job: Job, name: str) -> None:
    job.start(HEAD + HEALTHY[name])
    found = see(job, 2.0)
    assert found.open_reason
    assert not found.confined, found


def test_the_evidence_finds_it_once_more_or_clears_it(job: Job) -> None:
    job.start(HEAD + ENDLESS["a counter"])
    finding = {"rule": "spin", "limit": 600.0, "mechanism": "rank 0 computes"}

    def result() -> dict[str, object]:
        state = [{"rank": 0, "pid": job.pid, "step": 7, "moved_at": time.monotonic() - 600}]
        answer: dict[str, object] = ask(job, finding=finding, ranks=state, patience=3600.0, unproved=600.0).result
        return answer

    def not_cleared() -> dict[str, object] | None:
        answer = result()
        return answer if answer["cleared"] is None else None

    report = Path(str(wait_for(not_cleared, "evidence", 180)["report"])).read_text()
    assert "rank 0 computes; it computes, and its state was not found to recur" in report
    assert "endless loop" not in report, "it is not proved"
    job.end()
    job.processes.clear()
    job.start(HEAD + HEALTHY["until a file exists"])
    assert "calls the system" in str(result()["cleared"])


@pytest.mark.parametrize(
    ("comparison", "expected"),
    [
        (Comparison(NOT_FOUND, 400, 300, 0, 8), True),
        (Comparison(NOT_FOUND, 400, 300, 0, FEW + 1), False),
        (Comparison(NOT_FOUND, 4, 3, 0, 8), False),
        (Comparison(NOT_FOUND, 400, 300, 0, 8, influence="asks for the time"), False),
        (Comparison("calls the system"), False),
        (Comparison(None, 80, 5, 3, 8), True),
    ],
    ids=["few pages", "many pages", "hardly observed", "the clock", "a call", "proved"],
)
def test_who_is_confined(comparison: Comparison, expected: bool) -> None:
    assert comparison.confined is expected
