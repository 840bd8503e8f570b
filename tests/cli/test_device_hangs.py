"""End to end in full length: eight ranks on eight devices, of which none works, or one does for minutes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.device.nvml import BUSY, IDLE, SPINNING, FakeNvml
from support.device.ras import At, Ras, in_json
from support.evidence_job import needs_spy
from support.runs import Run, Runs, python, wait_for

pytestmark = [pytest.mark.slow, needs_spy, pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler")]

RANKS, LAST = 8, 7
MINUTES = 4
SOURCE = Path(__file__).parents[1] / "support/driver.c"
# After twenty steps all ranks wait for their devices in the first start, but for the last one.
CODE = """
import ctypes, os, socket, threading, time
driver = ctypes.CDLL({driver!r})
def ras():
    ctypes.CDLL(None).prctl(15, b'NCCL RAS', 0, 0, 0)
    threading.Event().wait()
threading.Thread(target=ras, daemon=True).start()
open("pid-" + os.environ["RANK"], "w").write(str(os.getpid()))
last = os.environ["RANK"] == "7"
for step in range(20): ft.beat(step); time.sleep(0.1)
def wait(): driver.synchronize_by_blocking()
{work}
if not ft.attempt().is_restart: work() if last else wait()
"""
WAITS = "work = wait"
HEALTHY: dict[str, tuple[str, dict[str, Any]]] = {
    "a kernel computes": (WAITS, SPINNING | {"power": 610}),
    "a peer reads from a slow disk": (
        "def work():\n    data = open('/proc/self/exe', 'rb', 0)\n"
        "    while True: data.seek(0); data.read(4096); time.sleep(0.05)",
        IDLE,
    ),
    "a host evaluates while its device is idle": (
        "def work():\n    n = 0\n    while True:\n        for _ in range(10**4): n += 1\n        time.sleep(0.01)",
        IDLE,
    ),
    "a checkpoint is uploaded": (
        "def store(here):\n    while here.recv(64): time.sleep(0.05)\n"
        "def work():\n    there, here = socket.socketpair()\n"
        "    threading.Thread(target=store, args=(here,), daemon=True).start()\n    while True: there.send(b'x' * 64)",
        IDLE,
    ),
}


def start(runs: Runs, work: str, last: dict[str, Any], *options: str) -> Run:
    driver = runs.folder / "libcuda.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-pthread", "-o", driver, SOURCE], check=True)
    fake = FakeNvml(runs.folder, RANKS)
    runs.environment |= fake.environment()
    for number in range(RANKS):
        fake.set(number, **BUSY)
    code = CODE.format(driver=str(driver), work=work)
    run = runs.start("--probe", "nvidia", "--grace", "off", "--nproc-per-node", str(RANKS), *options, *python(code))
    run.until("first_beat")
    for number in range(RANKS):
        for key, value in (last if number == LAST else SPINNING).items():
            fake.later(4.0, number, **{key: value})
    return run


@pytest.mark.timeout(600)
def test_a_hang_of_eight_ranks_is_found_and_the_service_of_nccl_names_the_rank(runs: Runs) -> None:
    with Ras("") as nccl:
        runs.environment |= nccl.variable
        run = start(runs, WAITS, SPINNING)
        files = [runs.folder / f"pid-{number}" for number in range(RANKS)]
        wait_for(lambda: all(file.exists() and file.read_text() for file in files), "the start of all ranks")
        pids = [int(file.read_text()) for file in files]
        nccl.answers = [in_json([At(pid, 99 if number == LAST else 100) for number, pid in enumerate(pids)])]
        assert run.wait(300) == 0, run.log()
    (hang,) = run.named("hang")
    assert hang["rule"] == "device-wait"
    assert hang["mono"] - run.named("first_beat")[0]["mono"] >= 60
    assert "rank 7 (last in AllReduce 99) has not reached AllReduce 100 of communicator" in hang["mechanism"]
    assert hang["culprits"] == [LAST]
    assert run.order.count("spawned") == 2


@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", HEALTHY)
def test_one_that_works_for_minutes_explains_the_waits_of_all_others(runs: Runs, case: str) -> None:
    work, last = HEALTHY[case]
    run = start(runs, work, last)
    with pytest.raises(subprocess.TimeoutExpired):
        run.wait(MINUTES * 60)
    assert run.named("suspect", "hang") == []
