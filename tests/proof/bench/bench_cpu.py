"""What the supervisor costs a large, busy job: `python tests/proof/bench/bench_cpu.py [SECONDS] [ROUNDS]`.

1,024 ranks on one node beat twice a second (four processes store into their slots); then there are 10,000 records a
minute as well, of checkpoint files that are renamed into place; then the metrics are scraped each second.  Printed is
utime + stime of PID 1 and of each helper, in per cent of a core: the median of ROUNDS times SECONDS.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Final, NamedTuple

HOUSE: Final = Path(__file__).resolve().parents[3]
FTRUN: Final = (sys.executable, str(HOUSE / "bin" / "ftrun"))
RECORDS: Final = 10_000  # a minute
TICKS: Final = os.sysconf("SC_CLK_TCK")
DEADLINE: Final = 60.0  # s
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


class Bench:
    """One ftrun, that beats."""

    def __init__(self, folder: Path, records: bool, metrics: bool) -> None:
        self.run_dir, self._scraped = folder / "run", metrics
        files = RECORDS / 60 if records else 0
        options = ["--run-dir", str(self.run_dir), "--quiet", "--grace", "off"]
        options += ["--progress", "*.ckpt"] if records else []
        options += ["--metrics", "127.0.0.1:0"] if metrics else []
        environment = os.environ | {"PYTHONPATH": f"{HOUSE}/supervisor:{HOUSE}/hooks"}
        command = [sys.executable, "-c", RANKS, "4", str(files)]
        self.process = subprocess.Popen([*FTRUN, *options, *command], cwd=folder, env=environment)
        self._wait("first_beat")
        self.address = self._wait("listening")["address"] if metrics else None

    def until_all_help(self) -> None:
        """They start after the command; the messenger is the last one."""
        until = time.monotonic() + DEADLINE
        while "messenger" not in self._used():
            if time.monotonic() > until:
                raise SystemExit("no messenger")
            time.sleep(0.05)

    def _wait(self, event: str) -> dict[str, object]:
        until = time.monotonic() + DEADLINE
        while time.monotonic() < until and self.process.poll() is None:
            for record in self._records():
                if record["event"] == event:
                    return record
            time.sleep(0.05)
        raise SystemExit(f"no record {event!r}")

    def _records(self) -> list[dict[str, object]]:
        file = self.run_dir / "events.jsonl"
        lines = file.read_bytes().split(b"\n")[:-1] if file.exists() else []
        return [json.loads(line) for line in lines]

    def measure(self, seconds: float) -> tuple[dict[str, Use], float, float]:
        """What each process used; records a minute; how long a scrape took, in ms."""
        before, records, began = self._used(), len(self._records()), time.monotonic()
        scrapes = []
        while (left := began + seconds - time.monotonic()) > 0:
            time.sleep(min(1.0, left))
            if self.address is not None:
                asked = time.perf_counter()
                urllib.request.urlopen(f"http://{self.address}/metrics", timeout=10).read()
                scrapes.append((time.perf_counter() - asked) * 1e3)
        after, passed = self._used(), time.monotonic() - began
        used = {
            name: Use((use.seconds - before[name].seconds) / passed, use.memory)
            for name, use in after.items()
            if name in before
        }
        rate = (len(self._records()) - records) / passed * 60
        return used, rate, statistics.median(scrapes) if scrapes else 0.0

    def _used(self) -> dict[str, Use]:
        """PID 1 and its helpers, so far."""
        found = {"PID 1": _use(self.process.pid)}
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        for child in map(int, children):
            words = Path(f"/proc/{child}/cmdline").read_bytes()
            if b"from ftrun.helpers." in words:
                found[words.partition(b"from ftrun.helpers.")[2].partition(b".")[0].decode()] = _use(child)
        return found

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(DEADLINE)


def _use(pid: int) -> Use:
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    memory = next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:"))
    return Use((int(fields[11]) + int(fields[12])) / TICKS, memory)


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 30.0
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    for what, records, metrics in (
        ("1,024 ranks beat", False, False),
        ("and 10,000 records a minute", True, False),
        ("and metrics each second", True, True),
    ):
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(Path(folder), records, metrics)
            try:
                bench.until_all_help()
                seen = [bench.measure(seconds) for _ in range(rounds)]
            finally:
                bench.end()
        rate = statistics.median(rate for _, rate, _ in seen)
        scrape = statistics.median(scrape for _, _, scrape in seen)
        print(f"{what}: {rate:.0f} records a minute" + (f", a scrape takes {scrape:.1f} ms" if metrics else ""))
        for name in seen[0][0]:
            uses = [used[name] for used, _, _ in seen if name in used]
            shares, memory = [100 * use.seconds for use in uses], max(use.memory for use in uses)
            spread = f"({min(shares):.2f} to {max(shares):.2f})"
            print(f"    {name:10} {statistics.median(shares):6.2f} %   {spread}, {memory:.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
