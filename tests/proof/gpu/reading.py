"""What a process and a device look like from outside, as plain values."""

import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from ftrun.helpers.evidence.look import look
from ftrun.messages.evidence import LookRequest, RankState
from ftrun.messages.probe import Device
from waitproof import libraries, threads
from waitproof.mappings import Mappings
from waitproof.world import WaitingThread

SAMPLES: Final = 5  # of the state of each thread,
BETWEEN: Final = 0.05  # s apart
EVERY: Final = 0.2  # s between two samples of a device
DEVICE: Final = ("util", "memory_util", "power", "clock", "traffic", "memory_used")


def threads_of(pid: int) -> list[dict[str, Any]]:
    """Each thread: its name, what the kernel shows of it at several instants, and the files whose code it runs."""
    found = dict[int, Counter[tuple[str, str, str]]]()
    for number in range(SAMPLES):
        time.sleep(BETWEEN if number else 0.0)
        for tid in map(int, os.listdir(f"/proc/{pid}/task")):
            found.setdefault(tid, Counter())[_seen(pid, tid)] += 1
    tables = Mappings()
    rows = []
    for tid, seen in found.items():
        thread = _at_rest(pid, tid, tables)
        code = libraries.read([(pid, thread)]).threads.get((pid, tid))
        whole = None if code is None or code.whole is None else sorted(map(os.path.basename, code.whole))
        states = [{"state": s, "call": c, "wchan": w, "times": n} for (s, c, w), n in seen.most_common()]
        call = None if thread.call is None else thread.call.name
        row = {"name": thread.name, "main": tid == pid, "call": call, "libraries": whole, "seen": states}
        rows.append({**row, "timed": thread.timed})
    return sorted(rows, key=lambda row: not row["main"])


def _at_rest(pid: int, tid: int, tables: Mappings) -> WaitingThread:
    """The thread while it waits in a call, if it does so now and then."""
    found = threads.thread(pid, tid, tables)
    for _ in range(SAMPLES):
        if found.call is not None:
            break
        time.sleep(BETWEEN)
        found = threads.thread(pid, tid, tables)
    return found


def _seen(pid: int, tid: int) -> tuple[str, str, str]:
    """The state, the system call with its arguments, and the function of the kernel."""
    folder = Path(f"/proc/{pid}/task/{tid}")
    try:
        state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
        return state, (folder / "syscall").read_text().strip(), (folder / "wchan").read_text().strip()
    except OSError as error:
        return "?", error.strerror or "", ""


def mapped(pid: int) -> list[str]:
    """The shared libraries of the vendor and of collectives that it has mapped."""
    words = ("cuda", "nvidia", "nccl", "ascend", "hccl", "ucs", "uct", "ibverbs", "fabric")
    names = {os.path.basename(mapping.path) for mapping in Mappings().all(pid)}
    return sorted(name for name in names if any(word in name for word in words))


def sampled(read: Callable[[], Sequence[Device]], seconds: float) -> tuple[list[dict[str, Any]], list[Device]]:
    """For each device the least, the median and the greatest of its values in that time; and the last sample."""
    samples, until = [list(read())], time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(EVERY)
        samples.append(list(read()))
    rows = []
    for number, last in enumerate(samples[-1]):
        row: dict[str, Any] = {"name": last.name, "health": last.health, "samples": len(samples)}
        for key in DEVICE:
            values = [getattr(one[number], key) for one in samples if len(one) > number]
            values = [value for value in values if value is not None]
            row[key] = [min(values), statistics.median(values), max(values)] if values else None
        rows.append(row)
    return rows, samples[-1]


def judged(pid: int, devices: Sequence[Device], powers: Sequence[tuple[str, float]]) -> dict[str, Any]:
    """What a look of ftrun says of this process, as of the only rank of a job that has stood still for a minute."""
    now = time.monotonic()
    ranks = (RankState(0, pid, moved_at=now - 60, step=7),)
    seen = look(LookRequest(pid, now, (), ranks, tuple(devices), between=0.2, powers=tuple(powers)))
    spin = seen.spin
    return {
        "open": seen.open_reason,
        "waits_for_its_device": spin is not None and spin.on_device,
        "why": None if spin is None else spin.why,
    }
