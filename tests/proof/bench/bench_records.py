"""How long `ftctl` needs for a run with a million records: `python tests/proof/bench/bench_records.py COUNT ROUNDS`.

Prints the processor time and the memory of `status`, `events` and `timeline`: the median and range of the rounds.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

HOUSE = Path(__file__).resolve().parents[3]
EVERY = 1000  # records of an attempt
VERBS = {"status": ("status",), "events": ("events",), "timeline": ("timeline", "-o", "-")}


def make(folder: Path, count: int) -> None:
    """A run with so many records, most of them progress, and its steps."""
    with (folder / "events.jsonl").open("w") as events, (folder / "steps.jsonl").open("w") as steps:
        attempt, step = 1, 0
        for number in range(count):
            mono = 1000.0 + 2 * number
            head: dict[str, object] = {"schema": 1, "time": f"2026-01-01T00:00:{number % 60:02d}.000Z", "mono": mono}
            if number % EVERY == 0:
                attempt += number > 0
                event: dict[str, object] = {
                    "event": "restart" if number else "started",
                    "attempt": attempt,
                    "reason": "hang",
                }
            elif number % EVERY == EVERY - 1:
                event = {"event": "hang", "attempt": attempt, "rule": "step", "rank": 3, "age": 12.5, "step": step}
            else:
                step += 5
                event = {"event": "progress", "attempt": attempt, "by": "checkpoint", "step": step}
                event |= {"checkpoint": f"/checkpoints/step-{step}/model.pt", "seen": mono}
            events.write(json.dumps(head | event) + "\n")
            if number % 100 == 0:
                steps.write(
                    json.dumps({"mono": mono, "attempt": attempt, "low": step, "high": step, "ranks": 8}) + "\n"
                )


def measure(*words: str) -> tuple[float, float]:
    """Seconds of processor time, and MiB."""
    command = [sys.executable, str(HOUSE / "bin" / "ftctl"), *words]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, f"{words}: exit code {process.returncode}"
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def main() -> None:
    count, rounds = (int(word) for word in [*sys.argv[1:3], *("1000000", "5")[len(sys.argv) - 1 :]])
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder), count)
        for name, words in VERBS.items():
            found = [measure(*words, "--run-dir", folder) for _ in range(rounds)]
            times, sizes = [one[0] for one in found], [one[1] for one in found]
            print(f"{name:<9} {median(times):6.2f} s CPU ({min(times):.2f} to {max(times):.2f}), {max(sizes):.0f} MiB")


if __name__ == "__main__":
    main()
