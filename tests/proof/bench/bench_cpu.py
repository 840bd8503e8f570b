"""What the supervisor costs a large, busy job: `python tests/proof/bench/bench_cpu.py [SECONDS] [ROUNDS]`.

1,024 ranks on one node beat twice a second (four processes store into their slots); then there are 10,000 records a
minute as well, of checkpoint files that are renamed into place; then the metrics are scraped each second.  Printed is
utime + stime of PID 1 and of each helper, in per cent of a core: the median of ROUNDS times SECONDS.
"""

import os
import statistics
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Final, NamedTuple

HOUSE: Final = Path(__file__).resolve().parents[3]
PATHS: Final = [str(HOUSE / part) for part in ("supervisor", "hooks", "tests")]
sys.path[:0] = PATHS

from support.runs import Run, Runs, helpers, status, wait_for  # noqa: E402

RECORDS: Final = 10_000  # a minute
TICKS: Final = os.sysconf("SC_CLK_TCK")
RANKS: Final = """
import mmap, os, struct, sys, time
from ftrun_hooks import layout as at
ranks, share, files = 1024, int(sys.argv[1]), float(sys.argv[2])
folder = os.environ["FTRUN_BEAT_DIR"]
with open(f"{folder}/{at.BEATS}", "r+b") as stream:
    words = memoryview(mmap.mmap(stream.fileno(), at.FILE_BYTES)).cast("Q")
bell = os.open(f"{folder}/{at.BELL}", os.O_WRONLY | os.O_NONBLOCK)
for number in range(1, share):
    if os.fork() == 0: break
else: number = 0
mine = [(rank, at.slot_of(rank)) for rank in range(number, ranks, share)]
ticks = int(open("/proc/self/stat").read().rpartition(")")[2].split()[19])
now = time.monotonic_ns()
for rank, slot in mine:
    for word, value in ((at.PID, os.getpid()), (at.START_TICKS, ticks), (at.RANK, rank), (at.CLAIMED_AT, now),
                        (at.INTERVALS, 1000), (at.USUAL, 510_000_000), (at.LONGEST, 600_000_000),
                        (at.SLOWEST_START, 10**9), (at.MAGIC_WORD, at.MAGIC)):
        words[slot + word] = value
os.write(bell, b"x")
began, step, saved = time.monotonic(), 0, 0
if number == 0 and files and os.fork() == 0:
    while True:
        open("new", "w").close()
        os.rename("new", f"step-{saved}.ckpt")
        if saved >= 100: os.unlink(f"step-{saved - 100}.ckpt")
        saved += 1
        time.sleep(max(0.0, began + saved / files - time.monotonic()))
while True:
    step += 1
    for part in range(10):  # the ranks of a job do not all step in one instant
        for rank, slot in mine[part::10]:
            words[slot + at.STEP] = step + 1
            words[slot + at.MOVED_AT] = time.monotonic_ns()
        if step == 1 and part == 9: os.write(bell, b"x")
        time.sleep(max(0.0, began + (step - 1) / 2 + (part + 1) / 20 - time.monotonic()))
"""


class Use(NamedTuple):
    """CPU in seconds so far, and MiB."""

    seconds: float
    memory: float


def used(run: Run) -> dict[str, Use]:
    """PID 1 and its helpers, so far."""
    return {name: _use(pid) for name, pid in {"PID 1": run.pid, **helpers(run.pid)}.items()}


def _use(pid: int) -> Use:
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return Use((int(fields[11]) + int(fields[12])) / TICKS, int(status(pid)["VmRSS"].split()[0]) / 1024)


def measure(run: Run, address: str, seconds: float) -> tuple[dict[str, Use], float]:
    """What each process used, as a share of the time; records a minute."""
    before, records, began = used(run), len(run.records), time.monotonic()
    while (left := began + seconds - time.monotonic()) > 0:
        time.sleep(min(1.0, left))
        if address:
            urllib.request.urlopen(f"http://{address}/metrics", timeout=10).read()
    after, passed = used(run), time.monotonic() - began
    shares = {
        name: Use((use.seconds - before[name].seconds) / passed, use.memory)
        for name, use in after.items()
        if name in before
    }
    return shares, (len(run.records) - records) / passed * 60


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 30.0
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    progress, metrics = ("--progress", "*.ckpt"), ("--metrics", "127.0.0.1:0")
    for what, files, options in (
        ("1,024 ranks beat", 0.0, ()),
        ("and 10,000 records a minute", RECORDS / 60, progress),
        ("and metrics each second", RECORDS / 60, (*progress, *metrics)),
    ):
        with tempfile.TemporaryDirectory() as folder:
            runs = Runs(Path(folder))
            try:
                command = [sys.executable, "-c", RANKS, "4", str(files)]
                run = runs.start("--quiet", "--grace", "off", *options, *command, PYTHONPATH=os.pathsep.join(PATHS))
                run.until("first_beat")
                address = str(run.until("listening")["address"]) if metrics[0] in options else ""
                wait_for(lambda run=run: run.helper("messenger"), "the helper that starts last")  # type: ignore[misc]
                seen = [measure(run, address, seconds) for _ in range(rounds)]
            finally:
                runs.end()
        print(f"{what}: {statistics.median(rate for _, rate in seen):.0f} records a minute")
        for name in seen[0][0]:
            uses = [shares[name] for shares, _ in seen if name in shares]
            shares, memory = [100 * use.seconds for use in uses], max(use.memory for use in uses)
            spread = f"({min(shares):.2f} to {max(shares):.2f})"
            print(f"    {name:10} {statistics.median(shares):6.2f} %   {spread}, {memory:.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
