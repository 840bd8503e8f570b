"""What looks see of ranks that wait for their devices, on real processes with a library in the place of a driver's."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from ftrun.core.machine.values import Spin
from ftrun.core.rules import liveness
from ftrun.helpers.evidence.device_waits import none_works
from ftrun.helpers.evidence.look import look
from ftrun.messages.evidence import LookRequest, RankState
from ftrun.messages.probe import Device
from support.device.ras import At, Ras, in_json
from support.evidence_job import Job, ask, needs_spy, rank
from support.evidence_job import job as job
from support.runs import wait_for

pytestmark = [needs_spy, pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no C compiler")]

SOURCE = Path(__file__).parents[1] / "support/driver.c"
HEAD = """import ctypes, os, queue, sys, threading, time
driver = ctypes.CDLL(sys.argv[1])
def ready(): os.write(1, b'ready\\n')
def item(how): driver['synchronize_by_' + how]()
"""
WAITING = Device("nvidia", "GPU-1", 0, "H100", util=100.0, memory_util=0.0, power=80.0)
NOTHING = WAITING._replace(id="GPU-2", util=0.0)
POWERS = (("GPU-1", 650.0), ("GPU-2", 650.0))


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("driver") / "libcuda.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-pthread", "-o", path, SOURCE], check=True)
    return str(path)


def request(pids: list[int], *devices: Device, powers: tuple[tuple[str, float], ...] = POWERS) -> LookRequest:
    now = time.monotonic()
    ranks = tuple(RankState(number, pid, moved_at=now - 60, step=7) for number, pid in enumerate(pids))
    return LookRequest(pids[0], now, (), ranks, devices, between=0.2, powers=powers)


def see(job: Job, *devices: Device) -> Spin | None:
    found = look(request([process.pid for process in job.processes], *devices))
    assert found.open_reason is not None
    return found.spin


def on_device(job: Job, *devices: Device) -> bool:
    """Whether one of three looks finds that all ranks wait for their devices."""
    return any(seen is not None and seen.on_device for seen in (see(job, *devices) for _ in range(3)))


def test_a_rank_that_waits_for_its_device_looks_the_same_at_each_look(job: Job, driver: str) -> None:
    """Also beside a thread that carries a collective.  tests/waitproof/test_device_lab.py has all ways to wait."""
    job.start(f"{HEAD}driver.carry(); ready(); item('spinning')", driver)
    first = wait_for(lambda: see(job, WAITING), "a look that sees it")
    assert first.on_device
    assert first.why.startswith("rank 0 waits for its device at <string>:4 item")
    assert (first.rank, first.pid) == (0, job.pid)
    later = wait_for(lambda: see(job, WAITING), "another one")
    assert liveness.follow_spin(first, later) is first


@pytest.mark.parametrize("name", ["libtorch_npu.so", "libtorch_other.so"])
def test_a_synchronizing_call_of_torch_npu_waits_for_its_queue(job: Job, tmp_path: Path, name: str) -> None:
    """With the device that the queue waits for.  An eventfd of another library may come from anywhere."""
    library = tmp_path / name
    subprocess.run(["gcc", "-shared", "-fPIC", "-pthread", "-o", library, SOURCE], check=True)
    driver = tmp_path / "libascendcl.so"
    shutil.copy(library, driver)
    job.start(f"{HEAD}ctypes.CDLL(sys.argv[2]); ready(); item('reading')", str(library), str(driver))
    if name == "libtorch_npu.so":
        seen = wait_for(lambda: see(job, WAITING), "a look that sees it")
        assert seen.why.startswith("rank 0 waits for its device at <string>:4 item")
    else:
        assert not on_device(job, WAITING)


AT_WORK = {
    "none": [],
    "nothing runs on it": [NOTHING],
    "used now and then": [WAITING._replace(util=60.0)],
    "one does not answer": [WAITING, NOTHING._replace(answers=False)],
    "its use is not known": [WAITING._replace(util=None)],
    "its power is not known": [WAITING._replace(power=None)],
    "its memory is not known": [WAITING._replace(memory_util=None)],
    "another one works": [WAITING, NOTHING._replace(util=70.0)],
    "its memory is used": [WAITING._replace(memory_util=20.0)],
    "it moves data": [WAITING._replace(traffic=5e6)],
    "it draws power": [WAITING._replace(power=400.0)],
    "it has never drawn more power": [WAITING._replace(id="GPU-100-W")],
    "what it has drawn is not known": [WAITING._replace(id="GPU-3")],
}


@pytest.mark.parametrize("devices", AT_WORK.values(), ids=AT_WORK.keys())
def test_a_device_that_works_or_does_nothing_is_not_waited_for(devices: list[Device]) -> None:
    powers = dict(POWERS) | {"GPU-100-W": 100.0}
    assert none_works([WAITING, NOTHING], powers)
    assert not none_works(devices, powers)


def test_a_device_that_another_process_uses_is_not_waited_for(job: Job, driver: str) -> None:
    """One that is waited for would be used by each of the ranks."""
    job.start(f"{HEAD}ready(); item('spinning')", driver)
    assert not on_device(job, NOTHING._replace(pids=(job.pid,)), WAITING._replace(pids=(1,)))


def test_a_rank_that_has_never_stepped_may_compute(job: Job, driver: str) -> None:
    job.start(f"{HEAD}ready(); item('spinning')", driver)
    asked = request([job.pid], WAITING)
    wait_for(lambda: (seen := look(asked).spin) and seen.on_device, "the wait")
    new = asked._replace(ranks=(asked.ranks[0]._replace(step=None),))
    assert not (seen := look(new).spin) or not seen.on_device


def test_the_evidence_finds_it_once_more(job: Job, driver: str) -> None:
    job.start(f"{HEAD}ready(); item('blocking')", driver)
    finding = {"rule": "device-wait", "rank": 0, "age": 50.0, "limit": 45.0, "mechanism": "rank 0 waits for its device"}
    asked: dict[str, Any] = {"finding": finding, "given": False, "ranks": [rank(0, job.pid, 60.0)]}
    asked["powers"] = POWERS
    answer = ask(job, devices=[WAITING._asdict()], **asked)
    assert answer.result["cleared"] is None, answer.result
    assert answer.result["mechanism"] == finding["mechanism"]
    assert ask(job, devices=[NOTHING._asdict()], **asked).result["cleared"] == "it does something else now"


def test_the_rank_that_has_not_launched_a_collective_is_named(job: Job, driver: str) -> None:
    """By NCCL's own service, at the looks and in the headline; it alone has to be replaced."""
    ras_thread = """def ras():
    ctypes.CDLL(None).prctl(15, b'NCCL RAS', 0, 0, 0)
    ready()
    threading.Event().wait()
threading.Thread(target=ras, daemon=True).start()
item('spinning')"""
    devices = [WAITING._replace(id=f"GPU-{number}") for number in range(3)]
    powers = tuple((device.id, 650.0) for device in devices)
    named = "rank 1 (last in AllReduce 99) has not reached AllReduce 100 of communicator 27a079b828ff1a75"
    with Ras("") as ras:
        pids = [job.start(f"{HEAD}{ras_thread}", driver, **ras.variable) for _ in devices]
        ras.answers = [in_json([At(pid, 99 if pid == pids[1] else 100) for pid in pids])]
        asked = request(pids, *devices, powers=powers)
        seen = wait_for(lambda: (found := look(asked).spin) and found.on_device and found, "the wait of all")
        assert seen.why.startswith("rank 0 waits for its device at <string>:4 item, and each device waits")
        assert seen.why.endswith(f"; {named}, in which ranks 0, 2 wait")
        finding = {"rule": "device-wait", "rank": 0, "pid": pids[0], "age": 50.0, "limit": 45.0, "mechanism": seen.why}
        more: dict[str, Any] = {
            "given": False,
            "powers": powers,
            "ranks": [rank(n, pid, 60.0) for n, pid in enumerate(pids)],
        }
        answer = ask(job, finding=finding, devices=[device._asdict() for device in devices], **more)
    assert answer.result["cleared"] is None, answer.result
    assert answer.result["culprits"] == [1]
    assert named in answer.document["mechanism"]
    assert named.replace("_", r"\_") in answer.markdown.splitlines()[0]
