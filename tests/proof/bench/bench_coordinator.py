"""The cost of the decisions of the coordinator of a group: `python tests/proof/bench/bench_coordinator.py`.

The barrier is measured from the first member that is ready to the request that starts all members, and until all have
reported that they run.  In the steady state a report without a change (which a messenger need not even parse) and one
with a change are measured.
"""

import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "supervisor"), str(ROOT / "tests")]

from core.many import Many  # noqa: E402


def main() -> None:
    for size in (8, 1000, 4000):
        many = Many(size)
        many.all("ready")
        many.all("running", 1)
        many.fail(size // 2)
        ready = many.reports("ready", 1, range(size))
        barrier = took(lambda many=many, ready=ready: many.hear(ready))  # type: ignore[misc]
        assert many.coordinator.epoch == 2
        running = many.reports("running", 2, range(size))
        started = took(lambda many=many, running=running: many.hear(running))  # type: ignore[misc]
        again = took(lambda many=many, running=running: many.hear(running)) / size  # type: ignore[misc]
        print(f"{size} members: barrier {barrier * 1e3:.1f} ms of CPU, all running {started * 1e3:.1f} ms more; "
              f"a report again {again * 1e6:.1f} us, a new one {started / size * 1e6:.1f} us")  # fmt: skip
    tracemalloc.start()
    many = Many(1000)
    many.all("ready")
    many.all("running", 1)
    print(f"memory of 1000 members: {tracemalloc.get_traced_memory()[0] / 2**20:.1f} MiB")


def took(what: Callable[[], object]) -> float:
    began = time.process_time()
    what()
    return time.process_time() - began


if __name__ == "__main__":
    main()
