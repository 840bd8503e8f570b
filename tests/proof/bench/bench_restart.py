"""How fast a hang is acted on, and a tree of N that dies at once is ended and started again.

    python tests/proof/bench/bench_restart.py [N] [RUNS]

Read from the records: `hang` against the deadline (last movement + limit), and from the decision (the `suspect` record,
which comes first) to the exec of the next attempt (`spawned`).
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
TREE = """
import os, signal, sys
import ftrun_hooks as ft
if int(os.environ["MA_PROC_START_CNT"]) > {runs}:
    sys.exit(0)
for _ in range({size} - 1):
    if os.fork() == 0:
        signal.pause()  # until it is killed with its tree
ft.beat(1)
signal.pause()  # the hang: until it is killed
"""


def main() -> None:
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 20
    environment = os.environ | {"PYTHONPATH": f"{ROOT}/supervisor:{ROOT}/hooks"}
    with tempfile.TemporaryDirectory() as folder:
        options = ["--run-dir", folder, "--hang-timeout", "500ms", "--grace", "off", "--max-restarts", "off", "--quiet"]
        command = [sys.executable, "-c", TREE.format(runs=runs, size=size)]
        subprocess.run([sys.executable, "-m", "ftrun.cli.run", *options, *command], check=True, env=environment)
        records = [json.loads(line) for line in (Path(folder) / "events.jsonl").read_text().splitlines()]
    late, evidence, again = [], [], []
    for index, record in enumerate(records):
        if record["event"] == "suspect":
            late.append((record["age"] - record["limit"]) * 1e3)
            hang = next(r for r in records[index:] if r["event"] == "hang")
            spawned = next(r for r in records[index:] if r["event"] == "spawned")
            evidence.append((hang["mono"] - record["mono"]) * 1e3)
            again.append((spawned["mono"] - hang["mono"]) * 1e3)
    for name, samples, goal in (
        ("hang seen after its deadline", late, 100),
        ("evidence, two looks 125 ms apart", evidence, 30_000),
        ("decision to the new exec", again, 50),
    ):
        median = statistics.median(samples)
        print(
            f"tree of {size}, {len(samples)} restarts: {name}, ms: median {median:.1f}, "
            f"least {min(samples):.1f}, most {max(samples):.1f} (goal: {goal})"
        )


if __name__ == "__main__":
    main()
