"""The cost of an answer to the question what every thread waits for, by the number of threads."""

from __future__ import annotations

import os
import shutil
import subprocess

from ftrun.helpers.evidence import job_processes
from proof.bench import bench_waits
from proof.bench.compare.kit import made_by
from support.measured import Measured, spread

NAME = "42-wait-graph"
ROUNDS = 5
STACKS = "`py-spy dump` of each process"
GRAPH = "ftrun: one wait-for graph"
LOOK = "ftrun: a whole look"


def stacks(pid: int) -> None:
    for member in job_processes.members(pid, frozenset()):
        subprocess.run(["py-spy", "dump", "--pid", str(member)], check=True, capture_output=True)


def measure(short: bool) -> Measured:
    ways = {STACKS: stacks} if shutil.which("py-spy") else {}
    ways |= {GRAPH: bench_waits.observe, LOOK: bench_waits.asked}
    sizes = bench_waits.ROWS[:1] if short else bench_waits.ROWS
    cells: dict[str, list[str]] = {name: [] for name in ways}
    for threads, number in sizes:
        with bench_waits.waiting(threads, number) as pid:
            for name, work in ways.items():
                samples = [bench_waits.spent(work, pid) for _ in range(1 if short else ROUNDS)]
                cells[name].append(spread([1e3 * sum(sample) for sample in samples]))
    counts = (f"{threads:,} threads in {number} process{'es' * (number > 1)}" for threads, number in sizes)
    return Measured(
        NAME,
        "What every thread waits for",
        made_by(NAME),
        (
            "All threads of a job wait for locks that nobody releases. The figures are the CPU time in milliseconds to "
            "find that out. A *wait-for graph* has each thread with what it waits for and who could end that; a whole "
            "*look* is two of them, the Python stacks, and the proof. No launcher in this comparison has something of "
            "the kind; the Python stacks are what a person would get by hand.",
        ),
        ("done by", *counts),
        tuple((name, *found) for name, found in cells.items()),
        (
            "**The stacks alone cost less than a look**, which contains them: they show where each thread stands, and "
            "leave the question open whether anything can go on. The load of the machine was "
            f"{os.getloadavg()[0]:.0f}, which lengthens CPU times, too.",
        ),
    )
