"""Time to the command's first instruction, against `python -c pass` of the same interpreter; and PID 1's memory.

python tests/proof/bench/bench_start.py
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "tests"))
RUNS = 41


def spread(samples: list[float]) -> str:
    ordered = sorted(samples)
    low, high = ordered[len(ordered) // 10], ordered[-len(ordered) // 10]
    return f"median {statistics.median(ordered):.1f}, 10th to 90th percentile {low:.1f} to {high:.1f}"


def looks(environment: dict[str, str], mark: Path, folder: Path) -> None:
    """What the look at the devices before the first start takes: on this machine, and with eight GPUs of a fake NVML,
    which answers at once: a driver takes the time that it takes."""
    from support.device.nvml import FakeNvml

    fake = environment | FakeNvml(folder, 8).environment()
    fake.pop("CUDA_VISIBLE_DEVICES", None)
    cases = {
        "no accelerator, --check-devices off": (environment, ("--check-devices", "off")),
        "no accelerator, --check-devices on": (environment, ("--check-devices", "on")),
        "8 fake GPUs, --check-devices off": (fake, ("--probe", "nvidia", "--check-devices", "off")),
        "8 fake GPUs, --check-devices on": (fake, ("--probe", "nvidia", "--check-devices", "on")),
    }
    found: dict[str, list[float]] = {case: [] for case in cases}
    for run in range(RUNS + 3):
        for case, (given, options) in cases.items():
            mark.unlink(missing_ok=True)
            command = [sys.executable, "-m", "ftrun.cli.run", *options, "sh", "-c", f": > {mark}"]
            begin_ns = time.time_ns()
            subprocess.run(command, check=True, env=given)
            if run >= 3:
                found[case].append((mark.stat().st_mtime_ns - begin_ns) / 1e6)
    for case, samples in found.items():
        print(f"{case + ', ms:':<38}{spread(samples)}")


def main() -> None:
    environment = os.environ | {"PYTHONPATH": f"{ROOT}/supervisor:{ROOT}/hooks", "PYTHONDONTWRITEBYTECODE": ""}
    bare: list[float] = []
    first: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        environment["TMPDIR"] = folder
        mark = Path(folder) / "mark"
        # A static first instruction: the child's own start is not ours, so it is a program that is cheap to start.
        ftrun = [sys.executable, "-m", "ftrun.cli.run", "sh", "-c", f": > {mark}"]
        for run in range(RUNS + 3):
            begin = time.perf_counter()
            subprocess.run([sys.executable, "-c", "pass"], check=True)
            took = (time.perf_counter() - begin) * 1e3
            mark.unlink(missing_ok=True)
            begin_ns = time.time_ns()
            subprocess.run(ftrun, check=True, env=environment)
            reached = (mark.stat().st_mtime_ns - begin_ns) / 1e6
            if run >= 3:
                bare.append(took)
                first.append(reached)
        print(f"python -c pass, ms:                   {spread(bare)}")
        print(f"ftrun to the first instruction, ms:   {spread(first)}")
        ratios = [f / b for f, b in zip(first, bare, strict=True)]
        print(f"ratio, run by run:                    {spread(ratios)} (goal: at most 5)")

        looks(environment, mark, Path(folder))

        run_dir = Path(folder, "run")
        idle = [sys.executable, "-m", "ftrun.cli.run", "--run-dir", str(run_dir), "sleep", "3600"]
        process = subprocess.Popen(idle, env=environment)
        try:
            while not (run_dir / "records.sock").exists():  # the messenger is there, the last of all
                time.sleep(0.05)
            time.sleep(1)  # a pause: wake-ups at rest are counted next, and nothing tells when PID 1 has come to rest
            status = Path(f"/proc/{process.pid}/status").read_text()
            facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
            before = facts["voluntary_ctxt_switches"]
            time.sleep(5)  # this is the span in which wake-ups are counted
            after = Path(f"/proc/{process.pid}/status").read_text().split("voluntary_ctxt_switches:\t")[1].split()[0]
            print(
                f"idle: threads {facts['Threads']}, RSS {facts['VmRSS'].strip()} (goal: at most 20 MiB), "
                f"wake-ups in 5 s {int(after) - int(before)} (goal: 0)"
            )
        finally:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    main()
