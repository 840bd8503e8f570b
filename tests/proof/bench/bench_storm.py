"""How long it takes to end a tree that forks all the time, with ftrun as subreaper and as PID 1.

    python tests/proof/bench/bench_storm.py [RUNS] [WIDTH] [KIND]...

WIDTH storms of one kind (`tests/support/storms.py`), started by a command that then fails, with `--grace off`: from
its end (`exited`) until nothing is left (`killed`).  They run where no more than 4,000 processes can exist.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests"))
from support.storms import PID_MAX, has_own_pid_max  # noqa: E402

INSIDE = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c"]
LIMITED = f"echo 4000 > {PID_MAX} || exit; "
MODES = {"subreaper": '"$@"; exit $?', "PID 1": 'exec "$@"'}
STORM = str(ROOT / "tests" / "support" / "storms.py")
KINDS = ("chains", "pauses", "daemons", "children", "shells")


def measure(kind: str, width: int, runs: int, mode: str) -> list[float]:
    """Return the seconds that each restart needed to end the tree."""
    environment = os.environ | {"PYTHONPATH": f"{ROOT}/supervisor:{ROOT}/hooks"}
    with tempfile.TemporaryDirectory() as folder:
        options = ["--run-dir", folder, "--restart-on", "failure", "--max-restarts", "off", "--grace", "off"]
        options += ["--backoff", "10ms", "--standby", "off", "--quiet"]
        command = [sys.executable, "-S", "-E", STORM, kind, str(width), str(runs)]
        program = [*INSIDE, LIMITED + MODES[mode], "sh", sys.executable, "-m", "ftrun.cli.run", *options, *command]
        subprocess.run(program, check=True, env=environment)
        records = [json.loads(line) for line in (Path(folder) / "events.jsonl").read_text().splitlines()]
    seconds, began = [], 0.0
    for record in records:
        if record["event"] == "exited":
            began = record["mono"]
        elif record["event"] == "killed" and began:
            seconds.append(record["mono"] - began)
            began = 0.0
    return seconds[:runs]


def main() -> None:
    if not has_own_pid_max():
        sys.exit(
            "the number of processes cannot be limited here (Linux 6.14): a storm could use up those of the machine"
        )
    runs, width = (int(word) for word in (sys.argv[1:3] + ["5", "100"][len(sys.argv[1:3]) :]))
    for kind in sys.argv[3:] or KINDS:
        for mode in MODES:
            seconds = sorted(measure(kind, width, runs, mode))
            if not seconds:
                print(f"{kind}, {width} wide, {mode}: no measurement", flush=True)
                continue
            print(
                f"{kind}, {width} wide, {mode}: median {statistics.median(seconds):.2f} s, "
                f"least {seconds[0]:.2f}, most {seconds[-1]:.2f} ({len(seconds)} runs)",
                flush=True,
            )


if __name__ == "__main__":
    main()
