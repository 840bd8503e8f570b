"""Whether each rank of this node waits for its device, or for another rank.  Nothing is stopped.

A host waits for a device in three ways: its main thread spins in the driver, mostly without a system call; it yields;
or it blocks in a call that the driver has made (`cudaDeviceScheduleSpin`, `Yield`, `BlockingSync` in the documentation
of CUDA).  A thread that spins looks like one that computes, so a rank counts only if its process uses a device that is
used all the time and draws little power.  Only several looks, compared, show that it goes on for ever.
"""

import re
import time
from collections.abc import Mapping, Sequence
from typing import Final

from ftrun.core.text import sentences
from ftrun.helpers.evidence import spinning
from ftrun.helpers.evidence.spinning import Computing
from ftrun.messages.probe import Device
from waitproof import files, libraries, recognized, threads
from waitproof.mappings import Mappings
from waitproof.proof import Facts
from waitproof.stacks import Stack
from waitproof.world import WaitingThread

BUSY: Final = 90.0  # %: the utilisation of a device that is used all the time
LOW: Final = 0.3  # of the highest power that a device has drawn in this job: a kernel that waits draws far less
MEMORY: Final = 1.0  # %: the use of its memory from where on a device works
TRAFFIC: Final = 1e6  # bytes per second over PCIe, likewise
MOST: Final = 64  # ranks of a node
_DRIVERS: Final = re.compile(r"/(libcuda|libascendcl|libascend_hal|libruntime)(-[0-9a-f]+)?\.so[.\d]*$")
# Each synchronizing call of torch_npu first waits for an eventfd until the queue of what is launched is empty, and that
# waits for the device (torch_npu/csrc/core/npu/NPUQueue.cpp, `MakeSureQueueEmpty`).
_QUEUES: Final = re.compile(r"/libtorch_npu\.so$")
# Threads that NCCL, HCCL and the driver use for a collective that is under way, by their names: they may spin as well.
_CARRIERS: Final = re.compile(r"^(NCCL |cuda|pt_nccl|pt_hccl|hccl|HCCL|acl_thread$|release_thread$)")
_CALLS: Final = frozenset({"device", "poll", "epoll", "futex", "sleep", "other"})  # in which a driver blocks or yields


def none_works(devices: Sequence[Device], powers: Mapping[str, float]) -> bool:
    """Whether each device does nothing or spins, one of them spins, and all answer.  `powers`: the highest power that
    each of them has drawn in this job, in watts."""
    spinning = [device for device in devices if _spins(device, powers)]
    rest = [device for device in devices if device.answers and device.util == 0]
    return bool(spinning) and len(spinning) + len(rest) == len(devices)


def _spins(device: Device, powers: Mapping[str, float]) -> bool:
    """Whether this device runs a kernel that waits: it is used all the time, but moves no memory and draws little
    power."""
    if not device.answers or device.util is None or device.power is None or device.memory_util is None:
        return False
    moves = device.memory_util >= MEMORY or (device.traffic or 0.0) >= TRAFFIC
    return device.util >= BUSY and not moves and device.power <= LOW * powers.get(device.id, 0.0)


def wait(job: Facts, devices: Sequence[Device], stacks: Mapping[int, Stack]) -> Computing | None:
    """What all ranks wait for, as one, named after the one that has stood still for the longest time.  None: a rank
    moves, never stepped, or does something else."""
    if set(job.still) != job.ranks.keys() or not job.ranks.keys() <= job.stepped or len(job.ranks) > MOST:
        return None
    waiting = list[int]()
    for pid in job.still:
        stack = stacks.get(pid)
        if stack is None or stack.main is None or not stack.main.frames or _code_may_run(pid, stack):
            return None
        if _waits(pid):
            waiting.append(pid)
        elif not _waits_for_ranks(pid, stack):
            return None
    if not waiting or not _have_busy_devices(waiting, len(job.ranks), devices):
        return None
    states = [spinning.state(pid, stacks[pid], _CARRIERS, whole=True) for pid in job.still]
    first = waiting[0]
    main = stacks[first].main
    where = "" if main is None else f" at {main.location}"
    why = f"{sentences.rank(job.ranks[first])} waits for its device{where}, and each device waits or does nothing"
    still, others = job.still[0], round(sum(state.others for state in states), 2)
    return Computing(still, why, repr([state.fingerprint for state in states]), others, True)


def _have_busy_devices(pids: Sequence[int], ranks: int, devices: Sequence[Device]) -> bool:
    """Whether each of these processes uses a busy device.  Where no driver tells who uses a device, as in a container,
    there has to be one for each rank, and a driver in each of these processes."""
    busy = [device for device in devices if (device.util or 0.0) >= BUSY]
    users = {pid for device in devices for pid in device.pids}
    if users.isdisjoint(pids):
        return len(busy) >= ranks and all(map(_uses_driver, pids))
    return {pid for device in busy for pid in device.pids} >= set(pids)


def _code_may_run(pid: int, stack: Stack) -> bool:
    """Whether another thread of Python in this process runs or has a timer, and is of none of the known kinds: it may
    launch what a device waits for."""
    for thread in stack.threads:
        if thread.tid is None or thread.tid == pid or not thread.frames:
            continue
        seen = threads.thread(pid, thread.tid, Mappings())
        if not (seen.running or seen.timed or seen.state == "R"):
            continue
        sleeps = seen.call is not None and seen.call.kind == "sleep"
        known = recognized.presumed(thread.frames, seen.name, seen.left, sleeps) is not None
        if not known and not recognized.reports(thread.frames):
            return True
    return False


def _uses_driver(pid: int) -> bool:
    """Whether this process has an accelerator open, or has mapped the library of a driver."""
    try:
        if any(end.is_accelerator for end in files.list_open(pid).values()):
            return True
    except OSError:
        return False
    return any(_DRIVERS.search(mapping.path) for mapping in Mappings().all(pid))


def _waits(pid: int) -> bool:
    """Whether the main thread of this process computes, or is blocked in a call of a driver's library, at each of
    several instants."""
    for number in range(spinning.SAMPLES):
        time.sleep(spinning.PAUSE if number else 0.0)
        thread = threads.thread(pid, pid, Mappings())
        if not (thread.running or thread.state == "R" or _is_in_driver(pid, thread)):
            return False
    return True


def _is_in_driver(pid: int, thread: WaitingThread) -> bool:
    if thread.is_stopped or thread.call is None or thread.call.kind not in {*_CALLS, "in"}:
        return False
    if thread.call.kind == "device":
        return True
    inner = libraries.innermost(pid, thread) or ""
    return bool((_QUEUES if thread.call.kind == "in" else _DRIVERS).search(inner))


def _waits_for_ranks(pid: int, stack: Stack) -> bool:
    """Whether the main thread of this process waits in a collective, and for no timeout that a person gave."""
    assert stack.main is not None
    thread = threads.thread(pid, pid, Mappings())
    given = thread.timed and thread.left is not None and thread.left < recognized.GIVEN
    return recognized.collective(stack.main.frames) is not None and not given and not thread.is_stopped
