"""A lab of four ranks on four devices: hangs of the device, and healthy waits that look like them.

The ranks are real processes with a library in the place of the driver's, and wait in it; what their devices show is
given.  The 45 s over which looks have to agree are three looks here; tests/cli/test_device_hangs.py has eight ranks,
with ftrun and in full length.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ftrun.core.machine.values import Spin
from ftrun.core.rules import liveness
from ftrun.helpers.evidence.look import look
from ftrun.messages.evidence import LookRequest, RankState
from ftrun.messages.probe import Device
from support.evidence_job import Job, needs_spy
from support.evidence_job import job as job
from support.proving import shared_library
from support.short import quick

pytestmark = [needs_spy, pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no C compiler")]

RANKS = 4
HEAD = """import ctypes, os, queue, signal, socket, subprocess, sys, threading, time
driver, threads, scratch = ctypes.CDLL(sys.argv[1]), sys.argv[2], sys.argv[3]
def ready(): os.write(1, b'ready\\n')
def wait(how): driver['synchronize_by_' + how]()
def side(work, *given): threading.Thread(target=work, args=given, daemon=True).start()
"""
# What a rank does while it stands still.
WAITS = {
    "blocks in the driver": "ready(); wait('blocking')",
    "spins in the driver": "ready(); wait('spinning')",
    "yields in the driver": "ready(); wait('yielding')",
    "waits in a collective": """os.makedirs(scratch + '/torch/distributed', exist_ok=True)
with open(scratch + '/torch/distributed/distributed_c10d.py', 'w') as file:
    file.write('import time\\ndef all_reduce(): time.sleep(10**6)\\n')
sys.path.insert(0, scratch + '/torch/distributed')
from distributed_c10d import all_reduce
ready(); all_reduce()""",
    "is beside all that is usual": """ctypes.CDLL(threads).begin()
signal.signal(signal.SIGTERM, lambda *_: None)
os.makedirs(scratch + '/site-packages', exist_ok=True)
with open(scratch + '/site-packages/wandb.py', 'w') as file:
    file.write('import threading\\ndef _loop():\\n    event = threading.Event()\\n    while True: event.wait(0.5)\\n')
sys.path.insert(0, scratch + '/site-packages')
import wandb
side(wandb._loop); ready(); wait('blocking')""",
}
WORKS = {
    "reads data from a slow disk": """data = open(sys.executable, 'rb', buffering=0); ready()
while True:
    data.seek(0); data.read(4096)
    time.sleep(0.01)""",
    "waits for a slow reader": """child = subprocess.Popen(['sleep', '100000'], stdout=subprocess.PIPE); ready()
child.stdout.read(1)""",
    "waits for a thread that reads": """items = queue.Queue()
side(lambda: (time.sleep(10**5), items.put(1))); ready(); items.get()""",
    "evaluates on the processor": """def evaluate():
    total = 0
    while True:
        total += 1
        time.sleep(0.001)
        total += 2
ready(); evaluate()""",
    "uploads a checkpoint": """there, here = socket.socketpair()
def store():
    while here.recv(64): time.sleep(0.02)
side(store); ready()
while True: there.send(b'x' * 64)""",
    "uploads a checkpoint in a side thread": """def upload():
    for _ in range(10**6): os.pwrite(file, b'x', 0); time.sleep(0.02)
file = os.open(scratch + '/checkpoint', os.O_CREAT | os.O_RDWR); side(upload); ready(); wait('blocking')""",
    "compiles in a child": """work = 'import time\\nwhile True: time.sleep(0.01)'
child = subprocess.Popen([sys.executable, '-c', work]); ready(); child.wait()""",
    "backs off before it tries again": "ready(); time.sleep(10**5)",
    "waits for a server outside": """server = socket.create_server(('127.0.0.1', 0)); ready()
server.accept()""",
    "launches kernels one by one": """ready()
while True:
    time.sleep(0.005)
    time.sleep(0.007)""",
}


class Shown(NamedTuple):
    """What a device shows, in % and W; its peak was 650 W."""

    util: float | None = 100.0
    memory_util: float | None = 0.0
    power: float | None = 80.0
    traffic: float | None = None


WAITING, NOTHING, TRAINING = Shown(), Shown(0.0), Shown(97.0, 43.0, 620.0)
HANGS: Mapping[str, tuple[Sequence[str], Sequence[Shown]]] = {
    "all block": (["blocks in the driver"] * 4, [WAITING] * 4),
    "in all three ways": (
        ["blocks in the driver", "blocks in the driver", "spins in the driver", "yields in the driver"],
        [WAITING] * 4,
    ),
    "half of them in a collective": ([*["blocks in the driver"] * 2, *["waits in a collective"] * 2], [WAITING] * 4),
    "one has launched nothing": ([*["blocks in the driver"] * 3, "waits in a collective"], [*[WAITING] * 3, NOTHING]),
    "beside a tracker, a handler and the driver's threads": (["is beside all that is usual"] * 4, [WAITING] * 4),
}
DEVICES_AT_WORK: Mapping[str, Shown] = {
    "computes for minutes": Shown(100.0, 0.0, 610.0),
    "moves its memory": Shown(100.0, 12.0, 90.0),
    "moves data over the bus": Shown(100.0, 0.0, 90.0, 3e9),
    "is used now and then": Shown(55.0, 0.0, 80.0),
    "does not say how much power it draws": Shown(power=None),
}
KINDS = {"nvidia": "libcuda.so.1", "ascend": "libascendcl.so"}


class Lab:
    """The ranks of one job.  `say`: whether the driver says which process uses which device."""

    def __init__(self, job: Job, folder: Path, kind: str = "nvidia", says: bool = True) -> None:
        self.job, self._folder, self._kind, self._says = job, folder, kind, says
        self._driver = self._library("driver.c", KINDS[kind])
        self._threads = self._library("native_threads.c", "libnccl.so.2")

    def _library(self, source: str, name: str) -> str:
        path = self._folder / name
        path.write_bytes(shared_library(source))
        return str(path)

    def start(self, doing: Sequence[str]) -> None:
        for number, what in enumerate(doing):
            scratch = self._folder / f"rank-{number}"
            scratch.mkdir()
            self.job.start(HEAD + (WAITS | WORKS)[what], self._driver, self._threads, str(scratch))

    def found(self, shown: Sequence[Shown], looks: int = 3, moved: Sequence[float] = ()) -> Spin | None:
        """What all looks have found alike; None: they do not agree, so nothing is found.  `moved`: how long ago each
        rank has moved."""
        pids = [process.pid for process in self.job.processes]
        devices = tuple(
            Device(self._kind, f"D-{n}", n, "device", pids=(pids[n],) if self._says else (), **one._asdict())
            for n, one in enumerate(shown)
        )
        powers = tuple((device.id, 650.0) for device in devices)
        first: Spin | None = None
        for _ in range(looks):
            now = time.monotonic()
            ago = moved or [60.0] * len(pids)
            ranks = tuple(RankState(n, pid, moved_at=now - ago[n], step=7) for n, pid in enumerate(pids))
            seen = look(LookRequest(self.job.pid, now, (), ranks, devices, between=0.2, powers=powers)).spin
            if (
                seen is None
                or not seen.on_device
                or (first is not None and liveness.follow_spin(first, seen) is not first)
            ):
                return None
            first = first or seen
        return first

    def ever_found(self, shown: Sequence[Shown], **more: Any) -> Spin | None:
        """The same, tried a few times: a host may be seen at a bad instant."""
        return next((seen for _ in range(5) if (seen := self.found(shown, **more)) is not None), None)


def hangs() -> list[Any]:
    """Every hang on both kinds of devices, with a driver that says who uses which, as in a container, and without;
    then each rank needs a busy one.  The short form has each hang once."""
    rows = [(case, kind, says) for case in HANGS for kind in KINDS for says in (True, False)]
    rows = [row for row in rows if row[2] or NOTHING not in HANGS[row[0]][1]]
    short = [("all block", "ascend", True), *((case, "nvidia", True) for case in HANGS)]
    return [pytest.param(*row, marks=[] if row in short else pytest.mark.slow) for row in rows]


@pytest.mark.parametrize(("case", "kind", "says"), hangs())
def test_a_hang_of_all_ranks_is_found(job: Job, tmp_path: Path, case: str, kind: str, says: bool) -> None:
    doing, shown = HANGS[case]
    lab = Lab(job, tmp_path, kind, says)
    lab.start(doing)
    seen = lab.ever_found(shown)
    assert seen is not None
    assert "waits for its device" in seen.why


@pytest.mark.parametrize("what", quick(WORKS, 2))
def test_one_host_that_works_explains_the_waits_of_the_others(job: Job, tmp_path: Path, what: str) -> None:
    """Whatever its own device shows."""
    lab = Lab(job, tmp_path)
    lab.start([*["blocks in the driver"] * (RANKS - 1), what])
    for last in (NOTHING, WAITING):
        assert lab.found([*[WAITING] * (RANKS - 1), last]) is None


@pytest.fixture(scope="module", params=["nvidia", pytest.param("ascend", marks=pytest.mark.slow)])
def blocked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """All of its ranks block in the driver."""
    folder = tmp_path_factory.mktemp("blocked")
    lab = Lab(Job(folder), folder, request.param)
    try:
        lab.start(["blocks in the driver"] * RANKS)
        yield lab
    finally:
        lab.job.end()


@pytest.mark.parametrize("what", DEVICES_AT_WORK)
def test_one_device_that_works_explains_the_waits_of_all(blocked: Lab, what: str) -> None:
    assert blocked.found([*[WAITING] * (RANKS - 1), DEVICES_AT_WORK[what]]) is None


def test_a_rank_that_moves_now_and_then_explains_them_too(blocked: Lab) -> None:
    assert blocked.found([WAITING] * RANKS, moved=[*[60.0] * (RANKS - 1), 4.0]) is None


def test_training_is_no_hang(blocked: Lab) -> None:
    assert blocked.found([TRAINING] * RANKS) is None


def test_devices_that_do_nothing_are_not_waited_for(job: Job, tmp_path: Path) -> None:
    """All hosts evaluate on their processors, or all devices of CANN wait for a notification, which uses no AI core: of
    that only the idle rule is certain."""
    lab = Lab(job, tmp_path, "ascend")
    lab.start(["evaluates on the processor"] * 2 + ["blocks in the driver"] * 2)
    assert lab.found([NOTHING] * 4) is None
