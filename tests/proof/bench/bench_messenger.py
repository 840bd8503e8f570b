"""What the control channel costs: `python tests/proof/bench/bench_messenger.py`.

Memory of the messenger and descriptors of PID 1; the time of an order; and the time to the command's first instruction
with the messenger, and where it is never started, in turn.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import zmq

ROOT = Path(__file__).resolve().parents[3]
FTRUN = [sys.executable, str(ROOT / "bin" / "ftrun")]
ORDERS, STARTS = 60, 41
WITHOUT = "import ftrun.pid1.clients.base as a; a.SETTLED = 1e6; from ftrun.cli.run import main; main()"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        process = subprocess.Popen([*FTRUN, "-q", "--run-dir", run_dir, "sleep", "3600"])
        try:
            until(lambda: (run_dir / "events.jsonl").exists() and b"spawned" in (run_dir / "events.jsonl").read_bytes())
            before = descriptors(process.pid)
            until(lambda: (run_dir / "ftctl.sock").exists())
            (messenger,) = messengers(process.pid)
            report("an order and its answer, ms", orders(run_dir))
            time.sleep(2)  # a pause: the memory is measured at rest, and nothing tells when that is reached
            print(f"messenger: RSS {memory(messenger, 'status', 'VmRSS:')} MiB (goal: at most 25), "
                  f"PSS {memory(messenger, 'smaps_rollup', 'Pss:')} MiB")  # fmt: skip
            print(f"descriptors of PID 1: {descriptors(process.pid) - before} more with it (goal: 1)")
        finally:
            process.terminate()
            process.wait()
        starts(Path(folder))


def until(condition: object) -> None:
    while not condition():  # type: ignore[operator]
        time.sleep(0.01)


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def messengers(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(c) for c in children if b"helpers.messenger" in Path(f"/proc/{c}/cmdline").read_bytes()]


def memory(pid: int, file: str, name: str) -> str:
    line = next(line for line in Path(f"/proc/{pid}/{file}").read_text().splitlines() if line.startswith(name))
    return f"{int(line.split()[1]) / 1024:.1f}"


def orders(run_dir: Path) -> list[float]:
    """Few a second are taken, so that we wait in between."""
    took = []
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(f"ipc://{run_dir}/ftctl.sock")
        for number in range(ORDERS):
            began = time.perf_counter()
            socket.send_json({"schema": 1, "id": str(number), "verb": ("pause", "resume")[number % 2]})
            answer = json.loads(socket.recv())
            took.append((time.perf_counter() - began) * 1e3)
            assert answer["ok"], answer
            time.sleep(0.21)
    return took


def starts(folder: Path) -> None:
    paths = f"{ROOT}/supervisor:{ROOT}/hooks"
    environment = os.environ | {"PYTHONPATH": paths, "TMPDIR": str(folder)}
    ways = {"with the messenger": FTRUN, "without": [sys.executable, "-c", WITHOUT]}
    took: dict[str, list[float]] = {name: [] for name in ways}
    mark = folder / "mark"
    for _ in range(STARTS):
        for name, words in ways.items():
            mark.unlink(missing_ok=True)
            began = time.time_ns()
            subprocess.run([*words, "-q", "sh", "-c", f": > {mark}"], check=True, env=environment)
            took[name].append((mark.stat().st_mtime_ns - began) / 1e6)
    for name, samples in took.items():
        report(f"to the command's first instruction {name}, ms", samples)


def report(what: str, samples: list[float]) -> None:
    ordered = sorted(samples)
    low, high = ordered[len(ordered) // 10], ordered[-len(ordered) // 10]
    print(f"{what}: median {statistics.median(ordered):.2f}, 10th to 90th percentile {low:.2f} to {high:.2f}")


if __name__ == "__main__":
    main()
