"""The time from a device fault to the end of a tree of N processes, and to the next start of the command.

    python tests/proof/bench/bench_fault.py [N]

Over the fake driver library of tests/device, one Xid after another.  Read from the records: from `fault` (the report of
the probe) to `healing` (no process is left), and to `spawned` (the device is well, and free).  From the
driver's event to the record: by the clock of this program.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests")]

from support.device.nvml import FakeNvml  # noqa: E402

XIDS = (46, 62, 64, 95, 109, 110, 119, 120, 136, 140)  # of severity major, each once: the third would isolate
TREE = """
import os, signal
for _ in range({size} - 1):
    if os.fork() == 0:
        signal.pause()  # until it is killed
open("tree-" + os.environ["MA_PROC_START_CNT"], "w").close()  # it is there
if int(os.environ["MA_PROC_START_CNT"]) <= {runs}:
    signal.pause()  # until it is killed
"""


def main() -> None:
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    recorded, dead, again = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        fake = FakeNvml(Path(folder))
        environment = os.environ | fake.environment() | {"PYTHONPATH": f"{ROOT}/supervisor:{ROOT}/hooks"}
        options = ["--run-dir", f"{folder}/run", "--probe", "nvidia", "--max-restarts", "off", "--quiet"]
        command = [sys.executable, "-c", TREE.format(size=size, runs=len(XIDS))]
        words = [sys.executable, "-m", "ftrun.cli.run", *options, *command]
        ftrun = subprocess.Popen(words, env=environment, cwd=folder)
        records = Path(folder) / "run" / "events.jsonl"
        ready(fake, records)
        for number, xid in enumerate(XIDS):
            while not (Path(folder) / f"tree-{number + 1}").exists():
                time.sleep(0.005)
            fired = time.monotonic()
            fake.xid(0, xid)
            fault = until(records, "fault", lambda r, xid=xid: r["code"] == str(xid))
            recorded.append((fault["mono"] - fired) * 1e3)
            healing, spawned = until(records, "healing", number + 1), until(records, "spawned", number + 2)
            dead.append((healing["mono"] - fault["mono"]) * 1e3)
            again.append((spawned["mono"] - fault["mono"]) * 1e3)
        ftrun.wait()
    for name, samples in (
        ("Xid to its record", recorded),
        ("record to the end of the tree", dead),
        ("to the exec", again),
    ):
        print(
            f"tree of {size}, {len(samples)} faults: {name}, ms: median {statistics.median(samples):.0f}, "
            f"least {min(samples):.0f}, most {max(samples):.0f}"
        )


def ready(fake: FakeNvml, records: Path) -> None:
    """Wait until the probe runs: it has reported an Xid that requires no action."""
    while not any(r["event"] == "fault" for r in read(records)):
        fake.xid(0, 63)
        time.sleep(0.2)


def until(records: Path, event: str, which: Any) -> dict[str, Any]:
    """The record with that number of its kind, or the first that is right."""
    while True:
        found = [r for r in read(records) if r["event"] == event]
        right = found[which - 1 : which] if isinstance(which, int) else [r for r in found if which(r)]
        if right:
            return right[0]
        time.sleep(0.005)


def read(records: Path) -> list[dict[str, Any]]:
    lines = records.read_text().splitlines(keepends=True) if records.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


if __name__ == "__main__":
    main()
