"""The matrix of hangs and of healthy jobs that stand still, under ftrun without any option.

    nice bin/prove hangs --publish

Each hang has to be found, and no healthy job may be: a run of a healthy row fails if ftrun reports a hang, restarts the
job, or ends with another exit code than 0.  The runs sleep nearly all the time, so many run side by side.  The rows
take turns, so that a program that is interrupted has run each of them equally often.  `--out` gets one line of JSON for
each run, after those that are there; `--publish` makes docs/measured/hang-matrix from all of them, and leaves a row
for which there is none as it was.
"""

import argparse
import itertools
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from proof.hangs.hanging import CELLS, HANGS, MOMENTS, SHAPES, Found, find
from proof.hangs.healthy import ROWS
from proof.hangs.meeting import Met, meet
from proof.hangs.schedule import Job, run_all
from proof.hangs.sections import publish
from proof.hangs.server import serving


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", choices=["hangs", "healthy", []], help="[all]")
    parser.add_argument("--repeats", type=int, default=50, metavar="N", help="of each healthy row [%(default)s]")
    parser.add_argument("--hang-repeats", type=int, default=1, metavar="N", help="of each hang [%(default)s]")
    parser.add_argument("--seconds", type=float, default=75.0, metavar="S", help="that a wait takes [%(default)s]")
    parser.add_argument("--patience", type=float, default=180.0, metavar="S", help="with a hang [%(default)s]")
    parser.add_argument("--at-once", type=int, default=30, metavar="N", help="runs at the same time [%(default)s]")
    parser.add_argument("--cores", type=float, default=2.5, metavar="N", help="that they may use [%(default)s]")
    parser.add_argument("--pause", type=float, default=2.0, metavar="S", help="between two starts [%(default)s]")
    parser.add_argument(
        "--rows", nargs="*", default=[], metavar="TEXT", help="only rows whose group and name contain one"
    )
    parser.add_argument("--kinds", nargs="*", choices=HANGS, default=HANGS, metavar="KIND", help="only these hangs")
    parser.add_argument("--shapes", nargs="*", default=list(SHAPES), metavar="TEXT", help="only these columns")
    parser.add_argument("--moments", nargs="*", default=list(MOMENTS), metavar="TEXT", help="only these beginnings")
    parser.add_argument("--options", default="", help="of ftrun, to try the harness")
    parser.add_argument("--out", type=Path, default=Path("hangs.jsonl"), metavar="FILE", help="[%(default)s]")
    parser.add_argument("--publish", action="store_true", help="write docs/measured")
    given = parser.parse_args()
    stop = threading.Event()
    for stopping in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stopping, lambda *_: stop.set())
    failed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="hangs-") as folder, serving() as ports, given.out.open("a") as out:
        numbers = itertools.count()

        def measured(what: str, one: Callable[[Path], Met | Found]) -> Callable[[], None]:
            def do() -> None:
                result = one(Path(folder) / str(next(numbers)))._asdict()
                text = json.dumps({"what": what, "load": round(os.getloadavg()[0], 1)} | result, ensure_ascii=False)
                out.write(text + "\n")
                out.flush()
                if result["wrong"]:
                    failed.append(text)
                    print(time.strftime("%H:%M:%S"), text, flush=True)

            return do

        options = tuple(given.options.split())

        def jobs() -> Iterator[Job]:
            if "hangs" in given.what or not given.what:
                cells = [c for c in CELLS if c.kind in given.kinds and any(text in c.shape for text in given.shapes)]
                cells = [c for c in cells if any(text in c.moment for text in given.moments)]
                for _, cell in itertools.product(range(given.hang_repeats), cells):
                    yield Job(cell.cores, measured("hang", partial(find, cell, given.patience, options)))
            if "healthy" in given.what or not given.what:
                names = {r: f"{r.group}: {name}" for name, r in ROWS.items()}
                rows = [r for r, name in names.items() if not given.rows or any(text in name for text in given.rows)]
                rows = [r for r in rows if not r.lacks() or print(f"{r.name}: there is no {r.lacks()} here")]
                for number, row in itertools.product(range(given.repeats), rows):
                    moment = row.moments[number % len(row.moments)]
                    yield Job(row.cores, measured("healthy", partial(meet, row, moment, given.seconds, ports)))

        run_all(jobs(), given.at_once, given.cores, given.pause, stop)
    print(f"{len(failed)} runs failed")
    if given.publish:
        publish([json.loads(line) for line in given.out.read_text().splitlines()])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
