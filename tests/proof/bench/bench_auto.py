"""What automatic beats cost: at the start of an interpreter, at an optimizer step, at a batch.

python tests/proof/bench/bench_auto.py [PYTHON...]
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
AUTO = ROOT / "hooks" / "ftrun_hooks" / "auto"
RUNS = 101
CALLS = 200_000
sys.path.insert(0, str(ROOT / "tests"))

from support.beat_file import BeatDir  # noqa: E402

HOT = f"""
import time
from ftrun_hooks import _auto
class Optimizer: state, param_groups = {{}}, [{{}}]
def each(call):
    best = 10 ** 9
    for _ in range(5):
        begin = time.perf_counter_ns()
        for _ in range({CALLS}): call()
        best = min(best, (time.perf_counter_ns() - begin) / {CALLS})
    return best
one, batch = Optimizer(), _auto.with_beats(lambda _: 0)
idle, nothing = each(lambda: None), each(lambda: (lambda _: 0)(0))
print(f'a step: {{each(lambda: _auto.step_hook(one, (), {{}})) - idle:.0f}} ns,', end=' ')
print(f'a batch: {{each(lambda: batch(0)) - nothing:.0f}} ns')
"""


def spread(samples: list[float]) -> str:
    ordered = sorted(samples)
    low, high = ordered[len(ordered) // 10], ordered[-len(ordered) // 10]
    return f"median {statistics.median(ordered):+.2f}, 10th to 90th percentile {low:+.2f} to {high:+.2f}"


def took(python: str, environment: dict[str, str]) -> float:
    begin = time.perf_counter()
    subprocess.run([python, "-c", "pass"], check=True, env=environment)
    return (time.perf_counter() - begin) * 1e3


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        beats, source = BeatDir(Path(folder) / "beats"), Path(folder) / "source"
        source.mkdir()
        (source / "sitecustomize.py").write_bytes((AUTO / "sitecustomize.py").read_bytes())
        (beats.folder / "python").mkdir()
        (beats.folder / "python" / "sitecustomize.py").symlink_to(AUTO / "sitecustomize.py")
        bare = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
        inside = bare | {"FTRUN_BEAT_DIR": str(beats.folder), "PYTHONPATH": str(beats.folder / "python")}
        kinds = {"by a link beside the beats": inside, "no .pyc": inside | {"PYTHONPATH": str(source)}}
        for python in sys.argv[1:] or [sys.executable]:
            without: list[float] = []
            more: dict[str, list[float]] = {kind: [] for kind in kinds}
            for run in range(RUNS + 5):
                first = took(python, bare)
                rest = {kind: took(python, environment) - first for kind, environment in kinds.items()}
                if run >= 5:
                    without.append(first)
                    for kind, value in rest.items():
                        more[kind].append(value)
            print(f"{python} -c pass, ms: {spread(without)}")
            for kind, samples in more.items():
                print(f"  with automatic beats, {kind}, ms more: {spread(samples)} (goal: at most 1)")
            subprocess.run([python, "-c", HOT], check=True, env=inside)
        beats.close()


if __name__ == "__main__":
    main()
