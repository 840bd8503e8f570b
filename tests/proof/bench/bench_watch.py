"""How soon the checkpoint watcher reports a rename, and its cost: `python tests/proof/bench/bench_watch.py [FOLDER]`.

In a folder of 10 files and in one of 100,000, with inotify and with scans (as on a network disk).
FOLDER should be where nobody else works: what happens in it and in the folders above wakes the helper.
"""

import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[3] / "supervisor")]

from support.watcher import Watcher, put  # noqa: E402

QUIET = 10.0  # s
READS = 1000  # a second
SAVES = {"inotify": 41, "list": 15}
PAUSE = {"inotify": 0.05, "list": 5.0}  # s between two saves, and up to one more


def main() -> None:
    for files in (10, 100_000):
        with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as folder:
            out = Path(folder)
            for number in range(files):
                (out / f"{number:06}.pt").touch()
            for mode in ("inotify", "list"):
                measure(out, files, mode)


def measure(out: Path, files: int, mode: str) -> None:
    began = time.monotonic()
    with Watcher(out, "*.pt", mode=mode, pace=1) as watcher:
        ready = time.monotonic() - began
        time.sleep(3)  # a pause: it lists once more after its start, says nothing of it, and is measured quiet
        wakes, cpu = wake_ups(watcher), watcher.cpu
        time.sleep(QUIET)
        wakes, idle = wake_ups(watcher) - wakes, watcher.cpu - cpu
        seen, cpu, start = [], watcher.cpu, time.monotonic()
        for number in range(SAVES[mode]):
            path = put(out / f"new-{number}.pt")
            renamed = time.monotonic()
            watcher.saved(path)
            seen.append((time.monotonic() - renamed) * 1e3)
            time.sleep(PAUSE[mode] + (random.random() if mode == "list" else 0))
        saving = (watcher.cpu - cpu) / (time.monotonic() - start)
        cpu, start = watcher.cpu, time.monotonic()
        for number in range(READS * 5):
            (out / f"{number % files:06}.pt").read_bytes()
            time.sleep(max(0.0, start + number / READS - time.monotonic()))
        reading = (watcher.cpu - cpu) / (time.monotonic() - start)
        low, middle, high = statistics.quantiles(seen, n=4)
        print(
            f"{files:7} files, {mode:7}: rename reported after {middle:6.1f} ms (quartiles {low:.1f} to {high:.1f}, "
            f"worst {max(seen):.1f}); ready in {ready:.2f} s, {memory(watcher)}\n"
            f"    CPU: quiet {idle / QUIET:.2%} ({wakes} wake-ups in {QUIET:.0f} s), "
            f"a save every {PAUSE[mode]:.2f} s {saving:.1%}, "
            f"{READS} files read a second {reading:.1%}",
            flush=True,
        )


def status(watcher: Watcher) -> dict[str, str]:
    lines = Path(f"/proc/{watcher.process.pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def wake_ups(watcher: Watcher) -> int:
    return int(status(watcher)["voluntary_ctxt_switches"])


def memory(watcher: Watcher) -> str:
    return f"RSS {int(status(watcher)['VmRSS'].split()[0]) / 1024:.1f} MiB"


if __name__ == "__main__":
    main()
